"""What the modules of a model hold in Python, put back after a call."""

from __future__ import annotations

import types
from collections import OrderedDict, deque
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import numpy as np
from torch import Tensor, nn

_DEEPEST = 3  # containers and objects within attributes that are followed
_WIDEST = 1024  # entries of a container that is copied
_FIXED = (
    *(Tensor, nn.Module, np.ndarray, type, types.ModuleType, types.FunctionType, types.MethodType),
    *(types.BuiltinFunctionType, str, bytes, int, float, complex, bool, type(None)),
)
_Restore = Callable[[], None]


@contextmanager
def modules_kept_if_it_fails(model: nn.Module) -> Iterator[None]:
    """What a call that fails has left in modules is put back."""
    restore = restored_by(model)
    try:
        yield
    except Exception:
        restore()
        raise


def restored_by(model: nn.Module) -> _Restore:
    """A function that gives each module the attributes that it has now.

    Containers in attributes get their entries back, and objects their own attributes, as a configuration that all
    modules share. Values of tensors stay as they are.
    """
    steps: list[_Restore] = []
    met: dict[int, Any] = {}  # held, so that no other object gets the same id
    for module in model.modules():
        steps.append(_of_mapping(vars(module)))
        for value in list(vars(module).values()):
            _take_down(value, steps, met, _DEEPEST)

    def restore() -> None:
        for step in steps:
            step()

    return restore


def _take_down(value: Any, steps: list[_Restore], met: dict[int, Any], depth: int) -> None:
    if isinstance(value, _FIXED) or id(value) in met or not depth:
        return
    met[id(value)] = value
    inner: list[Any] = []
    if isinstance(value, dict):
        if len(value) <= _WIDEST:
            steps.append(_of_mapping(value))
            inner = list(value.values())
    elif isinstance(value, list | deque | set):
        if len(value) <= _WIDEST:
            steps.append(_of_collection(value))
            inner = list(value)
    elif isinstance(value, tuple):
        inner = list(value)
    elif type(getattr(value, "__dict__", None)) is dict:
        steps.append(_of_mapping(vars(value)))
        inner = list(vars(value).values())
    for part in inner:
        _take_down(part, steps, met, depth - 1)


def _of_mapping(table: dict[Any, Any]) -> _Restore:
    before = OrderedDict(table)

    def restore() -> None:
        if len(table) != len(before) or any(key not in table or table[key] is not before[key] for key in before):
            table.clear()
            table.update(before)

    return restore


def _of_collection(values: Any) -> _Restore:
    before = list(values)

    def restore() -> None:
        if len(values) != len(before) or any(a is not b for a, b in zip(values, before, strict=True)):
            values.clear()
            values.update(before) if isinstance(values, set) else values.extend(before)

    return restore
