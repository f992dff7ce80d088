"""What is declared about a table before its rows are read, and what was read from the rows instead."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, TypeVar

import numpy as np

from noisette.data.column_kinds import Ignored, Number
from noisette.data.columns import Columns
from noisette.data.errors import refuse

Value = TypeVar("Value")

_WAYS_OUT = {
    "size": "size=N, the public number of rows; it need not be exact",
    "bounds": "bounds=(low, high), numbers or one for each feature: values outside count as the nearer bound; or "
    "columns=, the kinds of a frame's columns",
    "classes": "classes=[...], all labels that are possible",
    "target_bounds": "target_bounds=(low, high): targets outside count as the nearer bound",
}


@dataclass
class Declarations:
    """Gathers what is declared; what is not is read from the rows, where that is permitted, and noted.

    Args:
        may_read: whether what is not declared may be read from the rows.
    """

    may_read: bool
    read: list[str] = field(default_factory=list)  # the names of what was read from the rows
    missing: list[str] = field(default_factory=list)

    def given(self, name: str, declared: Value | None, from_rows: Callable[[], Value]) -> Value | None:
        """The declaration of this name, or what the rows say, or ``None``, for which :meth:`refuse_missing` raises."""
        if declared is not None:
            return declared
        if not self.may_read:
            self.missing.append(name)
            return None
        self.read.append(name)
        return from_rows()

    def refuse_missing(self) -> None:
        """Raise where something was neither declared nor permitted to be read.

        Raises:
            ValueError: names each of them, and the ways out.
        """
        if not self.missing:
            return
        raise ValueError(
            f"not declared: {', '.join(self.missing)}. What is learnt from the rows without noise is not covered by "
            "epsilon, so declare it: "
            + "; ".join(_WAYS_OUT[name] for name in self.missing)
            + ". Where the rows themselves may tell it, as in a trial on public data, set "
            "undeclared_from_rows=True: the statement in privacy_ then says what is not covered"
        )


Pair = tuple[Any, Any]


def feature_bounds(bounds: Pair | Mapping[str, Pair], names: Sequence[str] | None, features: int) -> np.ndarray:
    """The lowest and the highest value of each feature, float64, shape (2, features).

    Args:
        bounds: (low, high), each a number or one number for each feature; or a mapping from the name of a feature to
            its (low, high).
        names: of the features, if they have names.
        features: their number.

    Raises:
        ValueError: bounds have another form, are not finite or not in ascending order, or features are missing.
    """
    if isinstance(bounds, Mapping):
        bounds = _by_name(bounds, names)
    try:
        low, high = bounds
        pair = np.array([np.broadcast_to(np.asarray(v, dtype=np.float64), (features,)) for v in (low, high)])
    except (TypeError, ValueError) as error:
        raise ValueError(
            f"expected bounds as (low, high), each a number or {features} numbers, one for each feature: {error}"
        ) from error
    check_ascending("bounds", pair)
    return pair


def _by_name(bounds: Mapping[str, Pair], names: Sequence[str] | None) -> Pair:
    if names is None:
        raise ValueError("bounds by name need X as a frame whose columns have names; or give bounds=(lows, highs)")
    problems = [f"{name!r} has no bounds" for name in names if name not in bounds]
    problems += [f"there is no column {name!r}" for name in bounds if name not in names]
    if problems:
        raise ValueError(f"bounds: {'; '.join(problems)}")
    return tuple(zip(*(bounds[name] for name in names), strict=True))  # type: ignore[return-value]


def check_ascending(name: str, pair: np.ndarray) -> None:
    """Check declared bounds, shape (2, ...).

    Raises:
        ValueError: a bound is not finite, or a low one is not below its high one.
    """
    with np.errstate(over="ignore"):
        usable = np.isfinite(pair).all() and np.isfinite(pair[1] - pair[0]).all() and (pair[0] < pair[1]).all()
    if not usable:
        raise ValueError(f"expected {name} to be finite, each low one below its high one")


def bounds_of_rows(rows: np.ndarray) -> Pair:
    """The lowest and highest value in each column; a constant column gets a bound above its value."""
    low, high = rows.min(axis=0), rows.max(axis=0)
    return low, np.where(low < high, high, low + np.maximum(1.0, np.abs(low)))


def columns_of(columns: Columns | Path | str) -> Columns:
    """The declared columns, read where a file is named.

    Raises:
        DataError: the file is not as :meth:`Columns.read` expects it, or a number has no bounds; all are named.
    """
    declared = columns if isinstance(columns, Columns) else Columns.read(columns)
    unbounded = [
        f"{name!r}: declare low and high, by which its values are scaled"
        for name, column in declared.declared.items()
        if isinstance(column, Number) and column.low is None
    ]
    refuse("columns", unbounded)
    return declared


def bounds_of_columns(columns: Columns) -> np.ndarray:
    """The lowest and the highest value of each input that the columns make, float64, shape (2, inputs)."""
    low = [
        -1.0 if isinstance(column, Number) and place == 0 else 0.0
        for name in columns.names
        for column in [columns.declared[name]]
        if not isinstance(column, Ignored)
        for place in range(len(column.inputs(name)))
    ]
    return np.array([low, np.ones(len(low))])
