"""Reads tables of the user's own, and encodes their columns as inputs and targets, as declared.

All values are read as texts and nothing is inferred from them: what a value means is declared. pandas reads Parquet and
Excel alone: its parser of CSV lets a quote that is not closed, or a row that is too short, change other records, and
that of JSON rounds whole numbers where a value is missing.
"""

import csv
import gzip
import json
import lzma
import re
import zlib
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from itertools import chain, compress
from pathlib import Path
from typing import Any, TextIO

import numpy as np

from noisette.data.columns import Columns, Declaration, Number, codes, meant, missing, numbers, text_of
from noisette.data.dataset import DataError, DataSet, Split, in_rows, refuse
from noisette.errors import Mistakes

_JSON, FRAMES = (".jsonl", ".jsonl.gz"), (".parquet", ".xlsx")
SUFFIXES = (".csv", ".tsv", ".txt", ".csv.gz", ".tsv.gz", ".txt.gz", *_JSON, *FRAMES)
_LONGEST = 2**30  # characters of a field
_POINT_AND_COMMA = str.maketrans(".,", ",.")
Rows = dict[int, list[str]]  # the fields of each row, by the number of the row in an editor
NUMBERED = "rows are numbered as in an editor"


class Table(dict[str, Sequence[str]]):
    """The texts of each column, columns in the order of the file, and the numbers of the rows in an editor."""

    def __init__(self, columns: Mapping[str, Sequence[str]], numbers: Sequence[int]) -> None:
        super().__init__(columns)
        self.numbers = numbers


def read(path: Path, encoding: str = "utf-8") -> Table:
    """The columns in a file: a CSV, JSON lines, Parquet or the first sheet of an Excel workbook.

    What separates most names in the first line of a CSV separates its fields: commas, semicolons or tabs. A
    ``DataError`` quotes none of the contents.
    """
    (_, names), *found = _lines(path, encoding).items()
    return table(path, header=names, rows=dict(found))


def header(path: Path, encoding: str = "utf-8") -> list[str]:
    """The names of the columns: no value is looked at, but of JSON lines the first is parsed, which has the names."""
    if not path.name.lower().endswith(SUFFIXES):
        raise DataError(f"{path} is a file of another kind; give one that ends in {', '.join(SUFFIXES)}")
    found = next(iter(_lines(path, encoding, names_alone=True).values()))
    if "\N{REPLACEMENT CHARACTER}" in "".join(found):
        raise DataError(f"{path} {_not_in(encoding)}")
    _check_names(path, found)
    return found


def _lines(path: Path, encoding: str, *, names_alone: bool = False) -> Rows:
    """The names of the columns, and the values in each row."""
    suffix = path.name.lower()
    parse = _objects if suffix.endswith(_JSON) else fields
    if suffix.endswith(FRAMES):
        found = _frame(path, names_alone=names_alone)
    else:  # bytes below a first line that is wanted alone are not looked at, whether they are text or not
        first = (lambda stream: parse([next(filter(str.strip, stream), "")])) if names_alone else parse
        found = parsed(path, first, encoding, "replace" if names_alone else "strict")
    if not any(found.values()):
        raise DataError(f"{path} is empty; its first line must name the columns")
    return found


def _not_in(encoding: str) -> str:
    return (
        f"is not text in {encoding.upper()}; convert it, or declare its encoding: noisette schema --encoding "
        'latin-1, or encoding = "latin-1" in a schema or recipe'
    )


def parsed(path: Path, parse: Callable[[TextIO], Rows], encoding: str = "utf-8", errors: str = "strict") -> Rows:
    """What the function makes of the text in a file, which is unzipped if its name ends in .gz or .xz."""
    signed = "utf-8-sig" if encoding.lower() in ("utf-8", "utf8") else encoding
    try:
        opened: Any = {".gz": gzip.open, ".xz": lzma.open}.get(path.suffix.lower(), open)
        with opened(path, "rt", encoding=signed, newline="", errors=errors) as stream:
            return parse(stream)
    except UnicodeError as error:
        raise DataError(f"{path} {_not_in(encoding)}") from error
    except DataError as error:
        raise DataError(f"{path}: {error}") from error
    except (OSError, EOFError, zlib.error, lzma.LZMAError) as error:  # only the system's messages do not quote the file
        why = getattr(error, "strerror", None) or f"its {path.suffix.lower()} format is damaged or cut; copy it again"
        raise DataError(f"{path} cannot be read: {why}") from error


def fields(lines: Iterable[str]) -> Rows:
    """The fields of each line that is not empty; the first line decides what separates them.

    A quote at the start of a field opens it, and must be closed before a separator or the end of a line: otherwise the
    field would take in the records below it. Within it, a quote is doubled. Elsewhere a quote is like any character.
    """
    rest = iter(lines)
    above, first = next(((blank, line) for blank, line in enumerate(rest) if line.strip()), (0, ""))
    outside = "".join(first.split('"')[::2])  # of quotes
    delimiter = max(",;\t", key=outside.count)
    found, begins = Rows(), above + 1
    before = csv.field_size_limit(_LONGEST)  # a text may be longer than the 128 KiB of the default
    try:
        reader = csv.reader(chain([first], rest), delimiter=delimiter, skipinitialspace=True, strict=True)
        for row in reader:
            if not found and {"\n", "\r"} & set("".join(row)):
                raise csv.Error  # the header would take in records
            if row:
                found[begins] = row
            begins = above + reader.line_num + 1
    except csv.Error as error:
        raise DataError(
            f"in row {begins} ({NUMBERED}) a quote opens a field, and is not closed before a separator or the end of "
            'a line; close it, or write a quote within quotes as ""'
            if found
            else "the quotes in the first line, the header, do not match; write all names of columns on that line, and "
            'a quote within quotes as ""'
        ) from error
    finally:
        csv.field_size_limit(before)
    return found


def _objects(lines: Iterable[str]) -> Rows:
    """The names in the first object of JSON, then the values of each object, one on a line, as texts."""
    found, names, wrong = Rows(), dict[str, Any](), list[int]()
    for index, line in ((index, line) for index, line in enumerate(lines) if line.strip()):
        try:
            values: Any = json.loads(line)
        except (ValueError, RecursionError):
            values = None
        alike = isinstance(values, dict) and (not found or values.keys() <= names.keys())
        if not alike or any(isinstance(value, dict | list) for value in values.values()):
            wrong.append(index)
        else:
            names = names or values
            found.setdefault(0, list(names))
            found[index + 1] = [text_of(values.get(name)) for name in names]
    if wrong:
        raise DataError(
            f"no object of plain values by the names of the first line {in_rows(wrong)}; write one on each line, and "
            "all names on the first one, with null where it has no value"
        )
    return found


def _frame(path: Path, *, names_alone: bool) -> Rows:
    """The names and rows in a Parquet file, or the first sheet of an Excel workbook but for empty rows, as texts."""
    kind = path.suffix.lower()
    if not path.is_file():
        raise DataError(f"{path} cannot be read: there is no such file")
    try:
        import pandas

        if kind == ".xlsx":  # without inference the first row is one like any other
            only = 1 if names_alone else None
            cells = pandas.read_excel(path, header=None, dtype=object, na_filter=False, engine="openpyxl", nrows=only)
            names, frame = [text_of(name) for name in cells.head(1).to_numpy().ravel()], cells.tail(-1)
        elif names_alone:
            from pyarrow import parquet

            names, frame = parquet.read_schema(path).names, pandas.DataFrame()
        else:
            frame = pandas.read_parquet(path, engine="pyarrow", dtype_backend="pyarrow")
            names = list(map(str, frame.columns))
    except ImportError as error:
        by = "openpyxl" if kind == ".xlsx" else "pyarrow"
        raise DataError(f"{path}: {kind} is read by {by}: pip install 'noisette[tables]', or write a CSV") from error
    except Exception as error:  # of any kind, and it may quote the file
        raise DataError(f"{path} is no {kind} file that can be read; write or copy it again") from error
    columns = [column.astype(object).where(column.notna(), None).map(text_of) for _, column in frame.items()]
    rows = enumerate(map(list, zip(*columns, strict=True)), 2 if kind == ".xlsx" else 1)
    return {0: names} | {number: row for number, row in rows if any(row) or kind == ".parquet" or len(names) == 1}


def table(path: Path, *, header: Sequence[str], rows: Rows) -> Table:
    """The columns of ``rows`` under the names of ``header``; ``path`` names the file in errors."""
    _check_names(path, header)
    if not rows:
        raise DataError(f"{path} has a header but no rows")
    if uneven := [number for number, row in rows.items() if len(row) != len(header)]:
        where = f"{in_rows(range(len(uneven)), uneven)} ({NUMBERED})"
        raise DataError(f"{path}: the number of fields differs from the {len(header)} of the header {where}")
    return Table(dict(zip(header, zip(*rows.values(), strict=True), strict=True)), list(rows))


def _check_names(path: Path, header: Sequence[str]) -> None:
    """Refuse a first line that holds a record, whose values would be published as the names of columns."""
    wrong = np.flatnonzero(np.isfinite(numbers(name.replace(",", ".") for name in header)))
    if wrong.size:
        raise DataError(
            f"{path}: the first line must name the columns; its field {wrong[0] + 1} is a number. Add a line of names, "
            "or begin the name with a letter"
        )
    for k, name in enumerate(header):
        if not name or name in header[:k]:
            fault = f"that of column {header.index(name) + 1}" if name else "none"
            raise DataError(f"{path}: the header must give each column a different name; column {k + 1} has {fault}")


def read_set(path: Path, declaration: Declaration) -> DataSet:
    """The table as a data set, inputs (n, features) as :func:`encode` makes them; see `Declaration`."""
    classes, size = check_columns(path, declaration)
    train, mistakes, test = read(path, declaration.encoding), Mistakes(), declaration.test
    features = declaration.features(train)
    trained = mistakes.check(lambda: encode(path, train, declaration, features))
    held_out = mistakes.check(lambda: test and encode(test, read(test, declaration.encoding), declaration, features))
    mistakes.refuse(DataError)
    assert trained is not None, "refused otherwise"
    words, names = (declaration.numbering.size, ()) if declaration.text else (0, features.names)
    return DataSet(path.name, trained, held_out, classes, size, words=words, target=declaration.target, features=names)


def check_columns(path: Path, declaration: Declaration) -> tuple[int, int]:
    """The declared number of classes (1 for regression) and size.

    A ``DataError`` lists what is undeclared, and columns that a table or its test table lack; no row is read.
    """
    facts = declaration.public_facts(path.name)
    found = header(path, declaration.encoding)
    refuse(path.name, list(_absent_columns(found, declaration)))
    if (test := declaration.test) and set(header(test, declaration.encoding)) != set(found):
        raise DataError(f"{test.name} must have the columns of {path.name}, in any order")
    return facts


def _absent_columns(found: Sequence[str], declaration: Declaration) -> Iterator[str]:
    for fact in ("label", "users", "text"):
        name = getattr(declaration, fact)
        if name is not None and name not in found:
            all_of_them = f"it has {', '.join(map(repr, found))}"
            yield f"{fact}: there is no column {name!r}; {meant(name, found, all_of_them)}"
    if (columns := declaration.columns) is not None:
        undeclared = [name for name in found if name not in (declaration.label, declaration.users, *columns.declared)]
        way_out = 'declare it, or as kind = "ignored"'
        yield from (f"columns: column {name!r} is not declared; {way_out}" for name in undeclared)
        yield from (f"columns: {problem}" for problem in columns.absent(found))
    if not set(found) - {declaration.label, declaration.users}:
        yield "there is no column besides the label" + (" and the users" if declaration.users else "")


def _labelled(table: Table, declaration: Declaration) -> Table:
    """The rows that have a label, where those without one are left out; otherwise all rows."""
    if not declaration.skip_unlabelled:
        return table
    labels = table[declaration.label]
    kept = ~missing(labels) | (codes(labels, declaration.class_names) >= 0)  # a class may have a name such as "none"
    if not kept.any():
        raise DataError(f"column {declaration.label!r}: no row has a label")
    of_kept = {name: tuple(compress(column, kept)) for name, column in table.items()}
    return Table(of_kept, tuple(compress(table.numbers, kept)))


def encode(path: Path, table: Table, declaration: Declaration, features: Columns) -> Split:
    """Inputs from the columns ``features`` or the text, and targets from the label column, of a table at this path.

    A ``DataError`` lists all problems by rows and columns, never by values.
    """
    table = _labelled(table, declaration)
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
    problems += _problems(table, declaration.label, wrong, problem=problem, by=" (--skip-unlabelled)")
    users = None if declaration.users is None else table[declaration.users]
    if users is not None:
        problems += _problems(table, str(declaration.users), missing(users), problem="")
    refuse(f"{path.name} ({NUMBERED})", problems)
    return Split(inputs, targets, users)


def inputs_of(table: Table, declaration: Declaration, features: Columns) -> tuple[np.ndarray, list[str]]:
    """The inputs alone, and the problems found."""
    if declaration.text is not None:
        return declaration.numbering.number(table[declaration.text]), []  # a text may be empty
    of_numbers = {name: column for name, column in features.declared.items() if isinstance(column, Number)}
    plain = {n: _plain(table[n], declaration, column.missing_words) for n, column in of_numbers.items() if n in table}
    return features.encoded({**table, **plain}, table.numbers)


def _plain(column: Sequence[str], declaration: Declaration, words: Sequence[str] = ()) -> Sequence[str]:
    """The texts of numbers with a point before decimals and nothing between thousands."""
    if declaration.thousands:  # left out where three digits follow
        between = re.compile(rf"(?<=\d){re.escape(declaration.thousands)}(?=\d{{3}}(?!\d))")
        column = [between.sub("", text) for text in column]
    if declaration.decimal == ".":
        return column
    # Points and commas change places, so that a point is no sign of decimals.
    absent = missing(column, words)
    return [text if gone else text.translate(_POINT_AND_COMMA) for text, gone in zip(column, absent, strict=True)]


def _problems(table: Table, name: str, bad: np.ndarray, *, problem: str, by: str = "") -> list[str]:
    """One line for the rows of the mask ``bad`` whose value is missing, and one for those whose value is invalid."""
    absent, way_out = missing(table[name]), f"; fill it in or leave the row out{by}"
    lines = ((bad & absent, "a value is missing", way_out), (bad & ~absent, problem, ""))
    return [
        f"column {name!r}: {problem} {in_rows(np.flatnonzero(rows).tolist(), table.numbers)}{way_out}"
        for rows, problem, way_out in lines
        if rows.any()
    ]
