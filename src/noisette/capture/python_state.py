"""What a call of the loss may read in Python: a graph is used only while all of it is as it was when it was traced.

A graph has fixed what Python code decided: a branch on ``model.training``, a temperature in an attribute, the weight of
a term in a global name. This module takes down these values, so that a change of one of them needs another graph.
"""

from __future__ import annotations

import types
from collections.abc import Callable, Hashable, Iterator, Mapping
from functools import cache, partial
from typing import Any

import torch
from torch import Tensor, nn

# What recurrent layers keep of their weights, and make anew where these are new in each call, as noisy ones are.
_DERIVED = {"_flat_weights", "_flat_weight_refs"}
_PLAIN = {type(None), bool, int, float, complex, str, bytes, torch.dtype, torch.device, torch.Size}
_DEEPEST = 4  # objects within objects that are followed
_WIDEST = 64  # entries of a container that are looked at
# Packages whose global names are constants, and whose objects, unless they are modules, are not followed.
_INSTALLED = {"torch", "noisette", "transformers", "peft", "timm", "numpy", "builtins"}


def python_state(model: nn.Module, *called: Callable[..., Any]) -> tuple[Hashable, ...]:
    """The plain values, and the identities of all else, that the model and these functions can reach.

    Followed are all attributes of modules; closures, defaults and global names of functions; containers, and of the
    user's own objects the attributes whose names occur in the code of these functions. Not followed are installed
    packages, and modules that say ``refreshed_from_public_data``.
    """
    walk = _Walk()
    for function in called:
        walk.visit(function, _DEEPEST)
    for part in model.modules():
        walk.visit(part, _DEEPEST)
    return tuple(walk.found)


class _Walk:
    """Values met so far, each object once."""

    def __init__(self) -> None:
        self.found: list[Hashable] = []
        self._seen: set[int] = set()
        self._names: set[str] = set()  # that occur in the code of the functions met so far

    def visit(self, value: Any, depth: int) -> None:
        """Take down a value, and what it holds."""
        kind = type(value)
        if kind in _PLAIN:
            self.found.append(kind)
            self.found.append(value if value == value else "not a number")
            return
        if isinstance(value, Tensor):
            self.found += (id(value), value.requires_grad, value.dtype)
            return
        if kind is types.FunctionType:
            self.found.append(value.__code__)  # a function may be made anew in each call, from the same code
            self._names |= _names_in(value.__code__)
        else:
            self.found.append(id(value))
        if depth and id(value) not in self._seen:
            self._seen.add(id(value))
            for inner in self._inside(value):
                self.visit(inner, depth - 1)

    def _inside(self, value: Any) -> Iterator[Any]:
        """What an object holds that its behaviour may depend on."""
        if isinstance(value, nn.Module):
            yield from _of_module(value)
        elif isinstance(value, types.FunctionType):
            yield from _of_function(value)
        elif isinstance(value, types.MethodType):
            yield value.__func__
            yield value.__self__
        elif isinstance(value, partial):
            yield from (value.func, value.args, value.keywords)
        elif isinstance(value, Mapping | list | tuple | set | frozenset):
            yield len(value)
            if len(value) <= _WIDEST:
                yield from value
                yield from value.values() if isinstance(value, Mapping) else ()
        elif not isinstance(value, types.ModuleType | type) and not _is_installed(type(value)):
            yield from self._of_object(value)

    def _of_object(self, value: Any) -> Iterator[Any]:
        """The attributes of an object of the user's that the code met so far names, also that of its methods."""
        names, methods = self._names, _methods_of(type(value))
        for _ in range(_DEEPEST):
            names = names.union(*(methods[name] for name in names if name in methods))
        self._names = names
        yield from (held for name, held in getattr(value, "__dict__", {}).items() if name in names)


def _of_module(module: nn.Module) -> Iterator[Any]:
    if getattr(type(module), "refreshed_from_public_data", False):
        yield module.training
        return
    for name, value in vars(module).items():
        if name in _DERIVED:
            continue
        if type(value) is not dict:
            if not isinstance(value, Mapping) or len(value):
                yield value
        elif value:
            yield from value.values()


def _of_function(function: types.FunctionType) -> Iterator[Any]:
    yield function.__defaults__
    yield function.__kwdefaults__
    for cell in function.__closure__ or ():
        yield cell.cell_contents if _is_filled(cell) else None
    if not _is_installed(function):
        for name in function.__code__.co_names:
            yield function.__globals__.get(name)


def _is_filled(cell: types.CellType) -> bool:
    try:
        return cell.cell_contents is not cell
    except ValueError:
        return False


def _is_installed(what: Any) -> bool:
    return (what.__module__ or "").partition(".")[0] in _INSTALLED


@cache
def _names_in(code: types.CodeType) -> frozenset[str]:
    """The names of attributes and globals in a function's code, also in the functions that it defines."""
    inner = [_names_in(constant) for constant in code.co_consts if isinstance(constant, types.CodeType)]
    return frozenset(code.co_names).union(*inner)


@cache
def _methods_of(kind: type) -> dict[str, frozenset[str]]:
    """For each method or property of a class, the names in its code."""
    found: dict[str, frozenset[str]] = {}
    for base in reversed(kind.__mro__):
        for name, held in vars(base).items():
            function = held.fget if isinstance(held, property) else getattr(held, "__func__", held)
            if isinstance(function, types.FunctionType):
                found[name] = _names_in(function.__code__)
    return found
