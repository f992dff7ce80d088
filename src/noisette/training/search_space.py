"""The space of a search: which settings are drawn, and from where."""

from __future__ import annotations

import difflib
import math
import re
from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, fields
from functools import cache
from itertools import product
from random import Random
from types import UnionType
from typing import Any, Protocol, TypeAlias, Union, get_args, get_origin, get_type_hints

from noisette.training.recipe import Recipe

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


_PRICE = "changes what a run costs, and a search has one price for all its runs; set it in the recipe"
_NO_EFFECT = "changes the time and not the model; set it in the recipe"
_LOADED = "says which data are loaded, which is done once; set it in the recipe"

# Settings that no search may draw, with the reason; the name of a table stands for all its fields. A setting that
# changes the releases of a run in some other way is found by the rehearsal, before anything is charged.
_REFUSED: Mapping[str, str] = {
    "data": _LOADED,
    "public.data": _LOADED,
    "public.classes": _LOADED,
    "projection": _PRICE,
    "privacy.epsilon": _PRICE,
    "privacy.delta": _PRICE,
    "privacy.noise_multiplier": _PRICE,
    "privacy.accountant": _PRICE,
    "privacy.allow_large_delta": _PRICE,
    "privacy.engine": _NO_EFFECT,
    "training.epochs": _PRICE,
    "training.batch_size": _PRICE,
    "training.batches": _PRICE,
    "training.largest_batch": _PRICE,
    "training.microbatch_size": _NO_EFFECT,
    "training.compile": _NO_EFFECT,
}

# Settings that are no part of the graph of a step, or inputs of it: the others would leave a graph of their own in the
# folder of compiled graphs.
_OUTSIDE_THE_GRAPH = {
    *("training.lr", "training.lr_end", "training.lr_epochs", "training.momentum", "training.cosine"),
    *("training.optimizer", "training.averaging", "training.seed", "privacy.max_grad_norm"),
}

_ONE = re.compile(r"([\w.-]+)\s*=\s*([\w-]+)\s*\(([^()]*)\)")
_MOST_COMBINATIONS = 4096


@dataclass(frozen=True)
class SearchSpace:
    """The settings that are drawn anew for each run of a search; all others are those of the recipe.

    Args:
        dimensions: by the full name of a setting, such as ``training.lr``.
    """

    dimensions: Mapping[str, Dimension]

    @classmethod
    def read(cls, texts: Sequence[str], recipe: Recipe) -> SearchSpace:
        """The space that these texts describe.

        Args:
            texts: each with one or several ``name=log(a, b)``, ``uniform(a, b)``, ``int(a, b)`` or ``choice(a, b, c)``.
                A name is that of a field of the recipe, such as ``training.lr``, or ``lr`` where only one table has it.
            recipe: the one that is searched around.

        Raises:
            ValueError: a text has another form, a setting is unknown or cannot be searched, a distribution does not fit
                it, or the recipe refuses a value that can be drawn; all problems are listed.

        >>> print(SearchSpace.read(["lr=log(0.1, 10) training.seed=int(0,9)"], Recipe()))
        training.lr=log(0.1, 10) training.seed=int(0, 9)
        """
        problems: list[str] = []
        dimensions: dict[str, Dimension] = {}
        for name, kind, arguments in _parts(texts, problems):
            try:
                full = _full_name(name)
                if full in dimensions:
                    raise ValueError("it is given twice")
                _check_can_be_searched(full)
                dimensions[full] = read_dimension(kind, arguments, _types(full))
            except ValueError as problem:
                problems.append(f"{name}: {problem}")
        if not any(texts := [text.strip() for text in texts]):
            problems.append("it is empty; give settings, such as lr=log(0.1, 10)")
        space = cls(dimensions)
        problems += space._refusals(recipe)
        if problems:
            raise ValueError("\n  ".join(["--over has these problems:", *problems]))
        return space

    def __str__(self) -> str:
        return " ".join(f"{name}={dimension}" for name, dimension in self.dimensions.items())

    def draw(self, recipe: Recipe, random: Random) -> Recipe:
        """The recipe of one run, drawn independently of all others."""
        return _with(recipe, {name: dimension.draw(random) for name, dimension in self.dimensions.items()})

    def extremes(self, recipe: Recipe) -> Iterator[Recipe]:
        """A few recipes in which each end of each interval and each value of each list occurs."""
        most = max(len(dimension.ends) for dimension in self.dimensions.values())
        for number in range(most):
            yield _with(recipe, {name: d.ends[number % len(d.ends)] for name, d in self.dimensions.items()})

    def settings_of(self, recipe: Recipe) -> dict[str, Value]:
        """The values of the searched settings in a recipe."""
        return {name: getattr(getattr(recipe, name.partition(".")[0]), _field(name)) for name in self.dimensions}

    @property
    def changes_the_graph(self) -> bool:
        """Whether runs may differ in more than what enters the graph of a step as an input."""
        return bool(self.dimensions.keys() - _OUTSIDE_THE_GRAPH)

    def _refusals(self, recipe: Recipe) -> list[str]:
        """What the recipe says against combinations of the ends of the space, each problem once."""
        ends = [dimension.ends for dimension in self.dimensions.values()]
        combinations = 1
        for values in ends:
            combinations *= len(values)
        if combinations > _MOST_COMBINATIONS:
            return [
                f"it has {combinations:,} combinations of ends, at most {_MOST_COMBINATIONS:,} are checked; search less"
            ]
        found: dict[str, str] = {}
        for values in product(*ends):
            settings = dict(zip(self.dimensions, values, strict=True))
            try:
                _with(recipe, settings)
            except (ValueError, TypeError) as refusal:
                drawn = ", ".join(f"{name}={in_words(value)}" for name, value in settings.items())
                found.setdefault(str(refusal), drawn)
        return [f"{drawn} cannot be trained: {refusal}" for refusal, drawn in found.items()]


def _parts(texts: Sequence[str], problems: list[str]) -> Iterator[tuple[str, str, list[str]]]:
    """Name, kind and arguments of each part; what is none is added to the problems."""
    for text in texts:
        left = [rest.strip() for rest in _ONE.sub("\n", text).split("\n")]
        problems += [f"{rest!r} is not name=log(a, b) or uniform, int or choice of values" for rest in left if rest]
        for name, kind, inside in _ONE.findall(text):
            yield name, kind, [argument.strip() for argument in inside.split(",")]


@cache
def _settings() -> Mapping[str, Any]:
    """The full name of every field of a recipe, with its type."""
    sections = get_type_hints(Recipe)
    return {
        f"{section.name}.{name}": kind
        for section in fields(Recipe)
        for name, kind in get_type_hints(sections[section.name]).items()
    }


def _field(name: str) -> str:
    return name.partition(".")[2]


def _full_name(name: str) -> str:
    """The full name of a setting.

    Raises:
        ValueError: there is none of this name, or there are several.
    """
    if name in _settings():
        return name
    match [full for full in _settings() if _field(full) == name]:
        case [full]:
            return full
        case []:
            known = {_field(full): full for full in _settings()} | {full: full for full in _settings()}
            close = difflib.get_close_matches(name, known, n=1)
            hint = f"did you mean {close[0]}?" if close else "noisette train --help and the recipes list them"
            raise ValueError(f"no recipe has this setting; {hint}")
        case several:
            raise ValueError(f"several tables have it: say {' or '.join(several)}")


def _check_can_be_searched(full: str) -> None:
    for refused in (full, full.partition(".")[0]):
        if refused in _REFUSED:
            raise ValueError(f"{full} {_REFUSED[refused]}")


def _types(full: str) -> list[type]:
    """The plain types that a setting accepts.

    Raises:
        ValueError: it takes lists or tables.
    """
    hint = _settings()[full]
    members = get_args(hint) if get_origin(hint) in (Union, UnionType) else (hint,)
    accepted = [kind for kind in members if kind in (bool, int, float, str, type(None))]
    if not set(accepted) - {type(None)}:
        raise ValueError(f"{full} is no single value, so it cannot be drawn; set it in the recipe")
    return accepted


def _with(recipe: Recipe, values: Mapping[str, Value]) -> Recipe:
    """The recipe with these settings, by their full names.

    Raises:
        TypeError, ValueError: the recipe refuses them.
    """
    by_section: dict[str, dict[str, Any]] = defaultdict(dict)
    for name, value in values.items():
        by_section[name.partition(".")[0]][_field(name)] = value
    return recipe.changed(by_section, "the recipe")
