"""Loading of records: how a data set's records are gathered into one microbatch, and prepared ahead."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence, Sized
from concurrent.futures import Future, ThreadPoolExecutor
from typing import Any

import numpy as np
import torch
from torch import Tensor
from torch.utils.data import IterableDataset, TensorDataset, default_collate

Gather = Callable[[np.ndarray], Any]  # indices of records -> one collated microbatch


class Prefetch:
    """Fetches the microbatch that probably follows while the current one is processed, one at a time."""

    def __init__(self, gather: Gather, helper: ThreadPoolExecutor) -> None:
        self._gather = gather
        self._helper = helper
        self._part = np.arange(0)
        self._upcoming: Future[Any] | None = None

    def __call__(self, part: np.ndarray, following: np.ndarray) -> Any:
        """The microbatch with these indices; those that ``following`` names are fetched next."""
        if self._upcoming is None and not len(following):
            return self._gather(part)
        if self._upcoming is None or not np.array_equal(self._part, part):
            self._upcoming = self._helper.submit(self._gather, part)
        ready = self._upcoming.result()
        self._part, self._upcoming = following, self._helper.submit(self._gather, following) if len(following) else None
        return ready


def gatherer(dataset: Any) -> tuple[int, Gather]:
    """The number of records of a data set, and how to fetch some of them as one microbatch.

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
            f"a {type(dataset).__name__} has no length and index, so its records cannot be drawn one by one; "
            "pass a data set with __len__ and __getitem__ (not a DataLoader: it has a sampler of its own)"
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
