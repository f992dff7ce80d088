"""Options that several commands share."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

DataDir = Annotated[
    Path | None,
    typer.Option(
        metavar="DIR",
        help="Folder with the files of built-in data sets.",
        show_default="$NOISETTE_DATA, then the user cache, then download",
    ),
]
