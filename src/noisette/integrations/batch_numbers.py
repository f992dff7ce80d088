"""Numbers read from a batch: they may be printed and summed, and are known where they enter a loss."""

from __future__ import annotations

import operator
from collections.abc import Callable
from typing import Any, Protocol

Operation = Callable[..., Any]


class Lengths(Protocol):
    """Remembers how lengths were computed, and that one of them was turned into a plain number."""

    def number(self, value: Any, operation: Operation, args: tuple[Any, ...]) -> Any: ...
    def length_was_read(self) -> None: ...


class OfBatch:
    """The value of a deferred tensor: it is of the whole batch, so it must enter no loss."""

    def _result(self, value: Any, operation: Operation, operands: tuple[Any, ...]) -> Any:
        return number_of_batch(value)


class OfLengths:
    """Computed from lengths of axes of deferred tensors; in the loss of one example, from those of its own tensors.

    Attributes:
        recorded_in: where it is remembered how.
        place: of the number in it.
    """

    recorded_in: Lengths
    place: int

    def _result(self, value: Any, operation: Operation, operands: tuple[Any, ...]) -> Any:
        return self.recorded_in.number(value, operation, operands)

    def __int__(self) -> int:
        self.recorded_in.length_was_read()
        return int(_plain(self))

    def __float__(self) -> float:
        self.recorded_in.length_was_read()
        return float(_plain(self))


class BatchNumber(OfBatch, float):
    """A value of a batch."""


class BatchInteger(OfBatch, int):
    """The same for a whole number."""


class BatchLength(OfLengths, int):
    """A whole number computed from lengths."""


class BatchRatio(OfLengths, float):
    """The same for another number."""


def number_of_batch(value: Any) -> Any:
    """A number that remembers that it was read from a batch; what is no number is itself."""
    if isinstance(value, float):
        return BatchNumber(value)
    return BatchInteger(value) if isinstance(value, int) and not isinstance(value, bool) else value


def number_of_lengths(value: float, recorded_in: Lengths, place: int) -> OfLengths:
    """A number that remembers that it was computed from lengths."""
    made = BatchLength(value) if isinstance(value, int) else BatchRatio(value)
    made.recorded_in, made.place = recorded_in, place
    return made


def _plain(value: Any) -> Any:
    """The number alone, without asking it."""
    if isinstance(value, int) and not isinstance(value, bool):
        return int.__add__(value, 0)
    return float.__add__(value, 0.0) if isinstance(value, float) else value


def _add_operators(kind: Any) -> None:
    """Give a class of numbers its arithmetic: plain numbers are computed, and ``_result`` is made of what comes out."""
    for name in ("add", "sub", "mul", "truediv", "floordiv", "mod", "pow"):
        operation = getattr(operator, name)
        setattr(kind, f"__{name}__", _method(operation, lambda number, other: (number, other)))
        setattr(kind, f"__r{name}__", _method(operation, lambda number, other: (other, number)))
    kind.__neg__ = lambda number: number._result(-_plain(number), operator.neg, (number,))


def _method(operation: Operation, ordered: Callable[[Any, Any], tuple[Any, Any]]) -> Callable[[Any, Any], Any]:
    def method(number: Any, other: Any) -> Any:
        if not isinstance(other, int | float):
            return NotImplemented
        operands = ordered(number, other)
        return number._result(operation(*map(_plain, operands)), operation, operands)

    return method


_add_operators(OfBatch)
_add_operators(OfLengths)
