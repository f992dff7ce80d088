"""Reads tables of text, and encodes their columns as inputs and targets, as declared."""

from __future__ import annotations

import csv
import gzip
import math
import zlib
from collections.abc import Callable, Iterable, Mapping, Sequence
from itertools import chain, compress
from pathlib import Path
from typing import TextIO

import numpy as np

from noisette.data.column_kinds import Number
from noisette.data.columns import Columns
from noisette.data.dataset import Split
from noisette.data.declaration import Declaration
from noisette.data.errors import DataError, in_rows
from noisette.data.values import codes, is_missing, numbers, with_point

SUFFIXES = (".csv", ".tsv", ".txt", ".csv.gz", ".tsv.gz", ".txt.gz")
_LONGEST = 2**30  # characters of a field
Table = Mapping[str, Sequence[str]]  # the texts of each column, columns in the order of the file


def rows(path: Path) -> list[list[str]]:
    """The fields of each line of a CSV in UTF-8, gzipped if its name ends in .gz; empty lines are left out.

    Fields are separated by commas, semicolons or tabs: by what separates most names in the first line, the header.

    Raises:
        DataError: the file is absent, damaged or not UTF-8; the message quotes none of its contents.
    """
    return _read(path, fields)


def header(path: Path) -> list[str]:
    """The names of the columns, from the first line of a CSV; the rows below it are not parsed.

    Raises:
        DataError: as for :func:`rows`, or the file is empty or of another kind, or a name is none.
    """
    if not path.name.lower().endswith(SUFFIXES):
        raise DataError(f"{path} is a file of another kind; give one that ends in {', '.join(SUFFIXES)}")
    # Bytes below the first line are not looked at, whether they are text or not.
    found = _read(path, lambda stream: fields([stream.readline()]), errors="replace")
    if found and "\N{REPLACEMENT CHARACTER}" in "".join(found[0]):
        raise DataError(f"{path} is not text in UTF-8; convert it")
    if not found:
        raise DataError(_is_empty(path))
    _check_names(path, found[0])
    return found[0]


def _read(path: Path, parse: Callable[[TextIO], list[list[str]]], errors: str = "strict") -> list[list[str]]:
    """What the function makes of the text in a file, which is unzipped if its name ends in .gz."""
    try:
        opened = gzip.open if path.suffix.lower() == ".gz" else open
        with opened(path, "rt", encoding="utf-8-sig", newline="", errors=errors) as stream:
            return parse(stream)
    except UnicodeDecodeError as error:
        raise DataError(f"{path} is not text in UTF-8; convert it") from error
    except csv.Error as error:
        raise DataError(f"{path}: {error}") from error
    except (OSError, EOFError, zlib.error) as error:  # other messages than the system's own quote the file
        why = getattr(error, "strerror", None) or "its gzip format is damaged or cut; write or copy it again"
        raise DataError(f"{path} cannot be read: {why}") from error


def fields(lines: Iterable[str]) -> list[list[str]]:
    """The fields of each line that is not empty; the first line decides what separates them.

    A quote at the start of a field opens it, and must be closed before a separator or the end of a line: otherwise the
    field would take in the records below it. Within it, a quote is doubled. Elsewhere a quote is like any character.

    Raises:
        csv.Error: a field has no end, with its row; or the first line is not a whole record.

    >>> fields(["a;b\\n", "1,5;2\\n"])
    [['a', 'b'], ['1,5', '2']]
    """
    rest = iter(lines)
    header = next(rest, "")
    found: list[list[str]] = []
    before = csv.field_size_limit(_LONGEST)  # a text may be longer than the 128 KiB of the default
    try:
        whole = csv.reader(chain([header], rest), delimiter=_delimiter(header), skipinitialspace=True, strict=True)
        for row in filter(None, whole):
            if not found and {"\n", "\r"} & set("".join(row)):
                raise csv.Error  # the header would take in records
            found.append(row)
    except csv.Error as error:
        raise csv.Error(_open_quote(len(found))) from error
    finally:
        csv.field_size_limit(before)
    return found


def _open_quote(row: int) -> str:
    """What is wrong with the quotes of this row; 0 is the header."""
    if not row:
        return (
            "the quotes in the first line, the header, do not match; write all names of columns on that line, and a "
            'quote within quotes as ""'
        )
    return (
        f"in row {row} (row 1 is the first below the first line) a quote opens a field, and is not closed before a "
        'separator or the end of a line; close it, or write a quote within quotes as ""'
    )


def _delimiter(header: str) -> str:
    """What separates the names in a header: a comma unless there are more semicolons or tabs outside of quotes."""
    outside = "".join(header.split('"')[::2])
    return max(",;\t", key=outside.count)


def table(path: Path, *, header: Sequence[str], rows: Sequence[Sequence[str]]) -> Table:
    """The columns of ``rows`` under the names of ``header``; ``path`` names the file in errors.

    Raises:
        DataError: a name is empty, a number or not unique, there are no rows, or a row has more or fewer fields than
            the header.
    """
    _check_names(path, header)
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


def read(path: Path) -> Table:
    """The columns in a file.

    Raises:
        DataError: as for :func:`rows` and :func:`table`, or the file is empty.
    """
    found = rows(path)
    if not found:
        raise DataError(_is_empty(path))
    return table(path, header=found[0], rows=found[1:])


def _is_empty(path: Path) -> str:
    return f"{path} is empty; its first line must name the columns"


def _check_names(path: Path, header: Sequence[str]) -> None:
    """Refuse a first line that holds a record, whose values would be published as the names of columns."""
    wrong = [place for place, name in enumerate(header, start=1) if is_number(name)]
    if wrong:
        raise DataError(
            f"{path}: the first line must name the columns; its field {wrong[0]} is a number. Add a line of names, or "
            "begin the name with a letter"
        )


def is_number(name: str) -> bool:
    """Whether a name is a finite number, with a point or a comma before its decimals.

    >>> is_number("1,5"), is_number("age"), is_number("nan")
    (True, False, False)
    """
    try:
        return math.isfinite(float(name.replace(",", ".")))
    except ValueError:
        return False


def labelled(table: Table, declaration: Declaration) -> Table:
    """The rows that have a label, where those without one are left out; otherwise all rows."""
    if not declaration.skip_unlabelled:
        return table
    names = {name.casefold() for name in declaration.class_names}
    labels = table[declaration.label]
    kept = [not is_missing(label) or label.strip().casefold() in names for label in labels]
    if not any(kept):
        raise DataError(f"column {declaration.label!r}: no row has a label")
    return {name: tuple(compress(column, kept)) for name, column in table.items()}


def encode(table: Table, declaration: Declaration, features: Columns) -> tuple[Split, list[str]]:
    """Inputs from the columns ``features`` or the text, targets from the label column, and the problems found.

    The problems name rows and columns, never values; if there are any, the split must not be used.
    """
    inputs, problems = inputs_of(table, declaration, features)
    targets, wrong = _targets(table[declaration.label], declaration)
    problems += wrong
    users = None if declaration.users is None else table[declaration.users]
    if users is not None:
        problems += _problems(str(declaration.users), users, np.array([*map(is_missing, users)]), problem="")
    return Split(inputs, targets, users), problems


def inputs_of(table: Table, declaration: Declaration, features: Columns) -> tuple[np.ndarray, list[str]]:
    """The inputs alone, and the problems found."""
    if declaration.text is None:
        return features.encoded(_with_points(table, declaration, features))
    return declaration.numbering.number(table[declaration.text]), []  # a text may be empty


def _with_points(table: Table, declaration: Declaration, features: Columns) -> Table:
    """The table, with a point before the decimals of the columns that are numbers."""
    of_numbers = {name for name, column in features.declared.items() if isinstance(column, Number)}
    return {
        name: with_point(column, declaration.decimal) if name in of_numbers else column
        for name, column in table.items()
    }


def _targets(labels: Sequence[str], declaration: Declaration) -> tuple[np.ndarray, list[str]]:
    """Numbers of classes, int64, or numbers between -1 and 1, float32; and the problems found."""
    if declaration.target is not None:
        found = numbers(with_point(labels, declaration.decimal))
        problems = _problems(declaration.label, labels, np.isnan(found), problem="not a number")
        return declaration.target.scaled(found), problems
    found = codes(labels, declaration.class_names)
    return found, _problems(declaration.label, labels, found < 0, problem=_not_a_class(declaration))


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
