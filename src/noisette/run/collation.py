"""Records become rows of tensors, each one alone; buckets of records of similar length."""

from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

import numpy as np
import torch
from torch import Tensor
from torch.nn.utils.rnn import PackedSequence
from torch.utils._pytree import tree_flatten
from torch.utils.data import default_collate

from noisette.core.trees import children, leaves, map_leaves, tensors

_NUMERIC = "biufc"  # kinds of arrays that become tensors
_PLAIN = frozenset((int, float, bool, str, bytes, type(None)))
_WITHOUT_PARTS = _PLAIN | {Tensor, np.ndarray}
_ONE_SHAPE = (
    ": give noisette.PaddedBuckets(dataset, edges=[...], pad=...) as the data set (also of the DataLoader of an Opacus "
    "loop; a collate_fn that pads may stay), or pad each record to one length, as by padding='max_length'. Graphs, and "
    "others without a common shape, come one at a time from batch.microbatches(1) or max_physical_batch_size=1"
)


def collated(records: list[Any], remedy: str = _ONE_SHAPE) -> Any:
    """The records as one microbatch: each is collated alone by ``default_collate``, then they are :func:`joined`."""
    if len(set(map(_form, records))) == 1:  # one call takes a fraction of the time, and treats each by itself
        return default_collate(records)
    return joined([default_collate([one]) for one in records], remedy)


def _form(value: Any) -> object:
    """The containers, keys and types of a record, and the shapes of its arrays; masked values are refused."""
    kind = type(value)
    if kind in (list, tuple) and _PLAIN.issuperset(map(type, value)):  # as of token ids, which are many
        return kind, *map(type, value)
    if kind in (Tensor, np.ndarray):
        return kind, value.dtype, value.shape
    if isinstance(value, Mapping):
        return kind, *((key, _form(part)) for key, part in value.items())
    if isinstance(value, list | tuple):
        return kind, *map(_form, value)
    _check_unmasked(value)
    return kind


def joined(microbatches: list[Any], remedy: str = _ONE_SHAPE) -> Any:
    """Microbatches of one record each as one: tensors one below the other, of other values a list, or ``None`` for all.

    A tensor has its record on the first axis, or no axis at all. What differs in fields, types or shapes, or is masked,
    is a ValueError; of shapes it ends with ``remedy``.

    Guarantee: the row of a record is a function of that record alone.
    """
    if len(microbatches) == 1:
        return map_leaves(_with_row, microbatches[0])
    return _at_each_place(microbatches, remedy)


def row_of(microbatch: Mapping[str, Any]) -> dict[str, Any]:
    """The only row of a microbatch that was made of one record, without fields that are ``None``."""
    named = {name: value for name, value in microbatch.items() if value is not None}
    return {name: _at_each_place([value], _ONE_SHAPE, name)[0] for name, value in named.items()}


Values = list[Any]  # of one place in all records


def _at_each_place(values: Values, remedy: str, name: object = None) -> Any:
    """The containers of the first record, with the rows of all at each place; those without tensors are not opened."""
    if all(type(value) in (list, tuple) and not tensors(map_leaves(_as_tensor, value)) for value in values):
        return [value[0] for value in values] if {*map(len, values)} == {1} else values
    if (parts := _parts_of_all(values, remedy, name)) is None:
        return _rows(values, remedy, name)
    changed = iter([_at_each_place(column, remedy, _within(name, key)) for key, column in parts.items()])
    return map_leaves(lambda _: next(changed), values[0], is_leaf=lambda inner: inner is not values[0])


def _rows(values: Values, remedy: str, name: object) -> Any:
    """The tensors of all records as one, of which each has its record on the first axis, or no axis; or a list."""
    values = list(map(_as_tensor, values))
    shapes = [tuple(value.shape) for value in values if isinstance(value, Tensor)]
    if not shapes:
        return None if all(value is None for value in values) else values
    for shape in shapes:
        if shape and shape[0] != 1:
            raise ValueError(
                f"collate_fn gives {'a tensor' if name is None else f'the field {name!r}'} of one record the shape "
                f"{shape}, but the first axis is that of the records: put the record on the first axis, in the shape "
                "(1, ...). For graphs, whose nodes are there, take batch.microbatches(1), which leaves them as they are"
            )
    _check_one_type(values, name)
    _check_one_shape(shapes, remedy, name)
    return torch.cat(values) if shapes[0] else torch.stack(values)


def _with_row(value: Any) -> Any:
    """A value of a microbatch of one record, of which an array or a tensor without an axis becomes one with a row."""
    value = _as_tensor(value)
    return value.unsqueeze(0) if isinstance(value, Tensor) and value.dim() == 0 else value


def _as_tensor(value: Any) -> Any:
    _check_unmasked(value)
    is_numeric = isinstance(value, np.ndarray | np.generic) and value.dtype.kind in _NUMERIC
    return torch.as_tensor(value) if is_numeric else value


def _check_unmasked(value: Any) -> None:
    if isinstance(value, np.ma.MaskedArray):
        raise ValueError("a record has masked values, which would be trained on; fill them, as by field.filled(0)")


def _check_one_type(values: Values, name: object) -> None:
    kinds = [f"Tensor of {value.dtype}" if isinstance(value, Tensor) else type(value).__name__ for value in values]
    if len(kinds := list(dict.fromkeys(kinds))) > 1:
        other = f"{_has(name)} different types, such as {kinds[0]} and {kinds[1]}"
        raise ValueError(f"{other}: bring all to that of the first record")


def _check_one_shape(shapes: Sequence[tuple[int, ...]], remedy: str, name: object) -> None:
    if len(different := list(dict.fromkeys(shapes))) > 1:
        what = "different shapes" if name is None else "another shape in some records"
        raise ValueError(f"{_has(name)} {what}, such as {different[0]} and {different[1]}{remedy}")


def _parts_of_all(values: Values, remedy: str, name: object) -> dict[Any, Values] | None:
    """By name, what the values of all records hold one level deeper; ``None`` where no value is a container."""
    opened = [] if _WITHOUT_PARTS.issuperset(map(type, values)) else [_parts(value) for value in values]
    held = [parts for parts in opened if parts is not None]
    if not held:
        return None
    _check_one_type(values, name)
    if isinstance(values[0], list):
        _check_one_shape([(len(parts),) for parts in held], remedy, name)
    names = [tuple(parts) for parts in held]
    if (other := next((found for found in names if found != names[0]), None)) is not None:
        if not (lacking := sorted(set(names[0]) ^ set(other), key=str)):
            raise ValueError(f"{_has(name)} fields in another order in some records: bring them to one order")
        raise ValueError(
            f"some records have no field {_within(name, lacking[0])!r}, and others have: a microbatch has the fields "
            "of its first record. Give all records the same fields"
        )
    return {key: [parts[key] for parts in held] for key in names[0]}


def _parts(value: Any) -> dict[Any, Any] | None:
    if isinstance(value, PackedSequence):
        raise ValueError(f"a PackedSequence holds positions and no rows of records{_ONE_SHAPE}")
    if isinstance(value, list | tuple):
        return dict(enumerate(value))
    if (found := children(value)) is not None:
        return found
    held, _ = tree_flatten(value, is_leaf=lambda inner: inner is not value)
    return None if len(held) == 1 and held[0] is value else dict(enumerate(held))


def _within(name: object, key: object) -> object:
    return key if name is None else f"{name}.{key}"


def _has(name: object) -> str:
    return "the records have" if name is None else f"the field {name!r} has"


Name = int | str | None  # of a field: its place in a tuple, its key in a dictionary, None for a record without fields

_NOT_PADDED = (
    ", and is none of those that are padded: name it among them if it is as long as its record, or give it one shape"
)


class PaddedBuckets:
    """A data set of sequences: each is padded to the bucket of its own length, and a microbatch holds one bucket.

    Padded to the longest record of a batch, every record would have another gradient when a long one joins the batch.

    Args:
        records: has ``len`` and indexing. A record is a sequence, or a tuple or dictionary of fields, some of them
            sequences: tensors, arrays or lists with their positions on the first axis. ``PaddedBuckets`` whose other
            fields have lengths of their own, as a translation has, are records too.
        edges: the length of each bucket, ascending, or one. A sequence is padded at its end to the smallest edge that
            holds it; one longer than the last edge is cut to it. Choose them without looking at private lengths.
        pad: the value that fills up a record that is one sequence, or the first field of a tuple.
            ``{"input_ids": 0, "attention_mask": 0}`` names the fields that are padded, ``{0: 0, 1: -100}`` does so by
            their places in a tuple. All of them have the length of their record; other fields stay as they are.

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

    def __init__(self, records: Any, edges: Sequence[int] | int, *, pad: float | Mapping[int | str, float] = 0) -> None:
        if not (hasattr(records, "__len__") and hasattr(records, "__getitem__")):
            raise TypeError(f"a {type(records).__name__} has no length and index, so its records cannot be padded")
        self.edges = (edges,) if isinstance(edges, int) else tuple(edges)
        are_whole = self.edges and all(type(edge) is int for edge in self.edges) and self.edges[0] >= 1
        if not are_whole or list(self.edges) != sorted(set(self.edges)):
            raise ValueError(f"expected ascending whole numbers of at least one as edges, each once, got {self.edges}")
        self._records, self._pad = records, pad
        self.known_by = records  # by which a resumed run recognises the data set
        lengths = np.fromiter(self._lengths(), dtype=np.int64, count=len(records))
        self._edge_of = np.minimum(np.searchsorted(self.edges, lengths), len(self.edges) - 1)
        shorter = np.flatnonzero((lengths < np.array(self.edges)[self._edge_of]) & (lengths > 0))[:1].tolist()
        self._shorter = [(index, int(lengths[index])) for index in shorter]  # the first record that is filled up
        # The bucket of each record: the number of its edge, or of its pair of edges.
        self.buckets = self._edge_of
        if isinstance(records, PaddedBuckets):
            self.buckets = records.buckets * len(self.edges) + self._edge_of

    def __len__(self) -> int:
        return len(self._records)

    def __getitem__(self, index: int) -> Any:
        record, edge = self._records[index], self.edges[self._edge_of[index]]
        padded: dict[Name, Tensor] = {}
        for name, (sequence, fill) in self._sequences(index, record).items():
            padded[name] = sequence.new_full((edge, *sequence.shape[1:]), fill)
            padded[name][: len(sequence)] = sequence[:edge]
        if isinstance(record, Mapping):
            return dict(record) | padded
        if isinstance(record, tuple):
            return tuple(padded.get(place, value) for place, value in enumerate(record))
        return padded[None]

    def check_collate(self, collate: Callable[[list[Any]], Any]) -> None:
        """Refuse a function that makes lengths, or a mask, of how long a record is: it gets records that are padded."""
        for index, length in self._shorter:
            edge = self.edges[self._edge_of[index]]
            alone = PaddedBuckets([self._records[index]], length, pad=self._pad)
            found = [leaves(collate([one])) for one in (alone[0], self[index])]
            own, padded = ([torch.as_tensor(leaf) for leaf in of if isinstance(leaf, Tensor | int)] for of in found)
            for one, other in zip(own, padded, strict=False):
                expected = (length, edge) if one.shape == other.shape else (1, 1)
                if (one == expected[0]).all() and (other == expected[1]).all():
                    raise ValueError(
                        f"collate_fn takes the length of a record that PaddedBuckets has padded from {length} to "
                        f"{edge}: let the data set give it, as in (ids, len(ids), label), or a mask of ones with "
                        "pad={0: 0, 1: 0}; or compare with the pad, as by ids != 0"
                    )

    def collate(self, at: np.ndarray) -> Any:
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
        columns = dict(enumerate(record)) if isinstance(record, tuple) else {None: record}
        fields: Mapping[Any, Any] = record if isinstance(record, Mapping) else columns
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
    """A sequence as a tensor; an empty one, as of token ids, has whole numbers."""
    tensor = torch.empty(0, dtype=torch.int64) if isinstance(value, list) and not value else torch.as_tensor(value)
    if not tensor.dim():
        raise ValueError(f"expected a sequence with its positions on the first axis, got the number {tensor.item()}")
    return tensor
