"""What is declared about the columns of a table, and their values as inputs of a model."""

from __future__ import annotations

import tomllib
from collections.abc import Iterator, Mapping
from dataclasses import MISSING, dataclass, fields
from difflib import get_close_matches
from pathlib import Path
from typing import Any, Protocol, Self

import numpy as np

from noisette.data import values as of_table
from noisette.data.column_kinds import KINDS, MISSING_VALUE, OTHER_TEXT, Category, Column, Ignored, Number
from noisette.data.errors import DataError, in_rows, refuse


class Frame(Protocol):
    """Columns of values by name, all of one length: a mapping, or a frame of pandas."""

    def __getitem__(self, name: str, /) -> Any: ...
    def __contains__(self, name: Any, /) -> bool: ...


_WAYS_OUT = {
    MISSING_VALUE: "; declare what it counts as, fill it in, or leave the row out",
    OTHER_TEXT: "; declare them, or what others count as",
}


@dataclass(frozen=True)
class Columns:
    """The columns of a table that are inputs of a model, with what is publicly known about each.

    >>> columns = Columns.of({
    ...     "age": {"kind": "number", "low": 0, "high": 100, "missing": "indicator"},
    ...     "job": {"kind": "category", "categories": ["cook", "smith"], "other": "own category"},
    ...     "name": {"kind": "ignored"},
    ... })
    >>> columns.inputs
    ('age', 'age is missing', 'job = cook', 'job = smith', 'job is other')
    >>> columns.encode({"age": ["25", "", "130"], "job": ["smith", "cook", "spy"]})
    array([[-0.5,  0. ,  0. ,  1. ,  0. ],
           [ 0. ,  1. ,  1. ,  0. ,  0. ],
           [ 1. ,  0. ,  0. ,  0. ,  1. ]], dtype=float32)

    Guarantee: names and number of the inputs, and what a value is mapped to, depend on the declaration alone: never on
    another row.

    Raises:
        DataError: lists every declaration that contradicts itself.
    """

    declared: Mapping[str, Column]

    def __post_init__(self) -> None:
        refuse(
            "columns",
            [
                f"{name!r}: {problem}"
                for name, column in self.declared.items()
                if not isinstance(column, Ignored)
                for problem in column.problems()
            ],
        )

    @classmethod
    def of(cls, tables: Mapping[str, Mapping[str, Any]], source: str = "columns") -> Self:
        """The columns in tables of plain values, as a TOML file has them: ``kind``, and the fields of that kind.

        Raises:
            DataError: lists every unknown kind or field and every value of another type; ``source`` is named.
        """
        problems: list[str] = []
        found = {name: _column(name, table, problems) for name, table in tables.items()}
        refuse(source, problems)
        return cls({name: column for name, column in found.items() if column is not None})

    @classmethod
    def read(cls, path: Path | str) -> Self:
        """The columns in the tables ``[columns.NAME]`` of a TOML file, such as ``noisette schema`` writes.

        Raises:
            DataError: the file is no TOML, has no such tables, or they are not as :meth:`of` expects them.
        """
        try:
            tables = tomllib.loads(Path(path).read_text(encoding="utf-8"))
        except (tomllib.TOMLDecodeError, UnicodeDecodeError) as error:
            raise DataError(f"{path} is not a TOML file: {error}") from error
        if not isinstance(tables.get("columns"), dict):
            raise DataError(f"{path} declares no columns; write a table [columns.NAME] for each")
        return cls.of(tables["columns"], str(path))

    @property
    def names(self) -> tuple[str, ...]:
        """The columns that are inputs, in the order of declaration."""
        return tuple(name for name, column in self.declared.items() if not isinstance(column, Ignored))

    @property
    def inputs(self) -> tuple[str, ...]:
        """A name for each input."""
        used = ((name, column) for name, column in self.declared.items() if not isinstance(column, Ignored))
        return tuple(input_ for name, column in used for input_ in column.inputs(name))

    @property
    def width(self) -> int:
        """The number of inputs."""
        return len(self.inputs)

    def encode(self, rows: Frame) -> np.ndarray:
        """The inputs of each row, float32, (n, width).

        Args:
            rows: the values by column: texts, numbers, ``None``. Columns that are not declared are not read.

        Raises:
            DataError: lists the columns that are absent, and those with a value that the declaration refuses, with the
                rows. The message contains no value.
        """
        refuse("columns", self.absent(rows))
        inputs, problems = self.encoded(rows)
        refuse("the rows", problems)
        return inputs

    def absent(self, rows: Frame) -> list[str]:
        """A message for each declared column that the rows lack."""
        names = list(rows) if hasattr(rows, "__iter__") else []  # type: ignore[call-overload]
        problems = []
        for name in self.names:
            if name not in rows:
                close = get_close_matches(name, map(str, names), n=1)
                problems.append(f"there is no column {name!r}" + (f"; did you mean {close[0]!r}?" if close else ""))
        return problems

    def encoded(self, rows: Frame) -> tuple[np.ndarray, list[str]]:
        """The inputs, and a message for each column and problem; if there are any, the inputs must not be used."""
        blocks, problems = [], []
        for name in self.names:
            column = self.declared[name]
            assert not isinstance(column, Ignored), "names leaves them out"
            block, refused = column.encode(rows[name])
            blocks.append(block)
            problems += _messages(name, refused)
        if not blocks:
            raise DataError("no column is an input: declare a number or a category")
        return np.concatenate(blocks, axis=1, dtype=np.float32), problems


def _messages(name: str, refused: Mapping[str, np.ndarray]) -> Iterator[str]:
    """One line for each problem of a column that rows have, with these rows."""
    for problem, mask in refused.items():
        rows = np.flatnonzero(mask).tolist()
        way_out = _WAYS_OUT.get(problem, "")
        if rows:
            yield f"column {name!r}: {problem} {in_rows(rows)}{way_out}"


def _column(name: str, table: Mapping[str, Any], problems: list[str]) -> Column | None:
    """The column that a table of plain values declares; ``None`` with a message where it is not understood."""
    if not isinstance(table, Mapping):
        problems.append(f"{name!r} is no table; write [columns.{name}] and the lines kind = ... below it")
        return None
    given = dict(table)
    kind = KINDS.get(str(given.pop("kind", None)))
    if kind is None:
        problems.append(f"{name!r}: expected kind to be one of {', '.join(KINDS)}, got {table.get('kind')!r}")
        return None
    known = {field.name: field for field in fields(kind)}
    wrong = [
        f'{name!r}: kind = "{table["kind"]}" has no {key!r}; it has {", ".join(known) or "no other key"}'
        for key in given.keys() - known.keys()
    ]
    wrong += [
        f"{name!r}: declare {key}" for key, field in known.items() if field.default is MISSING and key not in given
    ]
    if isinstance(given.get("categories", []), str):
        wrong.append(f'{name!r}: expected categories to be a list of texts, such as ["a", "b"]')
    if kind is Category:
        given = {key: _as_texts(value) for key, value in given.items()}
    elif kind is Number:
        wrong += [
            f"{name!r}: expected {key} to be a number, got {given[key]!r}"
            for key in ("low", "high")
            if key in given and not _is_number(given[key])
        ]
        if not (_is_number(given.get("missing", 0)) or isinstance(given["missing"], str)):
            wrong.append(f"{name!r}: expected missing to be a number or a text, got {given['missing']!r}")
    problems += sorted(wrong)
    return None if wrong else kind(**given)


def _as_texts(value: Any) -> Any:
    """A text for a number, as in ``categories = [1, 2, 3]``, and a tuple of texts for a list."""
    if isinstance(value, list | tuple):
        return tuple(of_table.texts(value))
    return value if isinstance(value, str) else of_table.texts([value])[0]


def _is_number(value: object) -> bool:
    return value is None or (isinstance(value, int | float) and not isinstance(value, bool))
