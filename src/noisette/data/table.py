"""Reads tables of text, and encodes their columns as inputs and class numbers, as declared."""

from __future__ import annotations

import csv
import gzip
import zlib
from collections.abc import Mapping, Sequence
from pathlib import Path

import numpy as np

from noisette.data.dataset import Split
from noisette.data.declaration import Declaration
from noisette.data.errors import DataError, in_rows

MISSING = frozenset({"", "?", "na", "n/a", "nan", "null", "none"})  # compared in lower case
Table = Mapping[str, Sequence[str]]  # the texts of each column, columns in the order of the file


def rows(path: Path) -> list[list[str]]:
    """The fields of each line of a CSV in UTF-8, gzipped if its name ends in .gz; empty lines are left out.

    Raises:
        DataError: the file is absent, damaged or not UTF-8; the message quotes none of its contents.
    """
    try:
        opened = gzip.open if path.suffix.lower() == ".gz" else open
        with opened(path, "rt", encoding="utf-8-sig", newline="") as stream:
            return [row for row in csv.reader(stream, skipinitialspace=True) if row]
    except UnicodeDecodeError as error:
        raise DataError(f"{path} is not text in UTF-8; convert it") from error
    except (OSError, EOFError, zlib.error, csv.Error) as error:
        raise DataError(f"{path} cannot be read: {getattr(error, 'strerror', None) or error}") from error


def table(path: Path, *, header: Sequence[str], rows: Sequence[Sequence[str]]) -> Table:
    """The columns of ``rows`` under the names of ``header``; ``path`` names the file in errors.

    Raises:
        DataError: a name is empty or not unique, there are no rows, or a row has more or fewer fields than the header.
    """
    if len(set(header)) < len(header) or "" in header:
        raise DataError(f"{path}: the first line, the header, must give each column a different name")
    if not rows:
        raise DataError(f"{path} has a header but no rows")
    uneven = [index for index, row in enumerate(rows) if len(row) != len(header)]
    if uneven:
        raise DataError(
            f"{path}: the number of fields differs from the {len(header)} of the header {in_rows(uneven)} "
            f"(row 1 is the first below the header)"
        )
    return dict(zip(header, zip(*rows, strict=True), strict=True))


def encode(table: Table, *, features: Sequence[str], declaration: Declaration) -> tuple[Split, list[str]]:
    """Inputs from the columns ``features`` in this order, targets from the label column, and the problems found.

    Inputs are float32, (n, width), where the width follows from the declaration alone: a declared range gives
    values in [-1, 1], each declared category gives one input, and any other column is read as numbers.
    The problems name rows and columns, never values; if there are any, the split must not be used.
    """
    blocks, problems = [], []
    for name in features:
        block, found = _inputs(name, table[name], declaration)
        blocks.append(block)
        problems += found
    labels = table[declaration.label]
    targets = codes(labels, declaration.class_names)
    problems += _problems(declaration.label, labels, targets < 0, problem=_not_a_class(declaration))
    users = None if declaration.users is None else table[declaration.users]
    if users is not None:
        problems += _problems(str(declaration.users), users, np.array([*map(is_missing, users)]), problem="")
    return Split(np.concatenate(blocks, axis=1, dtype=np.float32), targets, users), problems


def _inputs(name: str, column: Sequence[str], declaration: Declaration) -> tuple[np.ndarray, list[str]]:
    """The inputs of one column, (n, width), and its problems."""
    if name in declaration.categories:
        texts = declaration.categories[name]
        indices = codes(column, texts)
        problems = _problems(name, column, indices < 0, problem="none of its declared categories")
        return one_hot(indices, width=len(texts)), problems
    values = numbers(column)
    problem = "not a finite number (for a column of text, declare its categories)"
    problems = _problems(name, column, ~np.isfinite(values), problem=problem)
    if name in declaration.ranges:
        low, high = declaration.ranges[name]
        values = scaled(values, low=low, high=high)
    return values[:, None], problems


def _problems(name: str, column: Sequence[str], bad: np.ndarray, *, problem: str) -> list[str]:
    """One line for the rows of the mask ``bad`` whose value is missing, and one for those whose value is invalid."""
    missing, invalid = [], []
    for index in np.flatnonzero(bad).tolist():
        (missing if is_missing(column[index]) else invalid).append(index)
    problems = []
    if missing:
        problems.append(f"column {name!r}: a value is missing {in_rows(missing)}; fill it in or leave the row out")
    if invalid:
        problems.append(f"column {name!r}: {problem} {in_rows(invalid)}")
    return problems


def _not_a_class(declaration: Declaration) -> str:
    if isinstance(declaration.classes, int):
        return f"not in 0..{declaration.classes - 1} (if labels are text, declare classes as the list of their names)"
    return "none of the declared classes"


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
