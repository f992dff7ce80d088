"""What a model consists of as an object: its tensors, and the Python containers that a pickle of it would contain."""

from __future__ import annotations

import operator
from argparse import Namespace
from array import array
from collections import ChainMap, OrderedDict, UserDict, UserList, deque
from collections.abc import Callable, Iterable, Iterator
from dataclasses import is_dataclass
from queue import Queue
from types import SimpleNamespace
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn.parameter import is_lazy

from noisette._internal.random_state import generators_of

_PLAIN = (type(None), bool, int, float, complex, str, bytes, type, torch.dtype, torch.device, torch.Size)
_ARE_PLAIN = frozenset(_PLAIN).issuperset
_HOOKS = {name for name in vars(nn.Module()) if "hook" in name}
# Wrappers that keep the state of a job in their attributes; the modules inside them are walked.
_MACHINERY = ("torch.nn.parallel.", "torch.distributed.", "torch._dynamo.")
_NOT_OF_A_MODEL = {"torch", "noisette", "builtins"}
# Of Python's own library, for values of the user's.
_OPEN = (SimpleNamespace, Namespace, UserDict, UserList, ChainMap, Queue)
# All that they hold is visited.
_CONTAINERS = {dict, OrderedDict, list, tuple, set, frozenset, deque, bytearray, array}


class ModelSnapshot:
    """The attributes of all modules, followed through lists, dictionaries, sets, deques, arrays, queues and objects.

    Objects are followed if they are data classes, namespaces, or of a class of the package that defines the module;
    objects of other packages, functions and hooks are not, but for the generators that they hold. What cannot be
    read without a change, such as ``itertools.count`` and ``queue.SimpleQueue``, is not put back. Of modules whose
    class says ``refreshed_from_public_data`` only the parameters are taken; modules with parameters that have no shape
    yet keep their attributes.

    Args:
        model: walked now.

    ``tensors`` are all tensors that were found, also in ``torch`` modules written in C++, and ``generators`` the
    random generators.
    """

    def __init__(self, model: nn.Module) -> None:
        self.tensors: list[Tensor] = []
        self._parts: list[tuple[Any, Any, Callable[[Any, Any], None]]] = []
        self._seen: dict[int, object] = {}  # by id, which is unique only while the object exists
        self._others: list[object] = []  # that may hold generators, also where attributes do not show them
        self._open: list[tuple[Any, object]] = [(part, part) for part in model.modules()]  # values and their holders
        while self._open:
            value, holder = self._open.pop()
            if not isinstance(value, _PLAIN) and id(value) not in self._seen:
                self._seen[id(value)] = value
                self._visit(value, holder)
        self.generators = generators_of(*self._others, known=model.modules()) if self._others else []
        self._members = [(part, dict(part._modules), dict(part._parameters)) for part in model.modules()]

    def put_back(self) -> None:
        """Give every container the entries that it had; what they refer to is not touched."""
        for container, entries, restore in self._parts:
            restore(container, entries)

    def exchanged(self) -> Iterator[str]:
        """Names of parameters, and of modules with parameters, that were added, removed or replaced since."""
        for module, modules, parameters in self._members:
            for name in _changed_names(parameters, module._parameters):
                yield f"{type(module).__name__}.{name}"
            for name in _changed_names(modules, module._modules):
                either = [part for part in (modules.get(name), module._modules.get(name)) if part is not None]
                if any(next(part.parameters(), None) is not None for part in either):
                    yield f"{type(module).__name__}.{name}"

    def _visit(self, value: Any, holder: object) -> None:
        """Take down a value that is reached from an attribute of ``holder``."""
        if isinstance(value, Tensor):
            self.tensors.append(value)
            self._take(vars(value), _restore_dict, holder)
        elif isinstance(value, nn.Module):
            self._visit_module(value)
        elif isinstance(value, np.ndarray):
            if value.flags.writeable:
                self._parts.append((value, value.copy(), _restore_array))
            if value.dtype.hasobject:
                self._open += [(entry, holder) for entry in value.ravel().tolist()]
        elif isinstance(value, array):
            self._parts.append((value, value[:], _restore_numbers))
        elif isinstance(value, dict):
            self._take(value, _restore_dict, holder)
        elif isinstance(value, set):
            self._take(value, _restore_set, holder)
        elif isinstance(value, list | deque | bytearray):
            self._take(value, _restore_sequence, holder)
        elif isinstance(value, tuple | frozenset):
            self._open += [(entry, holder) for entry in value]
        if isinstance(value, Tensor | nn.Module):
            return
        if type(value) in _CONTAINERS or isinstance(value, np.ndarray | np.generic):
            return
        if hasattr(value, "__dict__") and _is_part(value, holder):
            self._take(vars(value), _restore_dict, value)
        self._others.append(value)

    def _visit_module(self, module: nn.Module) -> None:
        # Parts in TorchScript have no dictionaries, but answer these questions.
        parameters = list(module.parameters(recurse=False))
        self._open += [(parameter, module) for parameter in parameters]
        if getattr(type(module), "refreshed_from_public_data", False):
            return
        self._open += [(buffer, module) for buffer in module.buffers(recurse=False)]
        if not type(module).__module__.startswith(_MACHINERY) and not any(map(is_lazy, parameters)):
            self._take(vars(module), _restore_dict, module)

    def _take(self, container: Any, restore: Callable[[Any, Any], None], holder: object) -> None:
        """Take down the entries of a mutable container; they are visited later."""
        entries = dict(container) if isinstance(container, dict) else list(container)
        self._parts.append((container, entries, restore))
        self._seen[id(container)] = container
        if isinstance(entries, dict):
            values = [entry for name, entry in entries.items() if not (isinstance(name, str) and name in _HOOKS)]
        else:
            values = entries
        if not _ARE_PLAIN(map(type, values)):  # a vocabulary has 50,000 entries
            self._open += [(entry, holder) for entry in values if not _is_plain(entry)]


def _is_plain(value: object) -> bool:
    """Whether a value holds nothing that can change."""
    return isinstance(value, _PLAIN) or (type(value) is tuple and _ARE_PLAIN(map(type, value)))


def _is_part(value: object, holder: object) -> bool:
    """Whether an object without a container's type belongs to the model: see :class:`ModelSnapshot`."""
    if isinstance(value, _OPEN):
        return True
    package = _package(value)
    return package not in _NOT_OF_A_MODEL and (is_dataclass(value) or package == _package(holder))


def _package(value: object) -> str:
    return str(type(value).__module__).partition(".")[0]


def _changed_names(before: dict[str, Any], now: Any) -> list[str]:
    if len(before) == len(now) and _are_same(before.values(), now.values()):
        return []
    return [name for name in sorted({*before, *now}) if before.get(name) is not now.get(name)]


def _are_same(before: Iterable[Any], now: Iterable[Any]) -> bool:
    """Whether two collections of one length hold the same objects in the same order."""
    return all(map(operator.is_, before, now))


# Methods of the built-in types, because a subclass may refuse to be changed (outputs of Hugging Face do).


def _restore_dict(container: dict[Any, Any], entries: dict[Any, Any]) -> None:
    same = len(container) == len(entries) and _are_same(entries, container)
    if not same or not _are_same(entries.values(), dict.values(container)):
        kind: Any = OrderedDict if isinstance(container, OrderedDict) else dict
        kind.clear(container)
        for name, entry in entries.items():
            kind.__setitem__(container, name, entry)


def _restore_sequence(container: Any, entries: Any) -> None:
    if len(container) == len(entries) and _are_same(entries, container):
        return
    if isinstance(container, deque):
        deque.clear(container)
        deque.extend(container, entries)
    else:
        container[:] = entries


def _restore_set(container: set[Any], entries: list[Any]) -> None:
    if len(container) != len(entries) or not container.issuperset(entries):
        set.clear(container)
        set.update(container, entries)


def _restore_numbers(container: array[Any], entries: array[Any]) -> None:
    if container != entries:
        container[:] = entries


def _restore_array(container: np.ndarray, entries: np.ndarray) -> None:
    container[...] = entries
