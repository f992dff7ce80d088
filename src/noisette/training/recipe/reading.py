"""Dataclasses from tables of plain values, with all problems reported at once."""

from __future__ import annotations

import difflib
from collections.abc import Mapping
from dataclasses import MISSING, Field, fields, is_dataclass
from types import UnionType
from typing import Any, Union, get_args, get_origin, get_type_hints


def read_fields(owner: type, table: Mapping[str, Any], where: str, problems: list[str]) -> dict[str, Any]:
    """Keyword arguments for a dataclass from a table, opening nested dataclasses; problems are collected."""
    known = {f.name: f for f in fields(owner)}
    types = get_type_hints(owner)
    values: dict[str, Any] = {}
    for key, value in table.items():
        if key not in known:
            close = difflib.get_close_matches(key, known, n=1)
            hint = f"did you mean {close[0]!r}?" if close else f"known here: {', '.join(known)}"
            problems.append(f"unknown key {where}{key}: {hint}")
        elif is_dataclass(types[key]):
            if isinstance(value, dict):
                values[key] = types[key](**read_fields(types[key], value, f"{where}{key}.", problems))
            else:
                problems.append(f"{where}{key} is a table: write [{key}]")
        else:
            values[key] = _typed(value, types[key], known[key], f"{where}{key}", problems)
    return values


def _typed(value: Any, expected: Any, known: Field[Any], where: str, problems: list[str]) -> Any:
    """The value of a field, with lists as tuples, and whole numbers as floats where the type is float.

    A value of another type is added to the problems and returned as it is.
    """
    if isinstance(value, list):
        value = tuple(tuple(item) if isinstance(item, list) else item for item in value)
    if isinstance(value, dict):
        value = {key: tuple(item) if isinstance(item, list) else item for key, item in value.items()}
    if type(value) is int and float in (expected, *_choices(expected)):
        return float(value)
    if not _fits(value, expected):
        default = "" if known.default is MISSING else f", like {known.default!r}"
        problems.append(f"{where} = {value!r} is not of the expected type{default}")
    return value


def _fits(value: Any, kind: Any) -> bool:
    """Whether a plain value, with all that it holds, is of a type; whole numbers pass for floats, and bools do not."""
    origin, parts = get_origin(kind), get_args(kind)
    if kind is Any:
        return True
    if origin is tuple:
        kinds = parts[:1] * len(value) if parts[-1] is Ellipsis and isinstance(value, tuple) else parts
        return isinstance(value, tuple) and len(value) == len(kinds) and all(map(_fits, value, kinds))
    if origin is Mapping:
        return isinstance(value, dict) and all(_fits(item, parts[1]) for item in value.values())
    if choices := _choices(kind):
        return any(_fits(value, choice) for choice in choices)
    return type(value) is kind or (type(value) is int and kind is float)


def _choices(kind: Any) -> tuple[Any, ...]:
    """The types of which a union is; none if it is not one."""
    return get_args(kind) if get_origin(kind) in (Union, UnionType) else ()
