"""Reads tables of text, and encodes their columns as inputs and targets, as declared."""

from __future__ import annotations

import csv
import gzip
import zlib
from collections.abc import Mapping, Sequence
from pathlib import Path

import numpy as np

from noisette.data.columns import Columns
from noisette.data.dataset import Split
from noisette.data.declaration import Declaration
from noisette.data.errors import DataError, in_rows
from noisette.data.values import codes, is_missing

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


def encode(table: Table, declaration: Declaration, features: Columns) -> tuple[Split, list[str]]:
    """Inputs from the columns ``features``, targets from the label column, and the problems found.

    The problems name rows and columns, never values; if there are any, the split must not be used.
    """
    inputs, problems = features.encoded(table)
    labels = table[declaration.label]
    targets, wrong = codes(labels, declaration.class_names), _not_a_class(declaration)
    problems += _problems(declaration.label, labels, targets < 0, problem=wrong)
    users = None if declaration.users is None else table[declaration.users]
    if users is not None:
        problems += _problems(str(declaration.users), users, np.array([*map(is_missing, users)]), problem="")
    return Split(inputs, targets, users), problems


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
