"""``noisette predict``: what the model of a run predicts for new rows of a CSV."""

from __future__ import annotations

import csv
import io
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from noisette.cli.errors import plain_errors
from noisette.cli.options import option

if TYPE_CHECKING:
    from noisette.training.saved_model import SavedModel


@plain_errors()
def predict(
    run: Annotated[
        Path, typer.Argument(metavar="RUN", help="The folder of a finished run.", exists=True, file_okay=False)
    ],
    rows: Annotated[
        Path,
        typer.Argument(
            metavar="ROWS.csv", help="New rows with the columns of the run; a label is not needed.", exists=True
        ),
    ],
    out: Annotated[Path | None, option("FILE.csv", "Write the predictions here.", "standard output")] = None,
    model: Annotated[
        Path | None, option("DIR", "The folder of Hugging Face that the run began with, if it began with one.")
    ] = None,
    text: Annotated[str | None, option("COLUMN", "The column of a text in the rows.", "that of the run")] = None,
) -> None:
    """Predict new rows with the model of a run: its columns are prepared as they were for training.

    One line is written for each row, in the order of the rows: the class with the highest probability and the
    probability of each class; or the number, in its unit. A model that was trained with privacy can be applied to any
    rows at no further privacy cost for the records that it was trained on. The rows themselves have no guarantee.
    """
    from noisette.training.saved_model import SavedModel

    if out is not None and out.exists():
        raise ValueError(f"{out} exists; choose another --out, or move it away")
    content = _as_csv(SavedModel.of_run(run, model, text), rows)
    if out is None:
        typer.echo(content, nl=False)
    else:
        from noisette._internal import atomic_files

        atomic_files.write(out, content.encode())
        typer.echo(f"predictions  {out}")


def _as_csv(saved: SavedModel, rows: Path) -> str:
    """The predictions as the text of a CSV."""
    names, values = saved.predict(saved.read(rows))
    text = io.StringIO()
    lines = csv.writer(text, lineterminator="\n")
    if saved.recipe.data.target is not None:
        lines.writerow([f"predicted {names[0]}"])
        lines.writerows([f"{value:.6g}"] for value in values[:, 0])
    else:
        lines.writerow([f"predicted {saved.recipe.data.label}", *(f"probability of {name}" for name in names)])
        lines.writerows([names[row.argmax()], *(f"{value:.6f}" for value in row)] for row in values)
    return text.getvalue()
