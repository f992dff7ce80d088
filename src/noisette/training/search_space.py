"""What can be searched, and the settings that a search draws for each of its runs. It imports no torch."""

from __future__ import annotations

import difflib
import math
import re
from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, fields
from functools import cache
from itertools import product
from operator import attrgetter
from random import Random
from types import UnionType
from typing import Any, TypeAlias, Union, get_args, get_origin, get_type_hints

from noisette.training.recipe import Recipe
from noisette.training.report.facts import shown

Value: TypeAlias = float | int | bool | str | None

ACCOUNTANT = "rdp"  # searches have a bound on their Rényi divergences alone
_INTERVALS: Mapping[str, type] = {"log": float, "uniform": float, "int": int}
_NAMES = {bool: "true or false", int: "a whole number", float: "a number", str: "a name"}
_PRICE = "changes what a run costs, and a search has one price for all its runs; set it in the recipe"
_NO_EFFECT = "changes the time and not the model; set it in the recipe"
_LOADED = "says which data are loaded, which is done once; set it in the recipe"

# Settings that no search may draw, with the reason; the name of a table stands for all its fields. A setting that
# changes the releases of a run in some other way is found by the rehearsal, before anything is charged.
_REFUSED: Mapping[str, str] = {
    **dict.fromkeys(("data", "public.data", "public.classes"), _LOADED),
    **dict.fromkeys(("privacy.engine", "training.microbatch_size", "training.compile"), _NO_EFFECT),
    **dict.fromkeys(
        (
            *("projection", "privacy.epsilon", "privacy.delta", "privacy.noise_multiplier", "privacy.accountant"),
            *("privacy.allow_large_delta", "training.epochs", "training.batch_size", "training.batches"),
            "training.largest_batch",
        ),
        _PRICE,
    ),
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
class Dimension:
    """From what one setting is drawn.

    Args:
        kind: ``uniform`` between two numbers; ``log``, whose logarithm is uniform: as likely from 0.1 to 1 as from 1 to
            10; ``int``, a whole number from one to another, both included; or ``choice``, one of several values, each
            equally likely, where ``None`` leaves the setting out.
        ends: the values that a run can have at most: both ends of an interval, or all of a choice.

    Raises:
        ValueError: these are no such ends.

    >>> [Dimension(kind, ends).draw(Random(1)) for kind, ends in (("uniform", (0.5, 0.75)), ("log", (0.1, 10.0)))]
    [0.5336, 0.1857]
    >>> [Dimension(kind, ends).draw(Random(1)) for kind, ends in (("int", (1, 6)), ("choice", (0.9, 0.95)))]
    [2, 0.9]
    """

    kind: str
    ends: tuple[Value, ...]

    def __post_init__(self) -> None:
        if self.kind == "choice":
            if len(set(self.ends)) < max(2, len(self.ends)):
                raise ValueError("expected at least two values, no two alike")
            return
        low, high = self.bounds
        if not (0 if self.kind == "log" else -math.inf) < low < high < math.inf:
            what = {"log": "numbers above 0", "uniform": "numbers", "int": "whole numbers"}[self.kind]
            raise ValueError(f"expected two {what}, the smaller first, got {low:g} and {high:g}")

    @property
    def bounds(self) -> tuple[Any, Any]:
        """The ends of an interval."""
        low, high = self.ends
        return low, high

    def draw(self, random: Random) -> Value:
        """A value at random; a number with a fraction has four digits, so that it can be read and repeated."""
        if self.kind == "choice":
            return random.choice(self.ends)
        low, high = self.bounds
        if self.kind == "int":
            return random.randint(low, high)
        if self.kind == "log":
            value = math.exp(random.uniform(math.log(low), math.log(high)))
        else:
            value = random.uniform(low, high)
        return min(max(float(f"{value:.4g}"), low), high)

    def __str__(self) -> str:
        return f"{self.kind}({', '.join(map(shown, self.ends))})"


@dataclass(frozen=True)
class SearchSpace:
    """The settings that are drawn anew for each run of a search; all others are those of the recipe."""

    dimensions: Mapping[str, Dimension]  # by the full name of a setting, such as ``training.lr``

    @classmethod
    def read(cls, texts: Sequence[str], recipe: Recipe) -> SearchSpace:
        """The space that texts describe, each by some ``name=log(a, b)``, ``uniform``, ``int`` or ``choice(a, b, c)``.

        A name is that of a field of the recipe, such as ``training.lr``, or ``lr`` where only one table has it.

        Raises:
            ValueError: a text has another form, a setting is unknown or cannot be searched, a distribution does not fit
                it, or the recipe refuses a value that can be drawn; all problems are listed.

        >>> print(SearchSpace.read(["lr=log(0.1, 10) training.seed=int(0,9)"], Recipe()))
        training.lr=log(0.1, 10) training.seed=int(0, 9)
        """
        problems: list[str] = []
        dimensions: dict[str, Dimension] = {}
        for text in texts:
            left = [rest.strip() for rest in _ONE.sub("\n", text).split("\n")]
            problems += [f"{rest!r} is not name=log(a, b) or uniform, int or choice of values" for rest in left if rest]
            for name, kind, inside in _ONE.findall(text):
                try:
                    full = _full_name(name)
                    if full in dimensions:
                        raise ValueError("it is given twice")
                    for refused in (full, full.partition(".")[0]):
                        if refused in _REFUSED:
                            raise ValueError(f"{full} {_REFUSED[refused]}")
                    arguments = [argument.strip() for argument in inside.split(",")]
                    dimensions[full] = _read_dimension(kind, arguments, _types(full))
                except ValueError as problem:
                    problems.append(f"{name}: {problem}")
        if not any(text.strip() for text in texts):
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
        """A few recipes in which each end of each interval and each value of each choice occurs."""
        for number in range(max(len(dimension.ends) for dimension in self.dimensions.values())):
            yield _with(recipe, {name: d.ends[number % len(d.ends)] for name, d in self.dimensions.items()})

    def settings_of(self, recipe: Recipe) -> dict[str, Value]:
        """The values of the searched settings in a recipe."""
        return {name: attrgetter(name)(recipe) for name in self.dimensions}

    @property
    def changes_the_graph(self) -> bool:
        """Whether runs may differ in more than what enters the graph of a step as an input."""
        return bool(self.dimensions.keys() - _OUTSIDE_THE_GRAPH)

    def _refusals(self, recipe: Recipe) -> list[str]:
        """What the recipe says against combinations of the ends of the space, each problem once."""
        ends = [dimension.ends for dimension in self.dimensions.values()]
        combinations = math.prod(map(len, ends))
        if combinations > _MOST_COMBINATIONS:
            return [
                f"it has {combinations:,} combinations of ends, at most {_MOST_COMBINATIONS:,} are checked; search less"
            ]
        found: dict[str, str] = {}
        for values in product(*ends):
            given = dict(zip(self.dimensions, values, strict=True))
            try:
                _with(recipe, given)
            except (ValueError, TypeError) as refusal:
                drawn = ", ".join(f"{name}={shown(value)}" for name, value in given.items())
                found.setdefault(str(refusal), drawn)
        return [f"{drawn} cannot be trained: {refusal}" for refusal, drawn in found.items()]


def check_recipe(recipe: Recipe, *, public: bool) -> None:
    """Check that a recipe can be searched; ``public`` if runs are compared on its test examples.

    Raises:
        ValueError: it cannot; all problems are listed.
    """
    privacy, data, problems = recipe.privacy, recipe.data, []
    if privacy.noise_multiplier is not None:
        problems.append(
            f"privacy.noise_multiplier = {privacy.noise_multiplier:g} fixes the noise, which a search computes from "
            "its budget and --runs; leave it out of the recipe"
        )
    if privacy.accountant not in (ACCOUNTANT, "pld"):
        problems.append(
            f'accountant = "{privacy.accountant}" has no bound for searches, which are priced by {ACCOUNTANT}; leave '
            "it out of the recipe"
        )
    if data.users is not None:
        problems.append(
            "a search has a guarantee for records, not for users; leave users out of the recipe, or train once with "
            "noisette train"
        )
    if recipe.training.batches != "poisson":
        problems.append(f'the batches of a search are Poisson; leave batches = "{recipe.training.batches}" out')
    if data.holdout is not None and public:
        problems.append(
            f"holdout = {data.holdout:g} makes the test examples private records, whose exact figures must not choose "
            "among runs; give --score-on held-out, which adds noise"
        )
    if problems:
        raise ValueError("; ".join(problems))


def _read_dimension(kind: str, arguments: Sequence[str], accepted: Sequence[type]) -> Dimension:
    """What ``kind(arguments)`` stands for, for a setting that accepts values of these types."""
    if kind == "choice":
        return Dimension(kind, tuple(_read(text, accepted) for text in arguments))
    if kind not in _INTERVALS:
        raise ValueError(f"there is no {kind}(): known are log, uniform, int and choice")
    number = _INTERVALS[kind]
    if number not in accepted:
        fits = [f"{name}(a, b)" for name, needed in _INTERVALS.items() if needed in accepted]
        raise ValueError(f"it is not drawn by {kind}(); give {' or '.join([*fits, 'choice(a, b, ...)'])}")
    if len(arguments) != 2:
        raise ValueError(f"{kind}() takes two numbers, got {len(arguments)}")
    try:
        ends = tuple([number(text) for text in arguments])
    except ValueError:
        whole = "whole " if number is int else ""
        raise ValueError(f"{kind}() takes two {whole}numbers, got {', '.join(arguments)}") from None
    return Dimension(kind, ends)


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
    raise ValueError(f"{text!r} is not {' or '.join(_NAMES[kind] for kind in accepted if kind in _NAMES)}")


@cache
def _settings() -> Mapping[str, Any]:
    """The full name of every field of a recipe, with its type."""
    sections = get_type_hints(Recipe)
    return {
        f"{section.name}.{name}": kind
        for section in fields(Recipe)
        for name, kind in get_type_hints(sections[section.name]).items()
    }


def _full_name(name: str) -> str:
    """The full name of a setting, of which there must be one."""
    if name in _settings():
        return name
    short = {full: full.partition(".")[2] for full in _settings()}
    match [full for full in short if short[full] == name]:
        case [full]:
            return full
        case []:
            known = {short[full]: full for full in short} | {full: full for full in short}
            close = difflib.get_close_matches(name, known, n=1)
            hint = f"did you mean {close[0]}?" if close else "noisette train --help and the recipes list them"
            raise ValueError(f"no recipe has this setting; {hint}")
        case several:
            raise ValueError(f"several tables have it: say {' or '.join(several)}")


def _types(full: str) -> list[type]:
    """The plain types that a setting accepts, which must not be a list or table."""
    hint = _settings()[full]
    members = get_args(hint) if get_origin(hint) in (Union, UnionType) else (hint,)
    accepted = [kind for kind in members if kind in (bool, int, float, str, type(None))]
    if not set(accepted) - {type(None)}:
        raise ValueError(f"{full} is no single value, so it cannot be drawn; set it in the recipe")
    return accepted


def _with(recipe: Recipe, values: Mapping[str, Value]) -> Recipe:
    """The recipe with these settings, by their full names."""
    tables: dict[str, dict[str, Any]] = defaultdict(dict)
    for name, value in values.items():
        table, _, field = name.partition(".")
        tables[table][field] = value
    return recipe.changed(tables, "the recipe")
