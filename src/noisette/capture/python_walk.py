"""A walk over all that Python code may read, from the functions that are called and the modules that they get."""

from __future__ import annotations

import argparse
import gc
import sys
import types
from array import array
from collections import OrderedDict, UserList, defaultdict, deque
from collections.abc import Callable, Hashable, Iterable, Iterator, Mapping
from functools import cache, partial
from operator import is_
from queue import Queue
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from noisette.capture.code_names import names_counted, names_read
from noisette.core.randomness import GENERATORS, closure_of, generators_of

_PLAIN = {type(None), bool, int, float, complex, str, bytes, torch.dtype, torch.device, torch.Size}
_NUMBERS_AND_TEXTS = (int, float, complex, str, bytes, np.generic)
_DEEPEST = 16  # objects within objects that are followed
WIDEST = 1024  # entries of a container that are looked at
_FIXED = {"torch", "noisette", "numpy", *sys.stdlib_module_names}  # their names and objects are constants
# Their functions are not read. An assertion in a file of tests refers to the whole of pytest.
_INSTALLED = {*_FIXED, "transformers", "peft", "timm", "lightning", "pytorch_lightning", "torchmetrics", "_pytest"}
# What recurrent layers keep of their weights, and make anew where these are new in each call, as noisy ones are.
_DERIVED = {"_flat_weights", "_flat_weight_refs"}
_OPEN = (types.SimpleNamespace, argparse.Namespace)  # of the library, and for values of the user's
_IN_ATTRIBUTES = (UserList, Queue)  # containers of the library that have their entries in an attribute
_CACHED = type(cache(len))  # a function that keeps its results
# Methods that no call of a loss goes through.
_NOT_CALLED = {
    *("__init__", "__new__", "__post_init__", "__init_subclass__", "__del__", "__repr__", "__str__"),
    *("__getstate__", "__setstate__", "__reduce__", "__reduce_ex__", "__copy__", "__deepcopy__"),
}
_Read = Callable[..., Iterable[Any]]
_BYTES = (array, bytearray, memoryview)  # hold numbers in memory of their own


class StandIn:
    """An object of this library that stands for one of the user's: the walk follows what it holds."""

    def held(self) -> Iterable[Any]:
        """What of the user's object may be read through it."""
        return ()


class Found:
    """Values in the order of a walk, with a hash that is computed once."""

    def __init__(self, values: Iterable[Hashable]) -> None:
        self._values = tuple(values)
        self._hash = hash(self._values)

    def __hash__(self) -> int:
        return self._hash

    def __eq__(self, other: object) -> bool:
        return self is other or (isinstance(other, Found) and self._values == other._values)


class Walk:
    """Values met so far, each object once.

    Args:
        names: that code reads; those of the code that is met are added.
        counted: names that code only counts up; likewise.
        widest: containers of more entries are not looked into.

    Attributes:
        tensors, arrays: met, whose state is read at each call.
        generators: met, which draw random numbers.
        modules: met, which are not walked through.
        meets_generator: whether there is one that goes on with what it has left in its variables.
    """

    def __init__(self, names: set[str], counted: set[str], widest: int = WIDEST) -> None:
        self._widest = widest
        self.names = names
        self.counted = counted
        self.tensors: list[Tensor] = []
        self.arrays: list[np.ndarray] = []
        self.generators: list[object] = []
        self.modules: list[nn.Module] = []
        self.meets_generator = False
        self._values: list[Hashable] = []
        self._seen: dict[int, Any] = {}  # held, so that no other object gets the same id
        self._watched: list[tuple[_Read, tuple[Any, ...], tuple[Any, ...]]] = []
        self._empty: list[Any] = []
        self._is_watchable = True

    def finish(self) -> None:
        """Nothing more is visited."""
        self.found = Found(self._values)
        del self._values

    def is_unchanged(self) -> bool:
        """Whether all that was met holds the very same objects still."""
        if not self._is_watchable or any(self._empty):
            return False
        for read, given, before in self._watched:
            now = tuple(read(*given))
            if len(now) != len(before) or not all(map(is_, now, before)):
                return False
        return True

    def visit(self, value: Any, depth: int = _DEEPEST) -> None:
        """Take down a value, and what it holds."""
        kind = type(value)
        self._values.append(kind)
        if kind in _PLAIN or isinstance(value, _NUMBERS_AND_TEXTS):
            self._values.append(value if value == value else "not a number")
            if kind in _PLAIN:
                return
        if isinstance(value, Tensor):
            self.tensors.append(value)
        elif isinstance(value, np.ndarray):
            self.arrays.append(value)
        elif isinstance(value, GENERATORS):
            self.generators.append(value)
            self._values.append(id(value))
        elif isinstance(value, _BYTES):
            self._values.append(_content_of(value))
            self._is_watchable = False  # they change without another object in their place
        elif isinstance(value, types.FunctionType):
            self._values.append(value.__code__)  # a function may be made anew in each call, from the same code
        elif isinstance(value, types.BuiltinFunctionType):
            self._values.append(value.__name__)
        elif not isinstance(value, types.MethodType | partial | Mapping | list | tuple | set | frozenset | deque):
            self._values.append(id(value))
        if depth and id(value) not in self._seen:
            self._seen[id(value)] = value
            for inner in self._inside(value):
                self.visit(inner, depth - 1)

    def visit_parts(self, root: nn.Module) -> None:
        """Take down a module with all modules in it."""
        parts = list(root.modules())
        self._seen |= {id(part): part for part in parts}
        for part in parts:
            self._values.append(id(part))
            self._visit_all(self._class(type(part)))
            if getattr(type(part), "refreshed_from_public_data", False):
                self._visit_all(self._named(vars(part), ["training"]))
                continue
            table = vars(part)
            self._watch(_entries, table)
            for name, value in table.items():
                if isinstance(value, dict | set | list) and not value:
                    self._empty.append(value)
                elif name not in _DERIVED and (name not in self.counted or name in self.names):
                    self._values.append(name)
                    self.visit(value)

    def _visit_all(self, values: Iterable[Any]) -> None:
        for value in values:
            self.visit(value, _DEEPEST - 1)

    def _watch(self, read: _Read, *given: Any) -> tuple[Any, ...]:
        found = tuple(read(*given))
        self._watched.append((read, given, found))
        return found

    def _inside(self, value: Any) -> Iterable[Any]:
        """What an object holds that its behaviour may depend on."""
        if isinstance(value, nn.Module):
            self.modules.append(value)
            return ()
        if isinstance(value, types.FunctionType):
            return self._of_function(value)
        if isinstance(value, types.MethodType):
            return value.__func__, value.__self__
        if isinstance(value, types.BuiltinFunctionType):
            return () if isinstance(value.__self__, types.ModuleType) else (value.__self__,)
        if isinstance(value, partial):
            return value.func, value.args, value.keywords, vars(value)
        if isinstance(value, _IN_ATTRIBUTES):
            return self._watch(_entries, vars(value))
        if isinstance(value, np.ndarray):
            return self._of_objects(value) if value.dtype.hasobject else ()
        if isinstance(value, np.ufunc):  # perhaps made of a function in Python
            return [held for held in gc.get_referents(value) if isinstance(held, types.FunctionType)]
        if isinstance(value, _CACHED):  # of the results that it keeps only generators: a result more is no change
            self._is_watchable = False
            return value.__wrapped__, *generators_of(value)
        if isinstance(value, np.vectorize):
            return (value.pyfunc,)
        if isinstance(value, Mapping | list | tuple | set | frozenset | deque):
            return self._of_container(value)
        if isinstance(value, types.GeneratorType):
            self.meets_generator |= value.gi_frame is not None
            return ()
        if isinstance(value, StandIn):
            return self._watch(value.held)
        if isinstance(value, types.ModuleType):
            return self._of_python_module(value)
        if isinstance(value, type):
            return self._class(value)
        if isinstance(value, _OPEN) or not _is_of(type(value), _FIXED):
            return self._of_object(value)
        return ()

    def _of_container(self, value: Any) -> Iterable[Any]:
        if len(value) > self._widest:
            entries = value.values() if isinstance(value, Mapping) else value
            return id(value), len(value), *(entry for entry in entries if isinstance(entry, GENERATORS))
        if type(value) in (dict, OrderedDict):
            return len(value), *self._watch(_entries, value)
        if type(value) is list:
            return len(value), *self._watch(tuple, value)
        if not isinstance(value, tuple | frozenset):
            self._is_watchable = False
        made_by = value.default_factory if isinstance(value, defaultdict) else None
        return len(value), made_by, *value, *(value.values() if isinstance(value, Mapping) else ())

    def _of_objects(self, value: np.ndarray) -> Iterable[Any]:
        """The entries of an array, which are exchanged in its own memory; which ones it holds is read with arrays."""
        self._is_watchable = False
        entries = value.ravel().tolist()
        return entries if len(entries) <= self._widest else [one for one in entries if isinstance(one, GENERATORS)]

    def _of_function(self, function: types.FunctionType) -> Iterator[Any]:
        yield from self._watch(_parts, function)
        yield from self._watch(_entries, vars(function))
        if not _is_of(function, _INSTALLED):
            self.names |= names_read(function.__code__)
            self.counted |= names_counted(function.__code__)
            yield from self._named(function.__globals__, sorted(names_read(function.__code__)))

    def _named(self, table: Mapping[str, Any], names: Iterable[str]) -> Iterator[Any]:
        """The entries of these names, whether or not they are there."""
        names = tuple(names)
        for name, value in zip(names, self._watch(_looked_up, table, names), strict=True):
            if value is not None:
                self._values.append(name)
                yield value

    def _of_python_module(self, module: types.ModuleType) -> Iterator[Any]:
        named = self._named(vars(module), sorted(self.names & vars(module).keys()))
        if not _is_of_name(module.__name__, _INSTALLED):
            yield from named
        else:
            self._values += [id(held) for held in named]  # constants, unless someone exchanges them

    def _class(self, kind: type) -> Iterator[Any]:
        """The attributes of a class of the user's that code reads, and the methods that may be called."""
        for base in kind.__mro__:
            if not _is_of(base, _INSTALLED):
                special = {name for name, held in vars(base).items() if name.startswith("__") and callable(held)}
                wanted = (self.names & vars(base).keys()) | (special - _NOT_CALLED - {"__class__"})
                for held in self._named(vars(base), sorted(wanted)):
                    if isinstance(held, property):
                        yield held.fget
                    else:
                        yield getattr(held, "__func__", held)  # of a static method, or one of the class

    def _of_object(self, value: Any) -> Iterator[Any]:
        """The attributes of an object that code reads; all of an object of a library, whose code is not known."""
        yield from self._class(type(value))
        table = getattr(value, "__dict__", {})
        is_open = _is_of(type(value), _INSTALLED - _FIXED)
        yield from self._named(table, sorted(table if is_open else self.names))
        slots = [name for base in type(value).__mro__ for name in _slots(base) if name in self.names]
        if slots:
            self._is_watchable = False
        yield from (getattr(value, name, None) for name in slots)


def _entries(table: Mapping[Any, Any]) -> tuple[Any, ...]:
    return *table, *table.values()


def _looked_up(table: Mapping[str, Any], names: tuple[str, ...]) -> tuple[Any, ...]:
    return tuple(map(table.get, names))


def _parts(function: types.FunctionType) -> tuple[Any, ...]:
    """What a function is made of beside its global names."""
    return function.__code__, function.__defaults__, function.__kwdefaults__, *closure_of(function)


def _content_of(value: array[Any] | bytearray | memoryview) -> Hashable:
    """What can change in these bytes: nothing in a view that is read only, or whose memory is gone."""
    try:
        return None if isinstance(value, memoryview) and value.readonly else hash(bytes(value))
    except ValueError:
        return None


def _slots(kind: type) -> tuple[str, ...]:
    slots = vars(kind).get("__slots__", ())
    return (slots,) if isinstance(slots, str) else tuple(slots)


def _is_of(what: Any, packages: set[str]) -> bool:
    """Whether a class or a function was defined in one of these packages."""
    return _is_of_name(what.__module__ or "", packages)


def _is_of_name(module: str, packages: set[str]) -> bool:
    return module != "__main__" and module.partition(".")[0] in packages
