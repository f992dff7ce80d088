"""What Python code of a loss and a model reads: a graph is used only while it is what it was when it was traced.

A graph has fixed what Python decided: a branch on ``model.training``, a temperature in an attribute, the weight of a
term in a closure. Only plain values are compared, and no method or property of an object is called. A value that is
missed here makes a graph differ from the step, which comparisons of the two find.
"""

from __future__ import annotations

import types
from collections.abc import Hashable, Iterable, Iterator, Mapping
from contextlib import suppress
from enum import Enum
from functools import lru_cache, partial
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn
from torch.optim import Optimizer
from torch.optim.lr_scheduler import LRScheduler

_PLAIN = frozenset(
    {bool, int, float, complex, str, bytes, type(None), torch.dtype, torch.device, torch.layout, torch.memory_format}
    | {np.bool_, np.int32, np.int64, np.float32, np.float64}
)
_OF_EVERY_MODULE = frozenset(vars(nn.Module())) - {"training"}
_HOOKS = "_forward_hooks", "_forward_pre_hooks"
_LIBRARIES = {"torch", "numpy", "noisette"}  # whose functions read nothing that changes
_DEEPEST, _WIDEST = 4, 32


def python_values(model: nn.Module, reached: Iterable[Any]) -> Hashable:
    """Plain values, and the identities of code, modules and parameters, in a fixed order.

    Args:
        model: modes and plain attributes of all its modules, its hooks, and which parameters train.
        reached: functions that are called, and values given to them. Of a function: closure, defaults and globals that
            its code names; of an optimizer or a scheduler its settings now; of another object the attributes that the
            code names.
    """
    found: list[Hashable] = []
    seen = set[int]()
    _add_modules(model, found, seen)
    for value in reached:
        _add(value, (), _DEEPEST, found, seen)
    return tuple(found)


def _add_modules(root: nn.Module, found: list[Hashable], seen: set[int]) -> None:
    following = [root]
    for module in following:  # grows meanwhile
        if module is None or id(module) in seen:
            continue
        seen.add(id(module))
        found.append(id(module))
        table = vars(module)
        for name, value in table.items():
            if name not in _OF_EVERY_MODULE:
                kind = type(value)
                if kind in _PLAIN or (kind is tuple and _PLAIN.issuperset(map(type, value))):
                    found.append(value)
                elif kind is not dict and kind is not list and not issubclass(kind, Tensor):
                    _add(value, (), 1, found, seen)
        for p in table["_parameters"].values():
            if p is not None:
                found += id(p), p.requires_grad, p.dtype
        for name in _HOOKS:
            found += table[name]
        following += table["_modules"].values()


def _add(value: Any, names: tuple[str, ...], depth: int, found: list[Hashable], seen: set[int]) -> None:
    """Add what a value holds, given the names that occur in the code that reads it."""
    kind = type(value)
    inside: Iterable[Any] = ()
    if kind in _PLAIN:
        found.append(value)
    elif issubclass(kind, nn.Module):
        _add_modules(value, found, seen)
    elif kind is types.FunctionType:
        found.append(value.__code__)
        if str(value.__globals__.get("__name__")).partition(".")[0] not in _LIBRARIES:
            names = _names_in(value.__code__)
            inside = _held_by(value, names)
    elif kind is types.MethodType:
        inside = value.__func__, value.__self__
        names = _names_in(getattr(value.__func__, "__code__", None))
    elif kind is partial:
        inside = value.func, *value.args, *value.keywords.values()
    elif kind is dict or kind is list or kind is tuple:
        found.append(len(value))
        inside = (value.values() if kind is dict else value) if len(value) <= _WIDEST else ()
    elif issubclass(kind, Tensor | Enum):
        found.append(id(value))
    elif issubclass(kind, Optimizer):
        table = _attributes(value)
        groups = table.get("param_groups", ())
        inside = table.get("optimizer"), *(setting for group in groups for setting in group.values())
    elif issubclass(kind, LRScheduler):
        inside = _attributes(value).get("_last_lr", ())
    elif table := _attributes(value):
        names = (*names, *_names_in(_code_of_call(kind)))
        inside = [table[name] for name in names if name in table]
    if depth:
        for part in inside:
            _add(part, names, depth - 1, found, seen)


def _held_by(function: types.FunctionType, names: tuple[str, ...]) -> Iterator[Any]:
    """The closure, the defaults and the globals of a function that its code names."""
    yield from function.__defaults__ or ()
    yield from (function.__kwdefaults__ or {}).values()
    for cell in function.__closure__ or ():
        with suppress(ValueError):  # it is empty
            yield cell.cell_contents
    yield from (function.__globals__[name] for name in names if name in function.__globals__)


def _attributes(value: Any) -> Mapping[str, Any]:
    """The attributes of an object itself, of a class or of a Python module, without code of theirs."""
    try:
        table = object.__getattribute__(value, "__dict__")
    except Exception:  # a property of this name fails, or there are none
        return {}
    return table if type(table) in (dict, types.MappingProxyType) else {}


def _code_of_call(kind: type) -> types.CodeType | None:
    """What runs where an object of this class is called."""
    call = next((vars(base)["__call__"] for base in kind.__mro__ if "__call__" in vars(base)), None)
    return call.__code__ if type(call) is types.FunctionType else None


@lru_cache(maxsize=1024)
def _names_in(code: types.CodeType | None) -> tuple[str, ...]:
    """The names of globals and attributes in code, also in the functions that it defines."""
    if code is None:
        return ()
    inner = [_names_in(constant) for constant in code.co_consts if isinstance(constant, types.CodeType)]
    return tuple(sorted({*code.co_names, *(name for names in inner for name in names)}))
