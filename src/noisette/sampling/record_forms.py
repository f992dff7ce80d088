"""The form of a record: its fields, and their types and shapes. The records of a microbatch all have one form.

Where they had several, the first record would decide which fields, and in which precision, all others are computed
with: one record more would change the losses of the others.
"""

from __future__ import annotations

from collections.abc import Hashable, Mapping, Sequence
from typing import Any

import numpy as np
from torch import Tensor

_IN_PARTS = (tuple, list, Mapping)
_NUMBERS = frozenset((bool, int, float))
_ALIKE: Mapping[type, Hashable] = {int: np.int64, bool: np.bool_}  # numbers that become tensors of one type


def check_one_form(records: Sequence[Any], pad: str) -> None:
    """Check that the records of a microbatch have one form.

    Args:
        records: of the microbatch.
        pad: what to do with fields that differ in shape, after a colon or a comma.

    Raises:
        ValueError: they differ in their fields, in the type of one or in its shape; or values are masked.
    """
    forms = {_form(record): record for record in records}
    if len(forms) > 1:
        one, other = list(forms.values())[:2]
        raise ValueError(_difference(one, other, None, pad))


def _form(value: Any) -> Hashable:
    """What the collated microbatch takes over from its first record."""
    kind = type(value)
    if isinstance(value, np.ma.MaskedArray):
        raise ValueError("a record has masked values, which would be trained on; fill them, as by field.filled(0)")
    if isinstance(value, Tensor | np.ndarray):
        return isinstance(value, Tensor), value.dtype, tuple(value.shape)
    if isinstance(value, Mapping):
        return kind, tuple(value), tuple(map(_form, value.values()))
    if isinstance(value, tuple | list):
        kinds = tuple(map(type, value))
        return kind, tuple(map(_ALIKE.get, kinds, kinds)) if _NUMBERS.issuperset(kinds) else tuple(map(_form, value))
    return _ALIKE.get(kind, kind)


def _difference(one: Any, other: Any, name: object, pad: str) -> str:
    """The message for two records of different forms, or for parts of them that have a name."""
    what, has, own = ("the records", "have", "their") if name is None else (f"the field {name!r}", "has", "its")
    if type(one) is type(other) and isinstance(one, _IN_PARTS):
        parts, others = _parts(one), _parts(other)
        if parts.keys() != others.keys() and not isinstance(one, list):
            lacking = sorted(parts.keys() ^ others.keys(), key=str)
            return (
                f"some records have no field {_joined(name, lacking[0])!r}, and others have: a microbatch has the "
                "fields of its first record. Give all records the same fields"
            )
        if parts.keys() == others.keys():
            for key, part in parts.items():
                if _form(part) != _form(others[key]):
                    return _difference(part, others[key], _joined(name, key), pad)
            return f"{what} {has} {own} fields in another order in some records: bring them to one order"
    kinds, other_kinds = _kind(one), _kind(other)
    if kinds != other_kinds:
        return (
            f"{what} {has} different types, such as {kinds} and {other_kinds}: a "
            "microbatch has the type of its first record. Bring them to one type"
        )
    if name is None:
        return f"the records have different shapes, such as {_shape(one)} and {_shape(other)}{pad}"
    return f"{what} has another shape in some records{pad}"


def _parts(value: Any) -> Mapping[Any, Any]:
    return value if isinstance(value, Mapping) else dict(enumerate(value))


def _joined(name: object, key: object) -> object:
    return key if name is None else f"{name}.{key}"


def _kind(value: Any) -> str:
    kind = type(value).__name__
    return f"{kind} of {value.dtype}" if isinstance(value, Tensor | np.ndarray) else kind


def _shape(value: Any) -> tuple[int, ...]:
    return tuple(value.shape) if isinstance(value, Tensor | np.ndarray) else (len(value),)
