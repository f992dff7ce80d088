"""Tensors in nested values: lists, tuples, mappings of any class, and dataclasses."""

from __future__ import annotations

import copy
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import fields, is_dataclass
from typing import Any

from torch import Tensor


def tensors_in(value: object) -> Iterator[Tensor]:
    """Every tensor in a nested value, in the order in which :func:`map_tensors` meets them."""
    if isinstance(value, Tensor):
        yield value
    for part in _parts(value):
        yield from tensors_in(part)


def others_in(value: object) -> Iterator[object]:
    """Everything in a nested value that is neither a tensor nor a container."""
    if not isinstance(value, Tensor) and not _is_container(value):
        yield value
    for part in _parts(value):
        yield from others_in(part)


def map_tensors(value: Any, change: Callable[[Tensor], Tensor]) -> Any:
    """The same nested value with ``change`` applied to every tensor; containers keep their classes."""
    if isinstance(value, Tensor):
        return change(value)
    if isinstance(value, Mapping):
        items = {key: map_tensors(part, change) for key, part in value.items()}
        return items if type(value) is dict else type(value)(items)  # pyright: ignore[reportCallIssue]
    if type(value) in (list, tuple):
        return type(value)([map_tensors(part, change) for part in value])
    if isinstance(value, tuple) and hasattr(value, "_fields"):
        return type(value)(*[map_tensors(part, change) for part in value])
    if is_dataclass(value) and not isinstance(value, type):
        changed = copy.copy(value)
        for field in fields(value):
            object.__setattr__(changed, field.name, map_tensors(getattr(value, field.name), change))
        return changed
    return value


def with_tensors(value: Any, tensors: Sequence[Tensor]) -> Any:
    """The same nested value with these tensors in the place of those of :func:`tensors_in`."""
    following = iter(tensors)
    return map_tensors(value, lambda _: next(following))


def _is_container(value: object) -> bool:
    return (
        isinstance(value, Mapping)
        or type(value) in (list, tuple)
        or (isinstance(value, tuple) and hasattr(value, "_fields"))
        or (is_dataclass(value) and not isinstance(value, type))
    )


def _parts(value: Any) -> Iterator[object]:
    if isinstance(value, Tensor) or not _is_container(value):
        return
    if isinstance(value, Mapping):
        yield from value.values()
    elif is_dataclass(value):
        yield from (getattr(value, field.name) for field in fields(value))
    else:
        yield from value
