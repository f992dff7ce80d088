"""What can be searched, and the settings that a search draws for each of its runs. It imports no torch."""

import math
import re
from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import asdict, dataclass
from itertools import islice, product
from operator import attrgetter
from random import Random
from typing import Any, Self, TypeAlias

from noisette.data.columns import meant
from noisette.training.recipe import Recipe
from noisette.training.report.facts import shown

Value: TypeAlias = float | int | bool | str | None

ACCOUNTANT = "rdp"  # searches have a bound on their Rényi divergences alone
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
OUTSIDE_THE_GRAPH = {
    *("training.lr", "training.lr_end", "training.lr_epochs", "training.momentum", "training.cosine"),
    *("training.optimizer", "training.averaging", "training.seed", "privacy.max_grad_norm"),
}
_SETTINGS = tuple(f"{table}.{setting}" for table, settings in asdict(Recipe()).items() for setting in settings)
_ONE = re.compile(r"([\w.-]+)\s*=\s*([\w-]+)\s*\(([^()]*)\)")
_MOST_COMBINATIONS = 4096


@dataclass(frozen=True)
class Dimension:
    """From what one setting is drawn; a ``ValueError`` where there is no such kind, or these are no such ends.

    Args:
        kind: ``uniform``, ``log``, whose logarithm is uniform, ``int``, both ends included, or ``choice``.
        ends: both ends of the interval, or all values of a choice; ``None`` leaves the setting out.

    >>> [Dimension(kind, ends).draw(Random(1)) for kind, ends in (("uniform", (0.5, 0.75)), ("log", (0.1, 10.0)))]
    [0.5336, 0.1857]
    >>> [Dimension(kind, ends).draw(Random(1)) for kind, ends in (("int", (1, 6)), ("choice", (0.9, 0.95)))]
    [2, 0.9]
    """

    kind: str
    ends: tuple[Any, ...]

    def __post_init__(self) -> None:
        if self.kind == "choice":
            if len(set(self.ends)) < max(2, len(self.ends)):
                raise ValueError("expected at least two values, no two alike")
            return
        what = {"log": "numbers above 0", "uniform": "numbers", "int": "whole numbers"}
        if self.kind not in what:
            raise ValueError(f"there is no {self.kind}(): known are log, uniform, int and choice")
        number = int if self.kind == "int" else int | float
        fit = len(self.ends) == 2 and all(isinstance(end, number) for end in self.ends)
        if not fit or not (0 if self.kind == "log" else -math.inf) < self.ends[0] < self.ends[1] < math.inf:
            got = ", ".join(map(shown, self.ends))
            raise ValueError(f"expected two {what[self.kind]}, the smaller first, got {got}")

    def draw(self, random: Random) -> Value:
        """A value; a number with a fraction has four digits, so that it can be read and repeated."""
        if self.kind == "choice":
            return random.choice(self.ends)
        low, high = self.ends
        if self.kind == "int":
            return random.randint(low, high)
        is_log = self.kind == "log"
        value = math.exp(random.uniform(math.log(low), math.log(high))) if is_log else random.uniform(low, high)
        return min(max(float(f"{value:.4g}"), low), high)

    def __str__(self) -> str:
        return f"{self.kind}({', '.join(map(shown, self.ends))})"


@dataclass(frozen=True)
class SearchSpace:
    """The settings that are drawn anew for each run of a search; all others are those of the recipe."""

    dimensions: Mapping[str, Dimension]  # by the full name of a setting, such as ``training.lr``

    @classmethod
    def read(cls, texts: Sequence[str], recipe: Recipe) -> Self:
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
                    ends = tuple(_read(end.strip()) for end in inside.split(","))
                    if kind in ("log", "uniform"):
                        ends = tuple(float(end) if type(end) is int else end for end in ends)
                    dimension = Dimension(kind, ends)
                    table, _, field = full.partition(".")
                    for end in ends:
                        type(getattr(recipe, table))(**{field: end})  # checks the value
                    dimensions[full] = dimension
                except ValueError as problem:
                    problems.append(f"{name}: {problem}")
        if not any(text.strip() for text in texts):
            problems.append("it is empty; give settings, such as lr=log(0.1, 10)")
        space = cls(dimensions)
        if problems := problems or space._refusals(recipe):
            raise ValueError("\n  ".join(["--over has these problems:", *problems]))
        return space

    def __str__(self) -> str:
        return " ".join(f"{name}={dimension}" for name, dimension in self.dimensions.items())

    def draw(self, recipe: Recipe, random: Random) -> Recipe:
        return _with(recipe, {name: dimension.draw(random) for name, dimension in self.dimensions.items()})

    def extremes(self, recipe: Recipe) -> Iterator[Recipe]:
        """A few recipes in which each end of each interval and each value of each choice occurs."""
        for number in range(max(len(dimension.ends) for dimension in self.dimensions.values())):
            yield _with(recipe, {name: d.ends[number % len(d.ends)] for name, d in self.dimensions.items()})

    def settings_of(self, recipe: Recipe) -> dict[str, Value]:
        return {name: attrgetter(name)(recipe) for name in self.dimensions}

    def _refusals(self, recipe: Recipe) -> list[str]:
        """What the recipe says against combinations of the ends of the space, each problem once."""
        found: dict[str, str] = {}
        for values in islice(product(*(dimension.ends for dimension in self.dimensions.values())), _MOST_COMBINATIONS):
            given = dict(zip(self.dimensions, values, strict=True))
            try:
                _with(recipe, given)
            except (ValueError, TypeError) as refusal:
                drawn = ", ".join(f"{name}={shown(value)}" for name, value in given.items())
                found.setdefault(str(refusal), drawn)
        return [f"{drawn} cannot be trained: {refusal}" for refusal, drawn in found.items()]


def check_recipe(recipe: Recipe, *, public: bool) -> None:
    """Raise ValueError unless a recipe can be searched, on its test examples if ``public``; all problems are listed."""
    privacy, data, batches, problems = recipe.privacy, recipe.data, recipe.training.batches, []
    if privacy.noise_multiplier is not None:
        given = f"privacy.noise_multiplier = {privacy.noise_multiplier:g}"
        problems.append(f"{given} fixes the noise, which a search computes from its budget and --runs; leave it out")
    if privacy.accountant not in (ACCOUNTANT, "pld"):
        given = f'accountant = "{privacy.accountant}"'
        problems.append(f"{given} has no bound for searches, whose cost is computed by {ACCOUNTANT}; leave it out")
    if data.users is not None:
        problems.append("a search has a guarantee for records, not for users; leave users out, or train once")
    if batches != "poisson":
        problems.append(f'the batches of a search are Poisson; leave batches = "{batches}" out')
    if data.holdout is not None and public:
        problems.append(
            f"holdout = {data.holdout:g} makes the test examples private records, whose exact figures must not choose "
            "among runs; give --score-on held-out, which adds noise"
        )
    if problems:
        raise ValueError("; ".join(problems))


def _read(text: str) -> Value:
    """The value that a text stands for; whether it fits a setting is the recipe's matter."""
    for number in (int, float):
        with suppress(ValueError):
            return number(text)
    return {"none": None, "true": True, "false": False}.get(text, text)


def _full_name(name: str) -> str:
    found = [full for full in _SETTINGS if name in (full, full.partition(".")[2])]
    if len(found) > 1:
        raise ValueError(f"several tables have it: say {' or '.join(found)}")
    if not found:
        known = [*_SETTINGS, *(full.partition(".")[2] for full in _SETTINGS)]
        otherwise = "noisette train --help and the recipes list them"
        raise ValueError(f"no recipe has this setting; {meant(name, known, otherwise)}")
    return found[0]


def _with(recipe: Recipe, values: Mapping[str, Value]) -> Recipe:
    tables: dict[str, dict[str, Any]] = defaultdict(dict)
    for name, value in values.items():
        table, _, field = name.partition(".")
        tables[table][field] = value
    return recipe.changed(tables, "the recipe")
