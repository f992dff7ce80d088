"""``noisette schema`` and ``noisette predict``: what is declared about the columns of a table, and new rows of one."""

from __future__ import annotations

import csv
import io
import json
import math
from collections.abc import Mapping, Sequence
from contextlib import suppress
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from noisette import errors as checks
from noisette.accounting import atomic_files
from noisette.cli.options import RunModel, check_new, listed, number_or_names, numbers, option, plain_errors
from noisette.data import tables
from noisette.data.columns import Declaration
from noisette.training.recipe import DataSection, Recipe, declaration_of
from noisette.training.run_folder import sealed_facts, signature_in_words

if TYPE_CHECKING:
    import numpy as np

    from noisette.training.saved_model import SavedModel

_OPEN = "?"  # the kind of a column that is still to be declared, which noisette train refuses
_Many = list[str] | None
_HEADER = "Take the names of the columns from this table. No value is used."
_CATEGORY = "A column of texts and all that are known. Repeat for each."
_RUN, _ROWS = "The folder of a finished run.", "A table without labels, or a folder of images."


@plain_errors()
def schema(
    header_of: Annotated[Path, typer.Argument(metavar="FILE", help=_HEADER)],
    label: Annotated[str, option("COLUMN", "The column of the class or number to predict.")] = "label",
    classes: Annotated[str | None, option("N|A,B,..", "Number of classes, or their names in order.")] = None,
    target: Annotated[str | None, option("LOW,HIGH", "Instead of classes: bounds of the number to predict.")] = None,
    size: Annotated[int | None, option("N", "Public number of records; need not be exact.")] = None,
    number: Annotated[_Many, option("COLUMN=LOW,HIGH", "A column of numbers and its bounds. Repeat for each.")] = None,
    category: Annotated[_Many, option("COLUMN=A,B,..", _CATEGORY)] = None,
    ignore: Annotated[str | None, option("A,B,..", "Columns that are not read.")] = None,
    encoding: Annotated[str | None, option("NAME", "The encoding of the file, such as latin-1.", "utf-8")] = None,
    out: Annotated[Path, option("FILE.toml", "The file to write.")] = Path("schema.toml"),
) -> None:
    """Write a schema for noisette train --columns: what is publicly known about each column of a table.

    Bounds and categories come from what you know about the columns, never from the rows: those would tell about single
    records. Of the file, only the names of the columns are used. These names are taken to be public: the report of a
    run contains them. What else can be declared, such as dates, is written into the file by hand.
    """
    mistakes = checks.Mistakes()
    mistakes.check(lambda: check_new(out))
    names = mistakes.check(lambda: tables.header(header_of, Declaration(encoding=encoding or "utf-8").encoding)) or []
    asked = [partial(_number, each) for each in number or ()] + [partial(_category, each) for each in category or ()]
    ignored = (mistakes.check(lambda: listed("ignore", ignore)) if ignore else None) or ()
    columns = [*filter(None, map(mistakes.check, asked)), *((name, {"kind": "ignored"}) for name in ignored)]
    declared, given = dict(columns), [name for name, _ in columns]
    mistakes.add(*(f"the column {name!r} is declared twice" for name in given if given.count(name) > 1))
    absent = [name for name in (label, *declared) if names and name not in names]
    known = f"the table has {', '.join(names)}, and --label names the one to predict"
    mistakes.add(*(f"there is no column {name!r}: {known}" for name in absent))
    of_classes = None if classes is None else mistakes.check(lambda: number_or_names(classes))
    bounds = None if target is None else mistakes.check(lambda: numbers("target", target, "0,120", count=2))
    facts = {"label": label, "classes": of_classes, "target": bounds, "size": size, "encoding": encoding}
    facts = {name: value for name, value in facts.items() if value is not None}
    mistakes.check(lambda: declaration_of(Recipe(DataSection(name=str(out), columns=declared, **facts))))  # they fit
    mistakes.refuse()
    left = [name for name in names if name not in declared and name != label]
    declared |= {name: {"kind": _OPEN} for name in left}
    _write(out, facts, {name: declared[name] for name in names if name in declared})
    typer.echo(f"schema  {out}")
    if left:
        typer.echo(f'Still to be declared, with kind = "{_OPEN}" in the file: {", ".join(left)}')


def _number(given: str) -> tuple[str, dict[str, Any]]:
    name, value = _pair("number", "age=0,100", given)
    low, high = numbers(f"number {name}", value, "0,100", count=2)
    return name, {"kind": "number", "low": low, "high": high, "missing": "indicator"}


def _category(given: str) -> tuple[str, dict[str, Any]]:
    name, value = _pair("category", "job=cook,smith", given)
    texts = list(listed(f"category {name}", value))
    return name, {"kind": "category", "categories": texts, "missing": "own category", "other": "own category"}


def _pair(option: str, example: str, given: str) -> tuple[str, str]:
    name, _, value = (part.strip() for part in given.partition("="))
    if not name or not value:
        raise ValueError(f"expected --{option} as {example}, got {given!r}")
    return name, value


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


@plain_errors()
def predict(
    run: Annotated[Path, typer.Argument(metavar="RUN", help=_RUN)],
    rows: Annotated[Path, typer.Argument(metavar="ROWS", help=_ROWS)],
    out: Annotated[Path | None, option("FILE.csv", "Write the predictions here.", "standard output")] = None,
    model: RunModel = None,
    text: Annotated[str | None, option("COLUMN", "The column of a text in the rows.", "that of the run")] = None,
    keep: Annotated[str | None, option("A,B,..", "Columns of the rows to repeat in front of the predictions.")] = None,
) -> None:
    """Predict new rows or images with the model of a run: they are prepared as they were for training.

    One line is written for each row, in the order of the rows, or for each image, in the order of the names, which
    then come first: the class with the highest probability and the probability of each class; or the number, in its
    unit. A model that was trained with privacy can be applied to any rows at no further privacy cost for the records
    that it was trained on. The rows themselves have no guarantee.
    """
    mistakes = checks.Mistakes()
    facts = mistakes.check(lambda: sealed_facts(run)) or {}  # before torch is imported, which takes seconds
    mistakes.check(rows.stat)
    mistakes.check(lambda: None if out is None else check_new(out))
    kept = (mistakes.check(lambda: listed("keep", keep)) if keep else None) or ()
    mistakes.refuse()
    if "signature" in facts:
        typer.echo(f"signature: {signature_in_words(facts)}", err=True)
    if not facts.get("private"):
        typer.echo("The model is of a run without privacy: predictions may tell about its training records.", err=True)
    from noisette.training.saved_model import SavedModel

    content = _as_csv(SavedModel.of_run(run, model, text), rows, kept)
    if out is None:
        typer.echo(content, nl=False)
    else:
        atomic_files.write(out, content.encode(errors="surrogateescape"))  # names of images need not be UTF-8
        typer.echo(f"predictions  {out}")


def _as_csv(saved: SavedModel, rows: Path, keep: Sequence[str]) -> str:
    """The predictions as the text of a CSV, behind these columns of the rows, or the names of images."""
    mistakes, images = checks.Mistakes(), saved.read_images(rows) if rows.is_dir() else None
    found = {"image": images[0]} if images else tables.read(rows, saved.recipe.data.encoding) if keep else {}
    keep = ["image"] if images else list(dict.fromkeys(keep))
    inputs = images[1] if images else mistakes.check(lambda: saved.read(rows))
    mistakes.add(*(f"{rows.name}: --keep: there is no column {name!r}" for name in keep if name not in found))
    mistakes.refuse()
    assert inputs is not None, "read above"
    lines = _lines(saved, *saved.predict(inputs))
    if keep:
        typed = rows.name.lower().endswith(tables.FRAMES)
        kept = [keep, *zip(*(_dates(found[name]) if typed else found[name] for name in keep), strict=True)]
        lines = [[*before, *line] for before, line in zip(kept, lines, strict=True)]
    text = io.StringIO()
    csv.writer(text, lineterminator="\n").writerows([_no_formula(value) for value in line] for line in lines)
    return text.getvalue()


def _dates(column: Sequence[str]) -> Sequence[str]:
    """The texts of a column, or of times that are all midnight the dates, as most programs write dates to Parquet."""
    midnight = " 00:00:00"
    whole = all(not text or text.endswith(midnight) for text in column)
    return [text.removesuffix(midnight) for text in column] if whole else column


def _no_formula(text: str) -> str:
    """The text, quoted by an apostrophe where a spreadsheet would compute it; a number is none.

    >>> [_no_formula(text) for text in ("=1+1", "-1.5", "-", "a=b")]
    ["'=1+1", '-1.5', '-', 'a=b']
    """
    with suppress(ValueError):
        if math.isfinite(float(text)):
            return text
    return f"'{text}" if len(text) > 1 and text.startswith(("=", "+", "-", "@", "\t", "\r")) else text


def _lines(saved: SavedModel, names: Sequence[str], values: np.ndarray) -> list[list[str]]:
    if saved.recipe.data.target is not None:
        return [[f"predicted {names[0]}"], *([f"{value:.6g}"] for value in values[:, 0])]
    header = [f"predicted {saved.recipe.data.label}", *(f"probability of {name}" for name in names)]
    return [header, *([names[int(row.argmax())], *(f"{value:.6f}" for value in row)] for row in values)]
