"""From what one setting of a search is drawn: an interval, its logarithms, whole numbers, or a list of values."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from random import Random
from typing import Protocol, TypeAlias

Value: TypeAlias = float | int | bool | str | None


class Dimension(Protocol):
    """From what one setting is drawn."""

    @property
    def ends(self) -> Sequence[Value]:
        """The values that a run can have at most: both ends of an interval, or all of a list."""
        ...

    def draw(self, random: Random) -> Value:
        """A value at random."""
        ...


@dataclass(frozen=True)
class Uniform:
    """A number between two others, each equally likely. It has four digits, so that it can be read and repeated.

    >>> Uniform(0.5, 0.75).draw(Random(1))
    0.5336
    """

    low: float
    high: float

    def __post_init__(self) -> None:
        if not -math.inf < self.low < self.high < math.inf:
            raise ValueError(f"expected two numbers, the smaller first, got {self.low:g} and {self.high:g}")

    @property
    def ends(self) -> Sequence[Value]:
        return self.low, self.high

    def draw(self, random: Random) -> Value:
        return _short(random.uniform(self.low, self.high), self.low, self.high)

    def __str__(self) -> str:
        return f"uniform({self.low:g}, {self.high:g})"


@dataclass(frozen=True)
class LogUniform:
    """A number between two others, whose logarithm is uniform: as likely from 0.1 to 1 as from 1 to 10.

    >>> LogUniform(0.1, 10.0).draw(Random(1))
    0.1857
    """

    low: float
    high: float

    def __post_init__(self) -> None:
        if not 0 < self.low < self.high < math.inf:
            raise ValueError(f"expected two numbers above 0, the smaller first, got {self.low:g} and {self.high:g}")

    @property
    def ends(self) -> Sequence[Value]:
        return self.low, self.high

    def draw(self, random: Random) -> Value:
        return _short(math.exp(random.uniform(math.log(self.low), math.log(self.high))), self.low, self.high)

    def __str__(self) -> str:
        return f"log({self.low:g}, {self.high:g})"


@dataclass(frozen=True)
class WholeNumbers:
    """A whole number from one to another, both included.

    >>> WholeNumbers(1, 6).draw(Random(1))
    2
    """

    low: int
    high: int

    def __post_init__(self) -> None:
        if not self.low < self.high:
            raise ValueError(f"expected two whole numbers, the smaller first, got {self.low} and {self.high}")

    @property
    def ends(self) -> Sequence[Value]:
        return self.low, self.high

    def draw(self, random: Random) -> Value:
        return random.randint(self.low, self.high)

    def __str__(self) -> str:
        return f"int({self.low}, {self.high})"


@dataclass(frozen=True)
class Choice:
    """One of several values, each equally likely; ``None`` leaves the setting out.

    >>> Choice((0.9, 0.95)).draw(Random(1))
    0.9
    """

    values: tuple[Value, ...]

    def __post_init__(self) -> None:
        if len(set(self.values)) < 2 or len(set(self.values)) < len(self.values):
            raise ValueError("expected at least two values, no two alike")

    @property
    def ends(self) -> Sequence[Value]:
        return self.values

    def draw(self, random: Random) -> Value:
        return random.choice(self.values)

    def __str__(self) -> str:
        return f"choice({', '.join(map(in_words, self.values))})"


def in_words(value: Value) -> str:
    """A value as it is written on the command line.

    >>> in_words(True), in_words(0.5), in_words(None), in_words("adam")
    ('true', '0.5', 'none', 'adam')
    """
    if value is None or isinstance(value, bool):
        return str(value).lower()
    return f"{value:g}" if isinstance(value, float) else str(value)


def read_dimension(kind: str, arguments: Sequence[str], accepted: Sequence[type]) -> Dimension:
    """The dimension that ``kind(arguments)`` stands for, for a setting that accepts values of these types.

    Raises:
        ValueError: there is no such kind, it does not fit the setting, or an argument is not what it takes.
    """
    if kind == "choice":
        return Choice(tuple(_read(text, accepted) for text in arguments))
    if kind not in _INTERVALS:
        raise ValueError(f"there is no {kind}(): known are log, uniform, int and choice")
    number = _INTERVALS[kind]
    fits = [name for name, needed in _INTERVALS.items() if needed in accepted]
    if number not in accepted:
        raise ValueError(f"it is not drawn by {kind}(); give {' or '.join([f'{name}(a, b)' for name in fits] + _LIST)}")
    if len(arguments) != 2:
        raise ValueError(f"{kind}() takes two numbers, got {len(arguments)}")
    try:
        low, high = (number(text) for text in arguments)
    except ValueError:
        raise ValueError(
            f"{kind}() takes two {'whole ' * (number is int)}numbers, got {', '.join(arguments)}"
        ) from None
    return _MADE[kind](low, high)


_INTERVALS: Mapping[str, type] = {"log": float, "uniform": float, "int": int}
_MADE = {"log": LogUniform, "uniform": Uniform, "int": WholeNumbers}
_LIST = ["choice(a, b, ...)"]


def _read(text: str, accepted: Sequence[type]) -> Value:
    """The value of this text: the narrowest of the accepted types that it can be."""
    if type(None) in accepted and text == "none":
        return None
    if bool in accepted and text in ("true", "false"):
        return text == "true"
    for number in (int, float):
        if number in accepted:
            try:
                return number(text)
            except ValueError:
                continue
    if str in accepted:
        return text
    wanted = " or ".join(_NAMES[kind] for kind in accepted if kind in _NAMES)
    raise ValueError(f"{text!r} is not {wanted}")


_NAMES = {bool: "true or false", int: "a whole number", float: "a number", str: "a name", type(None): "none"}


def _short(value: float, low: float, high: float) -> float:
    return min(max(float(f"{value:.4g}"), low), high)
