"""Which examples a step sees: Poisson batches from the secure source, handed out in physical pieces.

The size of a batch is private and random; it may be zero. Nothing public is computed from it.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence, Sized
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass
from typing import Any, Literal

import numpy as np
import torch
from torch import Tensor
from torch.utils.data import IterableDataset, TensorDataset, default_collate

from noisette._internal import checks
from noisette._internal.keystream import SecretKey
from noisette.errors import PrivacyError
from noisette.sampling.microbatch_size import FixedSize, MicrobatchSize

_CHUNK = 2**20  # records whose coins are tossed at once

Gather = Callable[[np.ndarray], Any]  # indices of examples -> one collated piece


@dataclass(frozen=True)
class PoissonSampler:
    """Includes each of ``size`` records in a step's batch independently with probability ``sampling_rate``.

    Guarantee: inclusion is independent across records and steps, with 64 bits to a coin, from the secret key alone.
    Source: Abadi et al. 2016, algorithm 1 and section 3.1 (lots).

    >>> len(PoissonSampler(size=5, sampling_rate=1.0, key=SecretKey()).indices(step=0))
    5
    """

    size: int
    sampling_rate: float
    key: SecretKey

    def __post_init__(self) -> None:
        checks.probability(sampling_rate=self.sampling_rate)

    def indices(self, *, step: int) -> np.ndarray:
        """Indices of the records in this step's batch, ascending; possibly none."""
        if self.sampling_rate == 1:
            return np.arange(self.size)
        below = np.uint64(int(self.sampling_rate * 2**64))
        coins = np.empty(min(self.size, _CHUNK), dtype=np.uint64)
        found = []
        for start in range(0, self.size, _CHUNK):
            tossed = coins[: min(_CHUNK, self.size - start)]
            self.key.fill(tossed, purpose="sampling", name="", step=step, start=start)
            found.append(np.flatnonzero(tossed < below) + start)
        return np.concatenate(found) if found else np.arange(0)


@dataclass
class Batch:
    """One logical batch: the examples of one step, possibly none, to be seen in physical pieces."""

    indices: np.ndarray
    gather: Gather
    measured: MicrobatchSize  # what ``microbatches("auto")`` goes by
    piece: int | None = None  # examples in the piece that is in hand
    bounded: int = 0  # examples that went through backward
    cut: MicrobatchSize | None = None  # what the pieces in hand go by

    def microbatches(self, size: int | Literal["auto"]) -> Iterator[Any]:
        """The batch in pieces of at most ``size`` examples, which only bounds memory: the sum is the same.

        A piece has the form in which the data set gives its examples, collated. An empty batch has no piece. The next
        piece is prepared while the present one is at work.

        With ``"auto"`` pieces begin with one example and double while the memory that the last one took would be there
        twice; the size is kept for the batches to come. Where memory runs out in ``run.backward``, nothing of the piece
        is counted and the same examples come again in halves. Where it runs out in the model's own call, that error is
        yours: catch it and call ``microbatches("auto")`` again, which goes on with half the size where it was left.

        Raises:
            TypeError, ValueError: ``size`` is neither a whole number of at least one nor ``"auto"``.
            PrivacyError: a piece would leave out examples, or bring some a second time.
        """
        if isinstance(size, str) and size != "auto":
            raise ValueError(f'expected size to be a whole number or "auto", got size={size!r}')
        self.cut = cut = self.measured if isinstance(size, str) else FixedSize(size)
        start = 0
        if self.piece is not None:  # it was left before its backward
            cut.halve(self.piece)
            start = self.bounded
        self.check_bounded(start)
        with ThreadPoolExecutor(max_workers=1) as helper:  # its thread starts with the first piece fetched ahead
            fetch = _Ahead(self.gather, helper)
            while start < len(self.indices):
                end = start + min(cut.now, len(self.indices) - start)
                piece = fetch(self.indices[start:end], self.indices[end : end + cut.now])
                cut.begin()
                self.piece = end - start
                yield piece
                if self.piece is None and self.bounded == start:
                    continue  # given back: the same examples again, fewer at once
                self.check_bounded(end)
                cut.end(end - start)
                start = end
        self.piece = None

    def retry_smaller(self) -> bool:
        """Memory ran out in the backward pass of the piece in hand: let its examples come again, fewer at once.

        Returns:
            Whether they will: not so with a size that was given, nor for a single example.
        """
        if self.piece is None or self.cut is None or not self.cut.halve(self.piece):
            return False
        self.piece = None
        return True

    def check_bounded(self, expected: int) -> None:
        """So many examples of the batch went through backward until now.

        Raises:
            PrivacyError: some were left out or came twice.
        """
        if self.bounded != expected:
            raise PrivacyError(
                f"{self.bounded} examples of this batch went through run.backward() where {expected} should have: each "
                "belongs to its step once. Call backward once for each piece, and microbatches() once for each batch"
            )


class _Ahead:
    """Fetches the piece that probably follows while the present one is at work, one at a time."""

    def __init__(self, gather: Gather, helper: ThreadPoolExecutor) -> None:
        self._gather = gather
        self._helper = helper
        self._part = np.arange(0)
        self._upcoming: Future[Any] | None = None

    def __call__(self, part: np.ndarray, following: np.ndarray) -> Any:
        """The piece with these indices; those that ``following`` names are fetched next."""
        if self._upcoming is None and not len(following):
            return self._gather(part)
        if self._upcoming is None or not np.array_equal(self._part, part):
            self._upcoming = self._helper.submit(self._gather, part)
        ready = self._upcoming.result()
        self._part, self._upcoming = following, self._helper.submit(self._gather, following) if len(following) else None
        return ready


def gatherer(dataset: Any) -> tuple[int, Gather]:
    """The number of records of a data set, and how to fetch some of them as one piece.

    Tensors and arrays, alone or in a tuple, a list, a dictionary or a ``TensorDataset``, are gathered in one indexing
    call. Any other data set with ``len`` and indexing has its examples fetched and collated as a ``DataLoader`` would.

    Raises:
        TypeError: the data set cannot be indexed, so no Poisson batch can be drawn from it.
        ValueError: its tensors differ in length.
    """
    if isinstance(dataset, TensorDataset):
        dataset = dataset.tensors
    if isinstance(dataset, Tensor | np.ndarray):
        return len(dataset), _column(dataset)
    if isinstance(dataset, tuple | list) and dataset and all(isinstance(c, Tensor | np.ndarray) for c in dataset):
        columns = [_column(column) for column in dataset]
        return _common_length(dataset), lambda at: tuple(column(at) for column in columns)
    if isinstance(dataset, Mapping):
        named = {name: _column(column) for name, column in dataset.items()}
        return _common_length(list(dataset.values())), lambda at: {name: column(at) for name, column in named.items()}
    if isinstance(dataset, IterableDataset) or not isinstance(dataset, Sized) or not hasattr(dataset, "__getitem__"):
        raise TypeError(
            f"a {type(dataset).__name__} has no length and index, so each record cannot be drawn on its own; "
            "pass a data set with __len__ and __getitem__ (not a DataLoader: it brings a sampler of its own)"
        )
    return len(dataset), _collated(dataset)


def _column(values: Tensor | np.ndarray) -> Gather:
    tensor = torch.as_tensor(values)
    return lambda at: tensor[torch.as_tensor(at, device=tensor.device)]


def _common_length(columns: Sequence[Sized]) -> int:
    lengths = {len(column) for column in columns}
    if len(lengths) != 1:
        raise ValueError(f"the columns of the data set differ in length: {sorted(lengths)}")
    return lengths.pop()


def _collated(dataset: Any) -> Gather:
    fetch_many = getattr(dataset, "__getitems__", None)
    if fetch_many is not None:
        return lambda at: default_collate(fetch_many(at.tolist()))
    return lambda at: default_collate([dataset[index] for index in at.tolist()])
