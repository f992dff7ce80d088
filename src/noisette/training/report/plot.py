"""The answer of a command as a file: a figure, or a self-contained page with figures and tables."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TypeAlias

from markupsafe import Markup

from noisette._internal import atomic_files
from noisette.training.report.plan_figures import Panel, as_png_file, as_svg, as_svg_file
from noisette.training.report.templates import templates

Cells: TypeAlias = tuple[str, Sequence[str], Sequence[Sequence[str]]]
"""A table: its caption, its headings (none for a table of names and values), and its rows."""

_PAGES = templates("noisette.training.report")


@dataclass(frozen=True)
class Plot:
    """The figures and tables of a command's answer.

    Args:
        command: the command's name.
        title: the answer in one line.
        lead: the assumptions behind it, in one or two sentences.
        panels: the figure, as panels side by side.
        tables: the numbers behind it.
    """

    command: str
    title: str
    lead: str
    panels: Sequence[Panel]
    tables: Sequence[Cells]

    def write(self, path: Path) -> None:
        """Write the file at once in the format that its name ends with: ``.png``, ``.svg`` or ``.html``.

        Raises:
            OSError: the file cannot be written.
        """
        formats = {".png": as_png_file, ".svg": lambda panels: as_svg_file(panels).encode(), ".html": self._html}
        atomic_files.write(path, formats[path.suffix.lower()](self.panels))

    def _html(self, panels: Sequence[Panel]) -> bytes:
        figures = [(panel.title, Markup(as_svg([panel]))) for panel in panels]
        return _PAGES.get_template("plot.html").render(plot=self, figures=figures).encode()
