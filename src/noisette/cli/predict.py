"""``noisette predict``: what the model of a run predicts for new rows of a CSV, or for images in a folder."""

from __future__ import annotations

import csv
import io
import math
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from noisette.cli.options import RunModel, listed, option, plain_errors
from noisette.training.run_folder import sealed_facts, signature_in_words

if TYPE_CHECKING:
    import numpy as np

    from noisette.training.saved_model import SavedModel


@plain_errors()
def predict(
    run: Annotated[
        Path, typer.Argument(metavar="RUN", help="The folder of a finished run.", exists=True, file_okay=False)
    ],
    rows: Annotated[
        Path, typer.Argument(metavar="ROWS", help="A table without labels, or a folder of images.", exists=True)
    ],
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
        from noisette.accounting import atomic_files

        atomic_files.write(out, content.encode(errors="surrogateescape"))  # names of images need not be UTF-8
        typer.echo(f"predictions  {out}")


def _as_csv(saved: SavedModel, rows: Path, keep: Sequence[str]) -> str:
    """The predictions as the text of a CSV, behind these columns of the rows, or the names of images."""
    from noisette.data import tables
    from noisette.data.dataset import refuse

    images, inputs = saved.read_images(rows) if rows.is_dir() else (None, saved.read(rows))
    found = {"image": images} if images is not None else tables.read(rows, saved.recipe.data.encoding) if keep else {}
    keep = ["image"] if images is not None else keep
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
