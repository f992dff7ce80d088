"""Loading of records: how a data set's records are gathered into one microbatch, and prepared ahead."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence, Sized
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from torch import Tensor
from torch.utils.data import IterableDataset, TensorDataset, default_collate

from noisette.sampling.buckets import PaddedBuckets

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


@dataclass(frozen=True)
class Records:
    """The records of a data set: how many there are, and how some of them are fetched as one microbatch."""

    size: int
    gather: Gather
    buckets: np.ndarray | None = None  # the bucket of each record, if a microbatch may hold one bucket only
    check_batch: Callable[[np.ndarray], None] | None = None  # refuses records that no batch may have together


def records_of(dataset: Any) -> Records:
    """How the records of a data set are loaded.

    Tensors and arrays, alone or as the columns of a tuple, a dictionary or a ``TensorDataset``, are gathered in one
    indexing call. Any other data set with ``len`` and indexing, such as a list of records, has its examples fetched and
    collated as a ``DataLoader`` would.

    Raises:
        TypeError: the data set cannot be indexed, so no Poisson batch can be drawn from it.
        ValueError: its columns differ in length, or a list may stand for records or for columns.
    """
    if isinstance(dataset, PaddedBuckets):
        return Records(len(dataset), dataset.collate, dataset.buckets)
    if isinstance(dataset, TensorDataset):
        dataset = dataset.tensors
    if isinstance(dataset, Tensor | np.ndarray):
        return Records(len(dataset), _column(dataset))
    if isinstance(dataset, tuple) and dataset and _are_tensors(dataset):
        columns = [_column(column) for column in dataset]
        return Records(_common_length(dataset), lambda at: tuple(column(at) for column in columns))
    if isinstance(dataset, Mapping):
        named = {name: _column(column) for name, column in dataset.items()}
        length = _common_length(list(dataset.values()))
        return Records(length, lambda at: {name: column(at) for name, column in named.items()})
    if isinstance(dataset, list) and _are_tensors(dataset):
        _refuse_columns(dataset)
    # A table of pandas is indexed by column.
    if isinstance(dataset, IterableDataset) or not _is_indexable(dataset) or hasattr(dataset, "iloc"):
        raise TypeError(
            f"a {type(dataset).__name__} has no length and index by record, so its records cannot be drawn one by one; "
            "pass a data set with __len__ and __getitem__ (not a DataLoader: it has a sampler of its own)"
        )
    return Records(len(dataset), _collated(dataset))


def each_record(dataset: Any) -> Iterator[Any]:
    """The records one by one; of columns, the rows, each in the form of the data set."""
    if isinstance(dataset, Mapping):
        columns = {name: torch.as_tensor(column) for name, column in dataset.items()}
        yield from ({name: column[i] for name, column in columns.items()} for i in range(records_of(dataset).size))
    elif isinstance(dataset, tuple) and dataset and _are_tensors(dataset):
        yield from zip(*map(torch.as_tensor, dataset), strict=True)
    else:
        yield from (dataset[i] for i in range(records_of(dataset).size))


def _are_tensors(values: Sequence[Any]) -> bool:
    return all(isinstance(value, Tensor | np.ndarray) for value in values)


def _is_indexable(dataset: Any) -> bool:
    return isinstance(dataset, Sized) and hasattr(dataset, "__getitem__")


def _refuse_columns(tensors: list[Any]) -> None:
    """Check that the tensors of a list are records.

    Records of one data set have positions of one type and shape. Tensors that differ in it, and are fewer than their
    common length, look like columns.

    Raises:
        ValueError: they look like columns.
    """
    lengths = {len(tensor) if tensor.ndim else 0 for tensor in tensors}
    kinds = {(tensor.dtype, tensor.shape[1:]) for tensor in tensors}
    if len(kinds) > 1 and len(lengths) == 1 and len(tensors) < (rows := lengths.pop()):
        raise ValueError(
            f"a list of {len(tensors)} tensors of {rows} rows may mean {len(tensors)} records or {rows}: a list is a "
            "list of records; give columns as a tuple, (x, y)"
        )


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
        return lambda at: _collate(fetch_many(at.tolist()))
    return lambda at: _collate([dataset[index] for index in at.tolist()])


def _collate(records: list[Any]) -> Any:
    """The records as one microbatch.

    Raises:
        ValueError: they are tensors of different shapes.
    """
    shapes = {tuple(record.shape) for record in records if isinstance(record, Tensor | np.ndarray)}
    if len(shapes) > 1:
        raise ValueError(
            f"the records have different shapes, such as {' and '.join(map(str, sorted(shapes)[:2]))}: pad sequences "
            "with noisette.PaddedBuckets(records, edges), or bring each record to one shape by itself"
        )
    return default_collate(records)
