"""Values of a table as numbers and codes: texts of a CSV, or the values of a frame."""

from __future__ import annotations

import math
import re
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

MISSING = frozenset({"", "?", "na", "n/a", "nan", "null", "none", "<na>"})  # compared in lower case
_POINT_AND_COMMA = str.maketrans(".,", ",.")
_WHOLE = re.compile(r"(-?\d+)\.0*")


def is_missing(value: object) -> bool:
    """Whether a value stands for a missing one: an empty text or one such as NA, None, or a number that is NaN.

    >>> is_missing(" NaN "), is_missing("0"), is_missing(None), is_missing(float("nan")), is_missing(0)
    (True, False, True, True, False)
    """
    if isinstance(value, float | np.floating):
        return math.isnan(value)
    return value is None or str(value).strip().lower() in MISSING


def numbers(values: Sequence[Any]) -> np.ndarray:
    """The numbers of a column, float64, (n,); NaN where a value is missing or no number.

    >>> numbers(["1.5", "", "tall", "-inf"])
    array([ 1.5,  nan,  nan, -inf])
    """
    try:
        return np.array(values, dtype=np.float64)
    except (TypeError, ValueError):
        return np.array([_number(value) for value in values])


def with_point(column: Sequence[str], decimal: str) -> Sequence[str]:
    """The texts of numbers whose decimals follow a point or a comma, with a point.

    Points and commas change places, so a number with a sign between its thousands stays none.

    >>> with_point(["1,5", "1.234,5"], ",")
    ['1.5', '1,234.5']
    """
    return column if decimal == "." else [text.translate(_POINT_AND_COMMA) for text in column]


def texts(values: Sequence[Any]) -> list[str]:
    """The values as texts without spaces around them; a whole number has no decimals, and a missing value is "".

    >>> texts([" a", 3.0, None, True])
    ['a', '3', '', 'True']
    """
    return [_text(value) for value in values]


def codes(column: Sequence[str], names: Sequence[str]) -> np.ndarray:
    """The index of each text in ``names``, int64, (n,); -1 where it is not among them.

    A text that is no name as it is written is compared without the spaces around it, without regard to upper and lower
    case if that tells all names apart, and as a whole number: programs write 2 as 2.0 where other values are missing.

    >>> codes(["b", "A", "c", "b "], ("a", "b"))
    array([ 1,  0, -1,  1])
    >>> codes(["B", "A", "c"], ("a", "A", "b"))
    array([-1,  1, -1])
    >>> codes(["1.0", "1.5", "2"], ("1", "2"))
    array([ 0, -1,  1])
    """
    exact = {name: index for index, name in enumerate(names)}
    folded = {name.casefold(): index for index, name in enumerate(names)}
    if len(folded) < len(exact):
        folded = {}
    found = (exact[text] if text in exact else _code(text.strip(), exact, folded) for text in column)
    return np.fromiter(found, dtype=np.int64, count=len(column))


def _code(text: str, exact: Mapping[str, int], folded: Mapping[str, int]) -> int:
    whole = _WHOLE.fullmatch(text)
    for spelling in (text, whole[1]) if whole else (text,):
        found = exact.get(spelling, folded.get(spelling.casefold()))
        if found is not None:
            return found
    return -1


def one_hot(indices: np.ndarray, *, width: int) -> np.ndarray:
    """One input per category, float32, (n, width): 1 at the index, 0 elsewhere.

    >>> one_hot(np.array([1, 0]), width=3)
    array([[0., 1., 0.],
           [1., 0., 0.]], dtype=float32)
    """
    return (indices[:, None] == np.arange(width)).astype(np.float32)


def scaled(values: np.ndarray, *, low: float, high: float) -> np.ndarray:
    """Values clipped to [low, high] and mapped to [-1, 1].

    >>> scaled(np.array([-5.0, 0.0, 5.0, 10.0, 99.0]), low=0, high=10)
    array([-1., -1.,  0.,  1.,  1.])
    """
    return (np.clip(values, low, high) - low) * (2 / (high - low)) - 1


def unscaled(values: np.ndarray, *, low: float, high: float) -> np.ndarray:
    """Values in [low, high] for values in [-1, 1], the inverse of :func:`scaled`; others are clipped.

    >>> unscaled(np.array([-1.0, 0.0, 3.0]), low=0, high=10)
    array([ 0.,  5., 10.])
    """
    return (np.clip(values, -1, 1) + 1) * ((high - low) / 2) + low


def _number(value: object) -> float:
    if is_missing(value):
        return math.nan
    try:
        return float(value)  # type: ignore[arg-type]  # what is no number is caught
    except (TypeError, ValueError):
        return math.nan


def _text(value: object) -> str:
    if isinstance(value, str):
        return value.strip()
    if value is None or is_missing(value):
        return ""
    whole = isinstance(value, float | np.floating) and float(value).is_integer()
    return str(int(value)) if whole else str(value)  # type: ignore[call-overload]
