"""Which calls of a model the preflight has covered, so that it is taken again when something has changed since."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from inspect import getattr_static
from types import BuiltinFunctionType, FunctionType, MethodType
from typing import Any

from torch import Tensor, nn

from noisette.validation.batch_size_independence import LARGE_BATCH
from noisette.validation.probe_inputs import Call

PLAIN = (bool, int, float, complex, str, type(None))
FUNCTIONS = (FunctionType, BuiltinFunctionType, MethodType)
MOST_ENTRIES = 32  # of a list that is compared
_ROOM = 1.25  # a batch is checked with so many times its examples, so that few later ones are larger


@dataclass
class CheckedCalls:
    """What has been checked of one model.

    A call is covered if the model has the same modules in the same modes, the arguments have the same form, types and
    plain values, and no axis is twice as long as it was. Attributes that are numbers, flags, text or functions, hooks,
    and buffers of one number are compared as well, but one that changes at every step, such as a ramp or a counter, is
    new only at its first, second, fourth, eighth, ... change: so a run of T steps takes log2(T) further checks for it.

    What is not seen: objects that a module keeps beside its attributes, and what its code reads from elsewhere.
    """

    _covered: set[Any] = field(default_factory=set)
    _attributes: dict[Any, Any] = field(default_factory=dict)  # values now, by module and name
    _values: dict[Any, set[Any]] = field(default_factory=dict)  # seen since the first check
    _longest: dict[Any, tuple[int, ...]] = field(default_factory=dict)  # axes that were checked, by form of the call
    _size: int = LARGE_BATCH  # examples with which the outputs were compared

    def covers(self, model: nn.Module, call: Call) -> bool:
        """Whether a call like this was checked already; from now on it counts as checked."""
        changed = self._changed_attributes(model)
        form = (_structure(model), _form(call))
        axes, before = _axes(call), self._longest.get(form)
        grown = before is not None and any(now > 2 * then for now, then in zip(axes, before, strict=True))
        if form in self._covered and not changed and not grown:
            return True
        self._covered.add(form)
        self._longest[form] = axes if before is None else tuple(map(max, axes, before))
        return False

    def larger_size(self, call: Call) -> int | None:
        """The number of examples to compare outputs with, if the call has more than were compared before."""
        if call.examples <= self._size:
            return None
        self._size = int(_ROOM * call.examples)
        return self._size

    def forget(self) -> None:
        """Nothing counts as checked, because a check has failed."""
        self.__init__()

    def _changed_attributes(self, model: nn.Module) -> bool:
        """Whether some attribute has a new value, and as many of them as make a check due."""
        due, first = False, not self._attributes
        for key, value in _attributes(model):
            if key not in self._attributes:
                self._values[key] = {value}
                due |= not first
            elif self._attributes[key] != value and value not in self._values[key]:
                self._values[key].add(value)
                changes = len(self._values[key]) - 1
                due |= changes & (changes - 1) == 0
            self._attributes[key] = value
        return due


def _structure(model: nn.Module) -> tuple[Any, ...]:
    """Modules by identity, with mode and the function that computes them."""
    return tuple(
        [(id(part), part.training, id(getattr_static(type(part), "forward", None))) for part in model.modules()]
    )


def _attributes(model: nn.Module) -> Iterator[tuple[Any, Any]]:
    """Plain attributes of every module, the functions and hooks that it holds, and buffers of one number."""
    for part in model.modules():
        own = id(part)
        for name, value in vars(part).items():
            kind = type(value)
            if kind in PLAIN:
                yield (own, name), value
            elif kind in FUNCTIONS:
                yield (own, name), id(value)
            elif kind in (list, tuple) and len(value) <= MOST_ENTRIES and all(type(entry) in PLAIN for entry in value):
                yield (own, name), tuple(value)
        hooks = (*part._forward_pre_hooks.values(), *part._forward_hooks.values())
        yield (own, "hooks"), tuple(map(id, hooks))
        for name, buffer in part._buffers.items():
            if buffer is not None and buffer.numel() == 1:
                on_processor = buffer.device.type == "cpu"  # reading it elsewhere would wait for the device
                yield (own, name), buffer.item() if on_processor else (id(buffer), buffer._version)


@contextmanager
def attributes_restored(model: nn.Module) -> Iterator[None]:
    """Plain attributes, such as counters of calls, have their values again afterwards."""
    before = [(part, {k: v for k, v in vars(part).items() if type(v) in PLAIN}) for part in model.modules()]
    try:
        yield
    finally:
        for part, values in before:
            vars(part).update(values)


def _form(call: Call) -> tuple[Any, ...]:
    """Types, numbers of axes and plain values of the arguments, without sizes."""
    return len(call.args), tuple(call.kwargs), tuple(map(_kind, call.values))


def _kind(value: Any) -> Any:
    if isinstance(value, Tensor):
        return value.dtype, value.dim()
    return value if isinstance(value, PLAIN) else type(value)


def _axes(call: Call) -> tuple[int, ...]:
    """The lengths of all axes but the first of each tensor."""
    return tuple(n for value in call.values if isinstance(value, Tensor) for n in value.shape[1:])
