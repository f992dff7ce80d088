"""``noisette schema``: writes what is declared about the columns of a table, from public knowledge alone."""

from __future__ import annotations

import json
import math
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Annotated, Any

import typer

from noisette.accounting import atomic_files
from noisette.cli.options import listed, number_or_names, numbers, option, plain_errors
from noisette.training.recipe import DataSection, Recipe, declaration_of

_OPEN = "?"  # the kind of a column that is still to be declared, which noisette train refuses
_Columns = list[str] | None
_EXAMPLES = {
    "number": "age=0,100",
    "date": "since=2000-01-01,2024-12-31",
    "category": "job=cook,smith",
    "hashed": "city=64",
    "missing": "age=indicator",
}


@plain_errors()
def schema(
    header_of: Annotated[
        Path | None,
        typer.Argument(
            metavar="FILE",
            help="Take the names of the columns from this CSV, JSON lines, Parquet or Excel file. No value is used.",
        ),
    ] = None,
    names: Annotated[str | None, option("A,B,..", "The names of the columns, instead of a file.")] = None,
    label: Annotated[str, option("COLUMN", "The column of the class or number to predict.")] = "label",
    classes: Annotated[str | None, option("N|A,B,..", "Number of classes, or their names in order.")] = None,
    target: Annotated[str | None, option("LOW,HIGH", "Instead of classes: bounds of the number to predict.")] = None,
    unit: Annotated[str | None, option("TEXT", "The unit of that number.")] = None,
    size: Annotated[int | None, option("N", "Public number of records; need not be exact.")] = None,
    number: Annotated[
        _Columns, option("COLUMN=LOW,HIGH", "A column of numbers and its bounds. Repeat for each.")
    ] = None,
    date: Annotated[
        _Columns,
        option("COLUMN=LOW,HIGH[,FORMAT]", "A column of dates, its first and last day, and their form: %d.%m.%Y, say."),
    ] = None,
    category: Annotated[
        _Columns, option("COLUMN=A,B,..", "A column of texts and all that are known. Repeat for each.")
    ] = None,
    hashed: Annotated[
        _Columns,
        option("COLUMN=WIDTH", "A column of too many texts to list them: each is hashed to one of WIDTH inputs."),
    ] = None,
    missing: Annotated[
        _Columns,
        option(
            "COLUMN=RULE",
            "What a missing value counts as: a number, indicator, a category, own category, or refuse. Repeatable.",
            "indicator for numbers and dates, own category for texts",
        ),
    ] = None,
    ignore: Annotated[str | None, option("A,B,..", "Columns that are not read.")] = None,
    decimal: Annotated[str | None, option("SIGN", "What stands before decimals, a point or a comma.", ".")] = None,
    thousands: Annotated[str | None, option("SIGN", "What stands between thousands.", "nothing")] = None,
    encoding: Annotated[str | None, option("NAME", "The encoding of the file, such as latin-1.", "utf-8")] = None,
    skip_unlabelled: Annotated[
        bool, typer.Option("--skip-unlabelled", help="Leave out rows without a label, instead of refusing them.")
    ] = False,
    out: Annotated[Path, option("FILE.toml", "The file to write.")] = Path("schema.toml"),
) -> None:
    """Write a schema for noisette train --columns: what is publicly known about each column of a table.

    Bounds and categories come from what you know about the columns, never from the rows: those would tell about single
    records. Of the file, only the names of the columns are used. These names are taken to be public: the report of a
    run contains them.
    """
    if out.exists():
        raise ValueError(f"{out} exists; choose another --out, or move it away")
    columns = _named(header_of, names, encoding or "utf-8")
    declared: dict[str, dict[str, Any]] = {}
    of_kinds = {"number": number, "date": date, "category": category, "hashed": hashed}
    for kind, given in of_kinds.items():
        for name, value in (_pair(kind, each) for each in given or ()):
            _check_column(kind, name, columns, declared)
            declared[name] = {"kind": kind} | _declaration(kind, f"{kind} {name}", value)
    for name in listed("ignore", ignore) if ignore else ():
        _check_column("ignore", name, columns, declared)
        declared[name] = {"kind": "ignored"}
    for name, rule in (_pair("missing", each) for each in missing or ()):
        if name not in declared or declared[name]["kind"] == "ignored":
            raise ValueError(f"--missing {name}=...: declare the column with --number or --category too")
        declared[name]["missing"] = _number_or_text(rule) if declared[name]["kind"] == "number" else rule
    if label not in columns:
        raise ValueError(
            f"there is no column {label!r}, the label; name it with --label, as one of {', '.join(columns)}"
        )
    of_classes = None if classes is None else number_or_names(classes)
    bounds = None if target is None else numbers("target", target, "0,120", count=2)
    facts = {"label": label, "classes": of_classes, "target": bounds, "unit": unit, "size": size, "decimal": decimal}
    facts |= {"thousands": thousands, "encoding": encoding, "skip_unlabelled": skip_unlabelled or None}
    facts = {name: value for name, value in facts.items() if value is not None}
    section = DataSection(name=str(out), columns=declared, **facts)
    declaration_of(Recipe(section))  # which checks that the declarations do not contradict themselves
    left = [name for name in columns if name not in declared and name != label]
    declared |= {name: {"kind": _OPEN} for name in left}
    _write(out, facts, {name: declared[name] for name in columns if name in declared})
    typer.echo(f"schema  {out}")
    if left:
        typer.echo(f'Still to be declared, with kind = "{_OPEN}" in the file: {", ".join(left)}')


def _named(header_of: Path | None, names: str | None, encoding: str) -> list[str]:
    """The names of the columns, from the header of a file or from the option."""
    from noisette.data.tables import header, is_number

    if header_of is not None and names is None:
        found = header(header_of, encoding)
    elif names is not None and header_of is None:
        found = list(listed("names", names))
    else:
        raise ValueError("give a table whose first line names the columns, or --names")
    if len(set(found)) < len(found) or "" in found:
        raise ValueError("the columns must have different names, none of them empty")
    if wrong := [name for name in found if is_number(name)]:
        raise ValueError(f"--names: {wrong[0]} is a number; begin the name of a column with a letter")
    return found


def _check_column(option: str, name: str, columns: Sequence[str], declared: Mapping[str, Any]) -> None:
    if name not in columns:
        raise ValueError(f"--{option}: there is no column {name!r}; there are {', '.join(columns)}")
    if name in declared:
        raise ValueError(f"the column {name!r} is declared twice")


def _pair(option: str, given: str) -> tuple[str, str]:
    name, equals, value = given.partition("=")
    if not equals or not name.strip() or not value.strip():
        raise ValueError(f"expected --{option} as {_EXAMPLES[option]}, got {given!r}")
    return name.strip(), value.strip()


def _declaration(kind: str, option: str, value: str) -> dict[str, Any]:
    """What a column of this kind has in a schema, with the usual rules for missing values."""
    if kind == "number":
        low, high = numbers(option, value, "0,100", count=2)
        return {"low": low, "high": high, "missing": "indicator"}
    if kind == "category":
        return {"categories": list(listed(option, value)), "missing": "own category", "other": "own category"}
    if kind == "hashed":
        if not value.isdecimal():
            raise ValueError(f"expected --{option} as a whole number of inputs, such as 64, got {value!r}")
        return {"width": int(value), "missing": "own category"}
    parts = listed(option, value)
    if len(parts) not in (2, 3):
        raise ValueError(f"expected --{option} as LOW,HIGH or LOW,HIGH,FORMAT, got {value!r}")
    return dict(zip(("low", "high", "format"), parts, strict=False)) | {"missing": "indicator"}


def _number_or_text(text: str) -> float | str:
    try:
        return float(text)
    except ValueError:
        return text


def _write(out: Path, facts: Mapping[str, Any], declared: Mapping[str, Mapping[str, Any]]) -> None:
    lines = [
        "# What is publicly known about the columns, for noisette train --columns. Written without reading any row:",
        "# bounds and categories must come from what the columns mean, not from the records.",
        *(f"{key} = {_toml(value)}" for key, value in facts.items()),
    ]
    for name, table in declared.items():
        lines += ["", f"[columns.{json.dumps(name, ensure_ascii=False)}]"]
        lines += [f"{key} = {_toml(value)}" for key, value in table.items()]
    atomic_files.write(out, ("\n".join(lines) + "\n").encode())


def _toml(value: Any) -> str:
    """A text, a number, true or a list of them in TOML."""
    if isinstance(value, list | tuple):
        return f"[{', '.join(map(_toml, value))}]"
    if isinstance(value, str | bool):
        return json.dumps(value, ensure_ascii=False)
    return str(int(value)) if isinstance(value, float) and math.isfinite(value) and value.is_integer() else repr(value)
