"""Reads tables of the user's own, and encodes their columns as inputs and targets, as declared.

All values are read as texts and nothing is inferred from them: what a value means is declared. pandas reads Parquet
alone: its parser of CSV lets a quote that is not closed, or a row that is too short, change other records.
"""

from __future__ import annotations

import csv
import gzip
import lzma
import zlib
from collections.abc import Callable, Iterable, Mapping, Sequence
from itertools import chain
from pathlib import Path
from typing import Any, TextIO

import numpy as np

from noisette.data.columns import Columns, Declaration, Number, close_name, codes, missing, numbers, text_of
from noisette.data.dataset import DataError, DataSet, Split, in_rows, refuse

SUFFIXES = (".csv", ".tsv", ".txt", ".csv.gz", ".tsv.gz", ".txt.gz", ".parquet")
_LONGEST = 2**30  # characters of a field
_POINT_AND_COMMA = str.maketrans(".,", ",.")
Table = Mapping[str, Sequence[str]]  # the texts of each column, columns in the order of the file


# Files


def read(path: Path) -> Table:
    """The columns in a CSV or a Parquet file.

    The fields of a CSV are separated by commas, semicolons or tabs: by what separates most names in the first line. A
    ``DataError`` quotes none of the contents.
    """
    names, *found = _lines(path)
    return table(path, header=names, rows=found)


def header(path: Path) -> list[str]:
    """The names of the columns; no value is looked at."""
    if not path.name.lower().endswith(SUFFIXES):
        raise DataError(f"{path} is a file of another kind; give one that ends in {', '.join(SUFFIXES)}")
    [found] = _lines(path, names_alone=True)
    if "\N{REPLACEMENT CHARACTER}" in "".join(found):
        raise DataError(f"{path} {_NO_TEXT}")
    _check_names(path, found)
    return found


def _lines(path: Path, *, names_alone: bool = False) -> list[list[str]]:
    """The names of the columns, and the values in each row."""
    if path.suffix.lower() == ".parquet":
        found = _frame(path, names_alone=names_alone)
    elif names_alone:  # bytes below the first line are not looked at, whether they are text or not
        found = parsed(path, lambda stream: fields([stream.readline()]), errors="replace")[:1]
    else:
        found = parsed(path, fields)
    if not found or not found[0]:
        raise DataError(f"{path} is empty; its first line must name the columns")
    return found


def rows(path: Path) -> list[list[str]]:
    """The fields of each line of a CSV, as :func:`fields` gives them."""
    return parsed(path, fields)


_NO_TEXT = "is not text in UTF-8; convert it, as by iconv -f latin1 -t utf8"


def parsed(path: Path, parse: Callable[[TextIO], list[list[str]]], errors: str = "strict") -> list[list[str]]:
    """What the function makes of the text in a file, which is unzipped if its name ends in .gz or .xz."""
    try:
        opened: Any = {".gz": gzip.open, ".xz": lzma.open}.get(path.suffix.lower(), open)
        with opened(path, "rt", encoding="utf-8-sig", newline="", errors=errors) as stream:
            return parse(stream)
    except UnicodeError as error:
        raise DataError(f"{path} {_NO_TEXT}") from error
    except DataError as error:
        raise DataError(f"{path}: {error}") from error
    except (OSError, EOFError, zlib.error, lzma.LZMAError) as error:  # only the system's messages do not quote the file
        why = getattr(error, "strerror", None) or f"its {path.suffix.lower()} format is damaged or cut; copy it again"
        raise DataError(f"{path} cannot be read: {why}") from error


def fields(lines: Iterable[str]) -> list[list[str]]:
    """The fields of each line that is not empty; the first line decides what separates them.

    A quote at the start of a field opens it, and must be closed before a separator or the end of a line: otherwise the
    field would take in the records below it. Within it, a quote is doubled. Elsewhere a quote is like any character.
    """
    rest = iter(lines)
    first = next(rest, "")
    outside = "".join(first.split('"')[::2])  # of quotes
    delimiter = max(",;\t", key=outside.count)
    found: list[list[str]] = []
    before = csv.field_size_limit(_LONGEST)  # a text may be longer than the 128 KiB of the default
    try:
        reader = csv.reader(chain([first], rest), delimiter=delimiter, skipinitialspace=True, strict=True)
        for row in filter(None, reader):
            if not found and {"\n", "\r"} & set("".join(row)):
                raise csv.Error  # the header would take in records
            found.append(row)
    except csv.Error as error:
        raise DataError(
            f"in row {len(found)} (row 1 is the first below the first line) a quote opens a field, and is not closed "
            'before a separator or the end of a line; close it, or write a quote within quotes as ""'
            if found
            else "the quotes in the first line, the header, do not match; write all names of columns on that line, and "
            'a quote within quotes as ""'
        ) from error
    finally:
        csv.field_size_limit(before)
    return found


def _frame(path: Path, *, names_alone: bool) -> list[list[str]]:
    """The names and the rows in a Parquet file, every value as a text."""
    if not path.is_file():
        raise DataError(f"{path} cannot be read: there is no such file")
    try:
        import pandas
        from pyarrow import parquet

        if names_alone:
            return [parquet.read_schema(path).names]
        frame = pandas.read_parquet(path, engine="pyarrow", dtype_backend="pyarrow")
    except ImportError as error:
        raise DataError(
            f"{path}: Parquet is read by pyarrow: pip install 'noisette[tables]', or write a CSV"
        ) from error
    except Exception as error:  # of any kind, and it may quote the file
        raise DataError(f"{path} is no Parquet file that can be read; write or copy it again") from error
    columns = [column.astype(object).where(column.notna(), None).map(text_of) for _, column in frame.items()]
    return [list(map(str, frame.columns)), *map(list, zip(*columns, strict=True))]


def table(path: Path, *, header: Sequence[str], rows: Sequence[Sequence[str]]) -> Table:
    """The columns of ``rows`` under the names of ``header``; ``path`` names the file in errors."""
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


def _check_names(path: Path, header: Sequence[str]) -> None:
    """Refuse a first line that holds a record, whose values would be published as the names of columns."""
    wrong = np.flatnonzero(np.isfinite(numbers(name.replace(",", ".") for name in header)))
    if wrong.size:
        raise DataError(
            f"{path}: the first line must name the columns; its field {wrong[0] + 1} is a number. Add a line of names, "
            "or begin the name with a letter"
        )


# Inputs and targets


def read_set(path: Path, declaration: Declaration) -> DataSet:
    """The table as a data set, inputs (n, features) as :func:`encode` makes them; see `Declaration`."""
    classes, size = declaration.public_facts(path.name)
    train = read(path)
    refuse(path.name, _absent_columns(train, declaration))
    features = declaration.features(train)
    split, problems = encode(train, declaration, features)
    test_split = None
    if declaration.test is not None:
        test = read(declaration.test)
        if test.keys() != train.keys():
            raise DataError(f"{declaration.test.name} must have the columns of {path.name}, in any order")
        test_split, test_problems = encode(test, declaration, features)
        problems += [f"{declaration.test.name}: {problem}" for problem in test_problems]
    refuse(f"{path.name} (row 1 is the first below the header)", problems)
    return DataSet(
        path.name,
        split,
        test_split,
        classes=classes,
        declared_size=size,
        words=declaration.numbering.size if declaration.text else 0,
        target=declaration.target,
        features=() if declaration.text else features.names,
    )


def _absent_columns(found: Table, declaration: Declaration) -> list[str]:
    problems = []
    for fact in ("label", "users", "text"):
        name = getattr(declaration, fact)
        if name is not None and name not in found:
            close = close_name(name, found)
            hint = f"did you mean {close!r}?" if close else f"it has {', '.join(map(repr, found))}"
            problems.append(f"{fact}: there is no column {name!r}; {hint}")
    if declaration.columns is not None:
        declared = {declaration.label, declaration.users, *declaration.columns.declared}
        problems += [
            f'columns: column {name!r} is not declared; declare it, or as kind = "ignored"'
            for name in found
            if name not in declared
        ]
        problems += [f"columns: {problem}" for problem in declaration.columns.absent(found)]
    if not set(found) - {declaration.label, declaration.users}:
        problems.append("there is no column besides the label" + (" and the users" if declaration.users else ""))
    return problems


def encode(table: Table, declaration: Declaration, features: Columns) -> tuple[Split, list[str]]:
    """Inputs from the columns ``features`` or the text, targets from the label column, and the problems found.

    The problems name rows and columns, never values; if there are any, the split must not be used.
    """
    inputs, problems = inputs_of(table, declaration, features)
    labels, target = table[declaration.label], declaration.target
    if target is not None:
        found, problem = numbers(_plain(labels, declaration)), "not a number"
        targets, wrong = target.scaled(found), np.isnan(found)
    else:
        targets = codes(labels, declaration.class_names)
        problem, wrong = "none of the declared classes", targets < 0
        if isinstance(declaration.classes, int):
            last = declaration.classes - 1
            problem = f"not in 0..{last} (if labels are text, declare classes as the list of their names)"
    problems += _problems(declaration.label, labels, wrong, problem=problem)
    users = None if declaration.users is None else table[declaration.users]
    if users is not None:
        problems += _problems(str(declaration.users), users, missing(users), problem="")
    return Split(inputs, targets, users), problems


def inputs_of(table: Table, declaration: Declaration, features: Columns) -> tuple[np.ndarray, list[str]]:
    """The inputs alone, and the problems found."""
    if declaration.text is not None:
        return declaration.numbering.number(table[declaration.text]), []  # a text may be empty
    of_numbers = {name: column for name, column in features.declared.items() if isinstance(column, Number)}
    plain = {n: _plain(table[n], declaration, column.missing_words) for n, column in of_numbers.items() if n in table}
    return features.encoded({**table, **plain})


def _plain(column: Sequence[str], declaration: Declaration, words: Sequence[str] = ()) -> Sequence[str]:
    """The texts of numbers with a point before decimals.

    Where decimals follow a comma, points and commas change places, so that a point is none.
    """
    if declaration.decimal == ".":
        return column
    absent = missing(column, words)
    return [text if gone else text.translate(_POINT_AND_COMMA) for text, gone in zip(column, absent, strict=True)]


def _problems(name: str, column: Sequence[str], bad: np.ndarray, *, problem: str) -> list[str]:
    """One line for the rows of the mask ``bad`` whose value is missing, and one for those whose value is invalid."""
    absent = missing(column)
    lines = ((bad & absent, "a value is missing", "; fill it in or leave the row out"), (bad & ~absent, problem, ""))
    return [
        f"column {name!r}: {problem} {in_rows(np.flatnonzero(rows).tolist())}{way_out}"
        for rows, problem, way_out in lines
        if rows.any()
    ]
