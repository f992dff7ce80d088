"""Numbers read from a batch: they may be printed and summed, and are known where they enter a loss."""

from __future__ import annotations

import operator
from collections.abc import Callable
from typing import Any, Protocol, Self

_BINARY = ("add", "sub", "mul", "truediv", "floordiv", "mod", "pow")


class BatchNumber(float):
    """The value of a deferred tensor: it is of the whole batch, so it must enter no loss."""

    def _with(self, operation: Callable[..., Any], *operands: Any) -> Any:
        return number_of_batch(operation(*map(_plain, operands)))


class BatchInteger(int):
    """The same for a whole number."""

    def _with(self, operation: Callable[..., Any], *operands: Any) -> Any:
        return number_of_batch(operation(*map(_plain, operands)))


def number_of_batch(value: Any) -> Any:
    """A number that remembers that it was read from a batch; what is no number is itself."""
    if isinstance(value, float):
        return BatchNumber(value)
    return BatchInteger(value) if isinstance(value, int) and not isinstance(value, bool) else value


class Lengths(Protocol):
    """Remembers how lengths were computed, and that one of them was turned into a plain number."""

    def number(self, value: Any, operation: Callable[..., Any], args: tuple[Any, ...]) -> Any: ...
    def length_was_read(self) -> None: ...


class BatchLength(int):
    """The length of an axis of a deferred tensor: in the loss of one example it is that of the example's own tensor."""

    recorded_in: Lengths
    place: int

    @classmethod
    def of(cls, value: int, recorded_in: Lengths, place: int) -> Self:
        made = cls(value)
        made.recorded_in, made.place = recorded_in, place
        return made

    def _with(self, operation: Callable[..., Any], *operands: Any) -> Any:
        return self.recorded_in.number(operation(*map(_plain, operands)), operation, operands)

    def __int__(self) -> int:
        self.recorded_in.length_was_read()
        return _plain(self)

    def __float__(self) -> float:
        self.recorded_in.length_was_read()
        return float(_plain(self))


class BatchRatio(float):
    """A number computed from such lengths."""

    recorded_in: Lengths
    place: int

    @classmethod
    def of(cls, value: float, recorded_in: Lengths, place: int) -> Self:
        made = cls(value)
        made.recorded_in, made.place = recorded_in, place
        return made

    def _with(self, operation: Callable[..., Any], *operands: Any) -> Any:
        return self.recorded_in.number(operation(*map(_plain, operands)), operation, operands)


def _plain(value: Any) -> Any:
    """The number alone, without asking it."""
    if isinstance(value, int) and not isinstance(value, bool):
        return int.__add__(value, 0)
    return float.__add__(value, 0.0) if isinstance(value, float) else value


def _add_operators(cls: Any) -> None:
    """Give a class of numbers its arithmetic, by ``_with``."""
    for name in _BINARY:
        operation = getattr(operator, name)
        setattr(cls, f"__{name}__", _binary(operation))
        setattr(cls, f"__r{name}__", _reflected(operation))
    cls.__neg__ = lambda self: self._with(operator.neg, self)


def _binary(operation: Callable[..., Any]) -> Callable[[Any, Any], Any]:
    def method(self: Any, other: Any) -> Any:
        return self._with(operation, self, other) if isinstance(other, int | float) else NotImplemented

    return method


def _reflected(operation: Callable[..., Any]) -> Callable[[Any, Any], Any]:
    def method(self: Any, other: Any) -> Any:
        return self._with(operation, other, self) if isinstance(other, int | float) else NotImplemented

    return method


for _numbers in (BatchNumber, BatchInteger, BatchLength, BatchRatio):
    _add_operators(_numbers)
