"""Sequences of differing lengths: each is padded to the bucket of its own length, whatever else is in the batch."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import numpy as np
import torch
from torch import Tensor

from noisette.sampling.collation import collated

Name = int | str | None  # of a field: its place in a tuple, its key in a dictionary, None for a record without fields

_NOT_PADDED = (
    ", and is none of those that are padded: name it among them if it is as long as its record, or bring it to one "
    "shape by itself"
)


class PaddedBuckets:
    """A data set of sequences: each is padded to the bucket of its own length, and a microbatch holds one bucket.

    Padding to the longest record of a batch shows each record the length of another one. A model that averages over all
    positions, or counts them, then gives every record another gradient when one long record joins the batch.

    Args:
        records: has ``len`` and indexing. A record is a sequence, or a tuple or dictionary of fields, some of them
            sequences. A sequence is a tensor, an array or a list with its positions on the first axis, such as the
            token ids of a text. ``PaddedBuckets`` whose other fields have lengths of their own, as a translation has,
            are records too: a microbatch then holds one pair of buckets.
        edges: the lengths of the buckets, ascending. A sequence is padded at its end to the smallest edge that holds
            it; one longer than the last edge is cut to it. Choose them without looking at private lengths.
        pad: the value that fills up a sequence. A number pads a record that is one sequence, or the first field of a
            tuple. ``{"input_ids": 0, "attention_mask": 0}`` names the fields that are padded, ``{0: 0, 1: -100}`` does
            so by their places in a tuple. All of them have the length of their record; other fields stay as they are.

    Guarantee: the form in which a record is handed out is a function of that record and ``edges`` alone. The number of
    microbatches and their shapes depend on private lengths; none is released.

    Raises:
        TypeError: ``records`` cannot be indexed, or the fields to pad are not named.
        ValueError: ``edges`` are not ascending whole numbers from one on, or a record lacks a field, has fields of
            different lengths, or differs from the first in the type or shape of a position.

    >>> texts = PaddedBuckets([torch.tensor([5, 6]), torch.tensor([7, 8, 9])], edges=(2, 4))
    >>> texts[0].tolist(), texts[1].tolist()
    ([5, 6], [7, 8, 9, 0])
    """

    def __init__(self, records: Any, edges: Sequence[int], *, pad: float | Mapping[int | str, float] = 0) -> None:
        if not (hasattr(records, "__len__") and hasattr(records, "__getitem__")):
            raise TypeError(f"a {type(records).__name__} has no length and index, so its records cannot be padded")
        self.edges = tuple(edges)
        if not self.edges or any(type(edge) is not int for edge in self.edges) or self.edges[0] < 1:
            raise ValueError(f"expected whole numbers of at least one as edges, got {self.edges}")
        if list(self.edges) != sorted(set(self.edges)):
            raise ValueError(f"expected ascending edges, each once, got {self.edges}")
        self._records = records
        self._pad = pad
        lengths = np.fromiter(self._lengths(), dtype=np.int64, count=len(records))
        self._edge_of = np.minimum(np.searchsorted(self.edges, lengths), len(self.edges) - 1)
        # The bucket of each record: the number of its edge, or of its pair of edges.
        self.buckets = self._edge_of
        if isinstance(records, PaddedBuckets):
            self.buckets = records.buckets * len(self.edges) + self._edge_of

    def __len__(self) -> int:
        return len(self._records)

    def __getitem__(self, index: int) -> Any:
        """The record with this index, padded to the bucket of its own length."""
        record, edge = self._records[index], self.edges[self._edge_of[index]]
        padded = {
            name: _padded(sequence, edge, fill) for name, (sequence, fill) in self._sequences(index, record).items()
        }
        if isinstance(record, Mapping):
            return dict(record) | padded
        if isinstance(record, tuple):
            return tuple(padded.get(place, value) for place, value in enumerate(record))
        return padded[None]

    @property
    def known_by(self) -> Any:
        """The records, by which a resumed run recognises the data set."""
        return self._records

    def collate(self, at: np.ndarray) -> Any:
        """The records with these indices as one microbatch; all of them are of one bucket.

        Raises:
            ValueError: a field that is not padded has another shape in some record, or records differ in their fields.
        """
        return collated([self[index] for index in at.tolist()], _NOT_PADDED)

    def _lengths(self) -> Iterator[int]:
        """The length of each record, checked to have the same fields as the first record."""
        first: dict[Name, tuple[Any, ...]] = {}
        for index in range(len(self._records)):
            sequences = {name: one for name, (one, _) in self._sequences(index, self._records[index]).items()}
            found = {name: (sequence.dtype, *sequence.shape[1:]) for name, sequence in sequences.items()}
            first = first or found
            if found != first:
                raise ValueError(f"the positions of record {index} have types and shapes {found}, not {first}")
            lengths = {name: len(sequence) for name, sequence in sequences.items()}
            if len(set(lengths.values())) != 1:
                raise ValueError(f"the padded fields of record {index} differ in length: {lengths}")
            yield next(iter(lengths.values()))

    def _sequences(self, index: int, record: Any) -> dict[Name, tuple[Tensor, float]]:
        """By name, each field of this record that is a sequence, and what fills it up."""
        fields: Mapping[Any, Any] = {None: record}
        if isinstance(record, Mapping | tuple):
            fields = record if isinstance(record, Mapping) else dict(enumerate(record))
        if isinstance(self._pad, Mapping):
            fills: Mapping[Any, float] = self._pad
        elif isinstance(record, Mapping):
            raise TypeError(
                f"name the fields of record {index} that are padded, such as "
                f'pad={{"input_ids": 0, "attention_mask": 0}}; it has {", ".join(map(str, record))}'
            )
        else:
            fills = {next(iter(fields), 0): self._pad}
        if missing := [name for name in fills if name not in fields]:
            raise ValueError(f"record {index} has no field {missing[0]!r}, which is to be padded")
        return {name: (_sequence(fields[name]), fill) for name, fill in fills.items()}


def _sequence(value: Any) -> Tensor:
    """A sequence as a tensor; an empty list is one of whole numbers, as of token ids.

    Raises:
        ValueError: it has no first axis.
    """
    tensor = torch.empty(0, dtype=torch.int64) if isinstance(value, list) and not value else torch.as_tensor(value)
    if not tensor.dim():
        raise ValueError(f"expected a sequence with its positions on the first axis, got the number {tensor.item()}")
    return tensor


def _padded(sequence: Tensor, edge: int, fill: float) -> Tensor:
    """The sequence cut or filled up to ``edge`` positions."""
    padded = sequence.new_full((edge, *sequence.shape[1:]), fill)
    padded[: len(sequence)] = sequence[:edge]
    return padded
