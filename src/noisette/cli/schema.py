"""``noisette schema``: writes what is declared about the columns of a table, from public knowledge alone."""

from __future__ import annotations

import json
import math
from collections.abc import Mapping
from pathlib import Path
from typing import Annotated, Any

import typer

from noisette.accounting import atomic_files
from noisette.cli.options import listed, number_or_names, numbers, option, plain_errors
from noisette.training.recipe import DataSection, Recipe, declaration_of

_OPEN = "?"  # the kind of a column that is still to be declared, which noisette train refuses
_Many = list[str] | None


@plain_errors()
def schema(
    header_of: Annotated[
        Path, typer.Argument(metavar="FILE", help="Take the names of the columns from this table. No value is used.")
    ],
    label: Annotated[str, option("COLUMN", "The column of the class or number to predict.")] = "label",
    classes: Annotated[str | None, option("N|A,B,..", "Number of classes, or their names in order.")] = None,
    target: Annotated[str | None, option("LOW,HIGH", "Instead of classes: bounds of the number to predict.")] = None,
    size: Annotated[int | None, option("N", "Public number of records; need not be exact.")] = None,
    number: Annotated[_Many, option("COLUMN=LOW,HIGH", "A column of numbers and its bounds. Repeat for each.")] = None,
    category: Annotated[
        _Many, option("COLUMN=A,B,..", "A column of texts and all that are known. Repeat for each.")
    ] = None,
    ignore: Annotated[str | None, option("A,B,..", "Columns that are not read.")] = None,
    encoding: Annotated[str | None, option("NAME", "The encoding of the file, such as latin-1.", "utf-8")] = None,
    out: Annotated[Path, option("FILE.toml", "The file to write.")] = Path("schema.toml"),
) -> None:
    """Write a schema for noisette train --columns: what is publicly known about each column of a table.

    Bounds and categories come from what you know about the columns, never from the rows: those would tell about single
    records. Of the file, only the names of the columns are used. These names are taken to be public: the report of a
    run contains them. What else can be declared, such as dates, is written into the file by hand.
    """
    from noisette.data.columns import Declaration
    from noisette.data.tables import header

    if out.exists():
        raise ValueError(f"{out} exists; choose another --out, or move it away")
    names = header(header_of, Declaration(encoding=encoding or "utf-8").encoding)  # which is checked
    declared: dict[str, dict[str, Any]] = {}
    numbered, categories = _pairs("number", "age=0,100", number), _pairs("category", "job=cook,smith", category)
    ignored = listed("ignore", ignore) if ignore else ()
    given = [*(name for name, _ in (*numbered, *categories)), *ignored]
    if twice := [name for name in given if given.count(name) > 1]:
        raise ValueError(f"the column {twice[0]!r} is declared twice")
    for name, value in numbered:
        low, high = numbers(f"number {name}", value, "0,100", count=2)
        declared[name] = {"kind": "number", "low": low, "high": high, "missing": "indicator"}
    for name, value in categories:
        texts = list(listed(f"category {name}", value))
        declared[name] = {"kind": "category", "categories": texts, "missing": "own category", "other": "own category"}
    declared |= {name: {"kind": "ignored"} for name in ignored}
    if absent := [name for name in (label, *declared) if name not in names]:
        raise ValueError(f"there is no column {absent[0]!r}; --label is one of {', '.join(names)}, and so are others")
    of_classes = None if classes is None else number_or_names(classes)
    bounds = None if target is None else numbers("target", target, "0,120", count=2)
    facts = {"label": label, "classes": of_classes, "target": bounds, "size": size, "encoding": encoding}
    facts = {name: value for name, value in facts.items() if value is not None}
    section = DataSection(name=str(out), columns=declared, **facts)
    declaration_of(Recipe(section))  # which checks that the declarations do not contradict themselves
    left = [name for name in names if name not in declared and name != label]
    declared |= {name: {"kind": _OPEN} for name in left}
    _write(out, facts, {name: declared[name] for name in names if name in declared})
    typer.echo(f"schema  {out}")
    if left:
        typer.echo(f'Still to be declared, with kind = "{_OPEN}" in the file: {", ".join(left)}')


def _pairs(option: str, example: str, given: _Many) -> list[tuple[str, str]]:
    pairs = [tuple(part.strip() for part in each.partition("=")) for each in given or ()]
    for (name, _, value), each in zip(pairs, given or (), strict=True):
        if not name or not value:
            raise ValueError(f"expected --{option} as {example}, got {each!r}")
    return [(name, value) for name, _, value in pairs]


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
    """A text, a number or a list of them in TOML."""
    if isinstance(value, list | tuple):
        return f"[{', '.join(map(_toml, value))}]"
    if isinstance(value, str):
        return json.dumps(value, ensure_ascii=False)
    return str(int(value)) if isinstance(value, float) and math.isfinite(value) and value.is_integer() else repr(value)
