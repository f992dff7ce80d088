"""The space of a search: which settings of a recipe are drawn for each run, and from what."""

from __future__ import annotations

import difflib
import re
from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, fields, replace
from functools import cache
from itertools import product
from random import Random
from types import UnionType
from typing import Any, get_args, get_type_hints

from noisette.training.recipe import Recipe
from noisette.training.search.dimensions import Dimension, Value, in_words, read_dimension

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
    members = get_args(hint) if isinstance(hint, UnionType) else (hint,)
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
    sections: dict[str, Any] = {
        section: replace(getattr(recipe, section), **given) for section, given in by_section.items()
    }
    return replace(recipe, **sections)
