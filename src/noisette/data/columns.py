"""Converts columns of text to network inputs, by declared ranges and categories."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

MISSING = frozenset({"", "?", "na", "n/a", "nan", "null", "none"})  # compared in lower case


def numbers(column: Sequence[str]) -> np.ndarray:
    """The numbers of a column, float32, (n,); not finite where a text is not a finite number."""
    try:
        values = np.array(column, dtype=np.float64)
    except ValueError:
        values = np.array([_number(text) for text in column])
    with np.errstate(over="ignore"):
        return values.astype(np.float32)


def codes(column: Sequence[str], names: Sequence[str]) -> np.ndarray:
    """The index of each text in ``names``, int64, (n,); -1 where it is not among them.

    >>> codes(["b", "a", "c"], ("a", "b"))
    array([ 1,  0, -1])
    """
    indices = {name: index for index, name in enumerate(names)}
    return np.fromiter((indices.get(text, -1) for text in column), dtype=np.int64, count=len(column))


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


def is_missing(text: str) -> bool:
    """Whether a field stands for a missing value.

    >>> is_missing(" NaN "), is_missing("0")
    (True, False)
    """
    return text.strip().lower() in MISSING


def _number(text: str) -> float:
    try:
        return float(text)
    except ValueError:
        return np.nan
