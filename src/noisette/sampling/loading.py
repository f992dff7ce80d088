"""Loading of records: how a data set's records are gathered into one microbatch."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence, Sized
from dataclasses import replace
from typing import Any

import numpy as np
import torch
from torch import Tensor
from torch.utils.data import IterableDataset, TensorDataset, default_collate

from noisette.core.batches import Records
from noisette.sampling.buckets import PaddedBuckets
from noisette.sampling.mapped_file import MappedFile
from noisette.sampling.record_forms import check_one_form

Gather = Callable[[np.ndarray], Any]  # indices of records -> one collated microbatch
Collate = Callable[[list[Any]], Any]  # records -> one collated microbatch

_PAD = ": pad sequences with noisette.PaddedBuckets(records, edges, pad=...), or bring each record to one shape"


class OwnRecords:
    """The part of a data set that this process holds, where each of several processes holds another part.

    Every process draws the same batch of all records, and loads the records of it that it holds.

    Args:
        dataset: the records of this process, in any form that :func:`noisette.privatize` takes.
        first: the place of its first record among all of them.
        of: the number of records of all processes together. It is as private as the length of a data set: nothing
            public is computed from it.

    Guarantee: none by itself. That of the run holds where each record is held by one process, at the place that
    ``first`` tells: parts that overlap count records twice.

    Raises:
        TypeError, ValueError: the numbers are not whole, or this part ends beyond all records.

    >>> OwnRecords(torch.zeros(3, 2), first=4, of=10)
    OwnRecords(first=4)
    """

    def __init__(self, dataset: Any, *, first: int, of: int) -> None:
        for name, value in (("first", first), ("of", of)):
            if type(value) is not int:
                raise TypeError(f"expected {name} to be a whole number, got a {type(value).__name__}")
        self._dataset = dataset
        self._records = records_of(dataset)
        if first < 0 or first + self._records.size > of:
            raise ValueError(
                f"records {first} to {first + self._records.size} are not a part of {of} records; give first, the "
                "place of the first record that this process holds, and of, the number of records of all processes"
            )
        self._of = of
        self._own = range(first, first + self._records.size)

    def __repr__(self) -> str:
        return f"OwnRecords(first={self._own.start})"

    @property
    def known_by(self) -> Any:
        """The number of all records: a resumed run may divide them among another number of processes."""
        return np.array([self._of])

    def records(self, collate_fn: Collate | None) -> Records:
        """How they are drawn and loaded."""
        return replace(records_of(self._dataset, collate_fn), size=self._of, own=self._own)


def records_of(dataset: Any, collate_fn: Collate | None = None) -> Records:
    """How the records of a data set are loaded.

    Tensors and arrays, alone or as the columns of a tuple, a dictionary or a ``TensorDataset``, are gathered in one
    indexing call; of arrays in a mapped file (``np.memmap``) these rows alone are read. Any other data set with ``len``
    and indexing, such as a list of records, has its examples fetched and collated as a ``DataLoader`` would, by
    ``collate_fn`` if it is given.

    Raises:
        TypeError: the data set cannot be indexed, so no Poisson batch can be drawn from it; a column is no tensor or
            array; or there is a ``collate_fn`` for columns, which have no records to collate.
        ValueError: its columns differ in length, or a list may stand for records or for columns.
    """
    if isinstance(dataset, OwnRecords):
        return dataset.records(collate_fn)
    if isinstance(dataset, PaddedBuckets):
        padded = _Collated(dataset, collate_fn) if collate_fn else dataset.collate
        return Records(len(dataset), padded, dataset.buckets)
    if isinstance(dataset, TensorDataset) and collate_fn is None and _gives_rows(type(dataset)):
        dataset = dataset.tensors
    columns = _columns_of(dataset)
    if columns is not None:
        if collate_fn is not None:
            raise TypeError(
                "collate_fn makes a microbatch of a list of records, and these are columns: give a list of records, a "
                "TensorDataset, or another data set with __len__ and __getitem__"
            )
        if any(isinstance(column, np.ma.MaskedArray) for column in columns):
            raise TypeError("a column has masked values, which would be trained on; fill them, as by column.filled(0)")
        return Records(_common_length(columns), _Rows(dataset))
    if isinstance(dataset, list) and _are_tensors(dataset):
        _refuse_columns(dataset)
    if isinstance(dataset, tuple) and any(isinstance(part, Tensor | np.ndarray) for part in dataset):
        raise TypeError(
            "a tuple of tensors has columns, but some of these are no tensors or arrays: give each as one, such as "
            "(x, torch.tensor(y)), or a list of records"
        )
    # A table of pandas is indexed by column.
    if isinstance(dataset, IterableDataset) or not _is_indexable(dataset) or hasattr(dataset, "iloc"):
        raise TypeError(
            f"a {type(dataset).__name__} has no length and index by record, so its records cannot be drawn one by one; "
            "pass a data set with __len__ and __getitem__ (not a DataLoader: it has a sampler of its own)"
        )
    return Records(len(dataset), _Collated(dataset, collate_fn or _collate))


def each_record(dataset: Any) -> Iterator[Any]:
    """The records one by one; of columns, the rows, each in the form of the data set.

    Raises:
        TypeError: other processes hold some of them.
    """
    if isinstance(dataset, OwnRecords):
        raise TypeError("users of OwnRecords are given as a list of ids, one for each record of all processes")
    if isinstance(dataset, Mapping):
        columns = {name: torch.as_tensor(column) for name, column in dataset.items()}
        yield from ({name: column[i] for name, column in columns.items()} for i in range(records_of(dataset).size))
    elif isinstance(dataset, tuple) and dataset and _are_tensors(dataset):
        yield from zip(*map(torch.as_tensor, dataset), strict=True)
    else:
        yield from (dataset[i] for i in range(records_of(dataset).size))


def _gives_rows(kind: type[Any]) -> bool:
    """Whether a kind of ``TensorDataset`` gives the rows of its tensors, and no code of its own changes them."""
    own = "__getitem__", "__getitems__", "__len__"
    return all(getattr(kind, name, None) is getattr(TensorDataset, name, None) for name in own)


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


def _columns_of(dataset: Any) -> list[Tensor | np.ndarray] | None:
    """The columns of a data set that has its records in columns.

    Raises:
        TypeError: a dictionary holds something else.
    """
    if isinstance(dataset, Tensor | np.ndarray):
        return [dataset]
    if isinstance(dataset, tuple) and dataset and _are_tensors(dataset):
        return list(dataset)
    if not isinstance(dataset, Mapping):
        return None
    for name, column in dataset.items():
        if not isinstance(column, Tensor | np.ndarray):
            raise TypeError(
                f"{name!r} of the data set is a {type(column).__name__}, not a column: give tensors or arrays by name, "
                "or of several data sets (a DatasetDict) the one to train on"
            )
    return list(dataset.values())


class _Rows:
    """Rows of one column, or of each column of a tuple or a dictionary."""

    def __init__(self, columns: Any) -> None:
        self._columns = dict(columns) if isinstance(columns, Mapping) else columns

    def __getstate__(self) -> Any:
        return _each(self._columns, MappedFile.of)  # a process that loads records maps the file itself

    def __setstate__(self, columns: Any) -> None:
        self._columns = _each(columns, lambda column: column.array() if isinstance(column, MappedFile) else column)

    def __call__(self, at: np.ndarray) -> Any:
        return _each(self._columns, lambda column: _rows(column, at))


def may_draw(gather: Gather) -> bool:
    """Whether loading records runs code of the user, which may draw random numbers; rows of columns draw none."""
    return not isinstance(gather, _Rows)


def _each(columns: Any, change: Callable[[Any], Any]) -> Any:
    if isinstance(columns, dict):
        return {name: change(column) for name, column in columns.items()}
    return tuple(map(change, columns)) if isinstance(columns, tuple) else change(columns)


def _rows(column: Any, at: np.ndarray) -> Tensor:
    if isinstance(column, np.ndarray):
        return torch.as_tensor(np.asarray(column)[at])
    return column[torch.as_tensor(at, device=column.device)]


class _Collated:
    """Records of a data set that is indexed by record, collated."""

    def __init__(self, dataset: Any, collate: Collate) -> None:
        self._dataset = dataset
        self._collate = collate

    def __call__(self, at: np.ndarray) -> Any:
        fetch_many = getattr(self._dataset, "__getitems__", None)
        if fetch_many is not None:
            return self._collate(fetch_many(at.tolist()))
        return self._collate([self._dataset[index] for index in at.tolist()])


def _common_length(columns: Sequence[Sized]) -> int:
    lengths = {len(column) for column in columns}
    if len(lengths) != 1:
        raise ValueError(f"the columns of the data set differ in length: {sorted(lengths)}")
    return lengths.pop()


def _collate(records: list[Any]) -> Any:
    """The records as one microbatch.

    Raises:
        ValueError: they differ in their fields, or in the type or shape of one.
    """
    check_one_form(records, _PAD)
    return default_collate(records)
