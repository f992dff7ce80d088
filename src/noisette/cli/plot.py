"""The option ``--plot``, and what is known about its file before anything is computed."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Annotated

import typer

_SUFFIXES = (".png", ".svg", ".html")

PlotFile = Annotated[
    Path | None,
    typer.Option(
        "--plot", metavar="FILE", help="Draw it too: a .png, an .svg, or an .html page with figure and tables."
    ),
]


def check_plot(path: Path | None) -> None:
    """The file can be made there, in a format that there is.

    Raises:
        ValueError: it cannot.
    """
    if path is None:
        return
    if path.suffix.lower() not in _SUFFIXES:
        raise ValueError(f"expected a plot that ends in {', '.join(_SUFFIXES)}, got --plot {path}")
    if path.is_dir():
        raise ValueError(f"--plot {path} is a folder; name a file")
    if not path.parent.is_dir():
        raise ValueError(f"there is no folder {path.parent} for --plot {path}")
    if not os.access(path.parent, os.W_OK):
        raise ValueError(f"--plot {path} cannot be written: the folder allows no new files")
