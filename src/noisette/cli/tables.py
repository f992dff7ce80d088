"""``noisette schema`` and ``noisette predict``: what is declared about the columns of a table, and new rows of one."""

from __future__ import annotations

import csv
import io
import json
import math
from collections.abc import Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from noisette.accounting import atomic_files
from noisette.cli.options import RunModel, listed, number_or_names, numbers, option, plain_errors
from noisette.data import tables
from noisette.data.columns import Declaration
from noisette.data.dataset import refuse
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
    if out.exists():
        raise ValueError(f"{out} exists; choose another --out, or move it away")
    names = tables.header(header_of, Declaration(encoding=encoding or "utf-8").encoding)  # which is checked
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


@plain_errors()
def predict(
    run: Annotated[Path, typer.Argument(metavar="RUN", help=_RUN, exists=True, file_okay=False)],
    rows: Annotated[Path, typer.Argument(metavar="ROWS", help=_ROWS, exists=True)],
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
    if out is not None and out.exists():
        raise ValueError(f"{out} exists; choose another --out, or move it away")
    facts = sealed_facts(run)  # before torch is imported, which takes seconds
    if "signature" in facts:
        typer.echo(f"signature: {signature_in_words(facts)}", err=True)
    if not facts.get("private"):
        typer.echo("The model is of a run without privacy: predictions may tell about its training records.", err=True)
    from noisette.training.saved_model import SavedModel

    content = _as_csv(SavedModel.of_run(run, model, text), rows, listed("keep", keep) if keep else ())
    if out is None:
        typer.echo(content, nl=False)
    else:
        atomic_files.write(out, content.encode(errors="surrogateescape"))  # names of images need not be UTF-8
        typer.echo(f"predictions  {out}")


def _as_csv(saved: SavedModel, rows: Path, keep: Sequence[str]) -> str:
    """The predictions as the text of a CSV, behind these columns of the rows, or the names of images."""
    images, inputs = saved.read_images(rows) if rows.is_dir() else (None, saved.read(rows))
    found = {"image": images} if images is not None else tables.read(rows, saved.recipe.data.encoding) if keep else {}
    keep = ["image"] if images is not None else list(dict.fromkeys(keep))
    refuse(rows.name, [f"--keep: there is no column {name!r}" for name in keep if name not in found])
    lines = _lines(saved, *saved.predict(inputs))
    if keep:
        kept = [keep, *zip(*(found[name] for name in keep), strict=True)]
        lines = [[*before, *line] for before, line in zip(kept, lines, strict=True)]
    text = io.StringIO()
    csv.writer(text, lineterminator="\n").writerows([_no_formula(value) for value in line] for line in lines)
    return text.getvalue()


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
