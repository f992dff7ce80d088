"""The kinds of columns that can be declared, and the inputs that each makes of its values."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from noisette.data import values as of_table

REFUSE, INDICATOR, OWN_CATEGORY = "refuse", "indicator", "own category"
# Problems that the declaration of a rule solves.
MISSING_VALUE, OTHER_TEXT = "a value is missing", "none of its declared categories"


@dataclass(frozen=True)
class Number:
    """A column of numbers: one input, in [-1, 1] if it has bounds.

    low, high: declared bounds, both or none; values outside are clipped. Without bounds, numbers are used as they are.
    missing: what a missing value counts as. A number; or "indicator": the middle of the bounds (0 without bounds), and
        a second input, which is 1 where the value is missing and 0 elsewhere; or "refuse".
    """

    low: float | None = None
    high: float | None = None
    missing: float | str = REFUSE

    def problems(self) -> Iterator[str]:
        """What contradicts itself."""
        low, high, missing = self.low, self.high, self.missing
        numbers = {"low": low, "high": high} | ({} if isinstance(missing, str) else {"missing": missing})
        wrong = [name for name, value in numbers.items() if value is not None and not _is_finite(value)]
        if wrong:
            yield f"expected {' and '.join(wrong)} to be finite numbers"
            return
        if (low is None) != (high is None):
            yield "declare both low and high, or none of them"
        elif low is not None and high is not None and not low < high:
            yield f"expected low < high, got low = {low:g}, high = {high:g}"
        if isinstance(missing, str):
            if missing not in (REFUSE, INDICATOR):
                yield f'expected missing to be a number, "{INDICATOR}" or "{REFUSE}", got {missing!r}'
        elif low is not None and high is not None and not low <= missing <= high:
            yield f"expected missing from {low:g} to {high:g}, got {missing:g}"

    def inputs(self, name: str) -> list[str]:
        """A name for each input."""
        return [name, f"{name} is missing"] if self.missing == INDICATOR else [name]

    def encode(self, values: Sequence[Any]) -> tuple[np.ndarray, dict[str, np.ndarray]]:
        """The inputs, float32, (n, 1 or 2), and the rows that the declaration refuses, by their problem."""
        found, missing = of_table.numbers(values), np.fromiter(map(of_table.is_missing, values), bool, len(values))
        refused = {}
        if self.missing == REFUSE:
            refused[MISSING_VALUE] = missing
        middle = 0.0 if self.low is None or self.high is None else (self.low + self.high) / 2
        found = np.where(missing, middle if isinstance(self.missing, str) else self.missing, found)
        with np.errstate(over="ignore"):
            bad = np.isnan(found) if self.low is not None else ~np.isfinite(found.astype(np.float32))
        refused["not a finite number (for a column of text, declare its categories)"] = bad
        if self.low is not None and self.high is not None:
            found = of_table.scaled(found, low=self.low, high=self.high)
        with np.errstate(over="ignore"):
            block = found.astype(np.float32)[:, None]
        if self.missing == INDICATOR:
            block = np.concatenate([block, missing[:, None].astype(np.float32)], axis=1)
        return block, refused


@dataclass(frozen=True)
class Category:
    """A column of texts: one input for each category, 1 for that of the value and 0 elsewhere.

    categories: every text that is known, in the order of the inputs. Where no text is a category as it is written,
        upper and lower case count as the same, and 2.0 as 2.
    missing: what a missing value counts as. One of the categories; or "own category", which is one more input; or
        "refuse". Marks of missing values that are declared as categories are categories.
    other: the same for texts that are no category.
    """

    categories: tuple[str, ...]
    missing: str = REFUSE
    other: str = REFUSE

    def problems(self) -> Iterator[str]:
        """What contradicts itself."""
        known = self.categories
        if not known or len(set(known)) < len(known):
            yield "expected one or more different categories"
        for word in (REFUSE, OWN_CATEGORY):
            if word in known:
                yield f"{word!r} is a rule for missing values; give the category another name"
        for name, rule in (("missing", self.missing), ("other", self.other)):
            if rule not in (REFUSE, OWN_CATEGORY, *known):
                yield f'expected {name} to be one of the categories, "{OWN_CATEGORY}" or "{REFUSE}", got {rule!r}'

    def inputs(self, name: str) -> list[str]:
        """A name for each input."""
        added = [word for word, rule in (("missing", self.missing), ("other", self.other)) if rule == OWN_CATEGORY]
        return [f"{name} = {text}" for text in self.categories] + [f"{name} is {word}" for word in added]

    def encode(self, values: Sequence[Any]) -> tuple[np.ndarray, dict[str, np.ndarray]]:
        """The inputs, float32, (n, width), and the rows that the declaration refuses, by their problem."""
        indices, width, refused = (
            of_table.codes(texts := of_table.texts(values), self.categories),
            len(self.categories),
            {},
        )
        unknown = indices < 0
        missing = unknown & np.fromiter(map(of_table.is_missing, texts), bool, len(texts))
        rules = (
            (MISSING_VALUE, self.missing, missing),
            (OTHER_TEXT, self.other, unknown & ~missing),
        )
        for problem, rule, rows in rules:
            if rule == REFUSE:
                refused[problem] = rows
                continue
            indices[rows] = width if rule == OWN_CATEGORY else self.categories.index(rule)
            width += rule == OWN_CATEGORY
        return of_table.one_hot(indices, width=width), refused


@dataclass(frozen=True)
class Ignored:
    """A column that is not read."""


Column = Number | Category | Ignored
KINDS: Mapping[str, type[Column]] = {"number": Number, "category": Category, "ignored": Ignored}


def _is_finite(value: object) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool) and math.isfinite(value)
