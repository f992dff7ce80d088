"""Records as one microbatch: each in the form that it has by itself, so that no record decides how others are computed.

Where records differed in form, the first one would decide which fields, and in which precision, all others are computed
with. Where a function saw several records, one could pad, sort or normalise the others: one record more would change
the losses of all.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import torch
from torch import Tensor
from torch.nn.utils.rnn import PackedSequence
from torch.utils._pytree import tree_flatten
from torch.utils.data import default_collate

from noisette.core.trees import map_leaves, tensors

_ALIKE = {"int64": "int", "bool_": "bool"}  # NumPy's numbers that become tensors of one type with Python's
_NUMERIC = "biufc"  # kinds of arrays that become tensors
_PLAIN = frozenset((int, float, bool, str, bytes, type(None)))
_WITHOUT_PARTS = _PLAIN | {Tensor, np.ndarray}
_ONE_SHAPE = (
    ": pad sequences with noisette.PaddedBuckets(records, edges, pad=...), or bring each record to one shape. Graphs, "
    "and other records that have no common shape, come one at a time from batch.microbatches(1)"
)


def collated(records: list[Any], remedy: str = _ONE_SHAPE) -> Any:
    """The records as one microbatch, by ``default_collate``, which then treats each record by itself.

    Args:
        records: of the microbatch.
        remedy: what to do with fields that differ in shape, after a colon or a comma.

    Raises:
        ValueError: they differ in their fields, in the type of one or in its shape; or values are masked.
    """
    check_one_form(records, remedy)
    return default_collate(records)


def joined(microbatches: list[Any]) -> Any:
    """Microbatches of one record each as one: tensors one below the other, and of other values a list.

    A tensor has its record on the first axis, or no axis at all. Arrays become tensors. Of a value that is no tensor,
    the list has one entry for each record; lists of one such value follow one another, and ``None`` for all stays. A
    microbatch that is alone is given as it is, but for arrays and tensors without an axis.

    Args:
        microbatches: each made of one record alone, as nested values.

    Guarantee: the row of a record is a function of that record alone.

    Raises:
        ValueError: they differ in their fields, in the type of a tensor or in its shape; a tensor has not the record on
            its first axis; or values are masked.
    """
    return _joined(microbatches, None) if len(microbatches) > 1 else map_leaves(_with_row, microbatches[0])


def row_of(microbatch: Mapping[str, Any]) -> dict[str, Any]:
    """The only row of a microbatch that was made of one record, without fields that are ``None``.

    Raises:
        ValueError: a tensor has not the record on its first axis.
    """
    return {name: _joined([value], name)[0] for name, value in microbatch.items() if value is not None}


def check_one_form(values: list[Any], remedy: str, name: object = None) -> None:
    """Check that the records of a microbatch, or the parts of them that have a name, have one form.

    Raises:
        ValueError: as of :func:`collated`.
    """
    if _are_plain_alike(values):
        return
    parts = _parts_of_all(values, remedy, name)
    if parts is None:
        _check_alike(values, remedy, name)
    for key, column in (parts or {}).items():
        check_one_form(column, remedy, _within(name, key))


def _joined(values: list[Any], name: object) -> Any:
    first = values[0]
    if all(map(_is_without_tensors, values)):
        return [value[0] for value in values] if {*map(len, values)} == {1} else values
    parts = _parts_of_all(values, _ONE_SHAPE, name)
    if parts is not None:
        columns = iter([_joined(column, _within(name, key)) for key, column in parts.items()])
        return map_leaves(lambda _: next(columns), first, is_leaf=lambda inner: inner is not first)
    values = list(map(_as_tensor, values))
    shapes = [tuple(value.shape) for value in values if isinstance(value, Tensor)]
    if not shapes:
        return None if all(value is None for value in values) else values
    for shape in shapes:
        _check_row(shape, name)
    _check_alike(values, _ONE_SHAPE, name)
    return torch.cat(values) if shapes[0] else torch.stack(values)


def _are_plain_alike(values: list[Any]) -> bool:
    """Whether the values are lists or tuples of texts and numbers of the same types, as of token ids of one length."""
    if not values or type(values[0]) not in (list, tuple) or not _PLAIN.issuperset(map(type, values[0])):
        return False
    return len({(type(value), *map(type, value)) for value in values}) == 1


def _is_without_tensors(value: Any) -> bool:
    return type(value) in (list, tuple) and not tensors(map_leaves(_as_tensor, value))


def _with_row(value: Any) -> Any:
    """A value of a microbatch of one record, of which an array or a tensor without an axis becomes one with a row."""
    value = _as_tensor(value)
    return value.unsqueeze(0) if isinstance(value, Tensor) and value.dim() == 0 else value


def _as_tensor(value: Any) -> Any:
    """An array of numbers as a tensor; any other value as it is."""
    _check_unmasked(value)
    is_numeric = isinstance(value, np.ndarray | np.generic) and value.dtype.kind in _NUMERIC
    return torch.as_tensor(value) if is_numeric else value


def _check_unmasked(value: Any) -> None:
    if isinstance(value, np.ma.MaskedArray):
        raise ValueError("a record has masked values, which would be trained on; fill them, as by field.filled(0)")


def _check_row(shape: tuple[int, ...], name: object) -> None:
    """Check that a tensor which was made of one record has it on the first axis, or has no axis."""
    if shape and shape[0] != 1:
        raise ValueError(
            f"collate_fn gives {'a tensor' if name is None else f'the field {name!r}'} of one record the shape "
            f"{shape}, but the first axis is that of the records: put the record on the first axis, in the shape "
            "(1, ...). For graphs, whose nodes are there, take batch.microbatches(1), which gives what collate_fn "
            "returns as it is"
        )


def _check_alike(values: list[Any], remedy: str, name: object) -> None:
    """Check that values without parts have one type, and tensors or arrays one shape."""
    for value in values:
        _check_unmasked(value)
    _check_one_type(values, name)
    if values and isinstance(values[0], Tensor | np.ndarray):
        _check_one_shape([tuple(value.shape) for value in values], remedy, name)


def _check_one_type(values: list[Any], name: object) -> None:
    if len(kinds := list(dict.fromkeys(map(_kind, values)))) > 1:
        raise ValueError(
            f"{_has(name)} different types, such as {kinds[0]} and {kinds[1]}: a microbatch has the type of its first "
            "record. Bring them to one type"
        )


def _check_one_shape(shapes: Sequence[tuple[int, ...]], remedy: str, name: object) -> None:
    if len(different := list(dict.fromkeys(shapes))) > 1:
        what = "different shapes" if name is None else "another shape in some records"
        raise ValueError(f"{_has(name)} {what}, such as {different[0]} and {different[1]}{remedy}")


def _parts_of_all(values: list[Any], remedy: str, name: object) -> dict[Any, list[Any]] | None:
    """By name, what the values of all records hold one level deeper; ``None`` where no value is a container.

    Raises:
        ValueError: they are not containers of one type with the same names in one order.
    """
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
    """What a container holds, by name; ``None`` of a value that is none."""
    if isinstance(value, PackedSequence):
        raise ValueError(f"a PackedSequence holds positions and no rows of records{_ONE_SHAPE}")
    if isinstance(value, Mapping):
        return dict(value)
    if isinstance(value, list | tuple):
        return dict(enumerate(value))
    if dataclasses.is_dataclass(value) and not isinstance(value, type):
        names = [field.name for field in dataclasses.fields(value)]
        return {name: getattr(value, name) for name in names if hasattr(value, name)}
    held, _ = tree_flatten(value, is_leaf=lambda inner: inner is not value)
    return None if len(held) == 1 and held[0] is value else dict(enumerate(held))


def _within(name: object, key: object) -> object:
    return key if name is None else f"{name}.{key}"


def _has(name: object) -> str:
    return "the records have" if name is None else f"the field {name!r} has"


def _kind(value: Any) -> str:
    kind = type(value).__name__
    return f"{kind} of {value.dtype}" if isinstance(value, Tensor | np.ndarray) else _ALIKE.get(kind, kind)
