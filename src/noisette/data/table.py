"""A table of text, and its columns turned to inputs and class numbers as declared."""

from __future__ import annotations

import csv
import gzip
import zlib
from collections.abc import Mapping, Sequence
from pathlib import Path

import numpy as np

from noisette.data import columns
from noisette.data.dataset import Split
from noisette.data.declaration import Declaration
from noisette.data.errors import DataError, in_rows

Table = Mapping[str, Sequence[str]]  # the texts of each column, columns in the order of the file


def rows(path: Path) -> list[list[str]]:
    """The fields of each line of a CSV in UTF-8, gzipped if its name ends in .gz; empty lines are left out.

    Raises:
        DataError: the file is absent or damaged, or no such text; the message quotes none of it.
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
        DataError: a name is empty or there twice; there are no rows; a row has more or fewer fields than the header.
    """
    if len(set(header)) < len(header) or "" in header:
        raise DataError(f"{path}: every column needs a name of its own in the first line, the header")
    if not rows:
        raise DataError(f"{path} has a header but no rows")
    uneven = [index for index, row in enumerate(rows) if len(row) != len(header)]
    if uneven:
        raise DataError(
            f"{path}: there are not {len(header)} fields, as in the header, {in_rows(uneven)} "
            f"(row 1 is the first below the header)"
        )
    return dict(zip(header, zip(*rows, strict=True), strict=True))


def encode(table: Table, *, features: Sequence[str], declaration: Declaration) -> tuple[Split, list[str]]:
    """Inputs from the columns ``features`` in this order, targets from the label column, and what is wrong.

    Inputs are float32, (n, width), where the width follows from the declaration alone: a declared range gives
    values in [-1, 1], declared categories one input each, any other column is taken as its numbers.
    The problems name rows and columns, never values; inputs and targets are of no use if there are any.
    """
    blocks, problems = [], []
    for name in features:
        block, faults = _inputs(name, table[name], declaration)
        blocks.append(block)
        problems += faults
    labels = table[declaration.label]
    targets = columns.codes(labels, declaration.class_names)
    problems += _faults(declaration.label, labels, targets < 0, fault=_no_class(declaration))
    return Split(np.concatenate(blocks, axis=1, dtype=np.float32), targets), problems


def _inputs(name: str, column: Sequence[str], declaration: Declaration) -> tuple[np.ndarray, list[str]]:
    """The inputs that one column gives, (n, width), and what is wrong with it."""
    if name in declaration.categories:
        texts = declaration.categories[name]
        places = columns.codes(column, texts)
        faults = _faults(name, column, places < 0, fault="none of its declared categories")
        return columns.one_hot(places, width=len(texts)), faults
    values = columns.numbers(column)
    fault = "not a finite number (a column of text needs its categories declared)"
    faults = _faults(name, column, ~np.isfinite(values), fault=fault)
    if name in declaration.ranges:
        low, high = declaration.ranges[name]
        values = columns.scaled(values, low=low, high=high)
    return values[:, None], faults


def _faults(name: str, column: Sequence[str], bad: np.ndarray, *, fault: str) -> list[str]:
    """One line for the rows of ``bad`` that lack a value, one for those whose value does not fit."""
    missing, unfit = [], []
    for index in np.flatnonzero(bad).tolist():
        (missing if columns.is_missing(column[index]) else unfit).append(index)
    faults = []
    if missing:
        faults.append(f"column {name!r}: a value is missing {in_rows(missing)}; fill it in or leave the row out")
    if unfit:
        faults.append(f"column {name!r}: {fault} {in_rows(unfit)}")
    return faults


def _no_class(declaration: Declaration) -> str:
    if isinstance(declaration.classes, int):
        return f"not in 0..{declaration.classes - 1} (if labels are text, declare classes as the list of their names)"
    return "none of the declared classes"
