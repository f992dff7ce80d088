"""One reproduced figure or table of a paper, for a page, a Markdown document or a terminal."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class Section:
    """A figure with its table, or a table alone.

    ``figure`` is an SVG element that inherits its colours from the page, or empty; ``about`` are paragraphs, the cells
    of ``rows`` are text, and ``name`` is the stem of the figure's file name.
    """

    name: str
    title: str
    about: tuple[str, ...]
    header: tuple[str, ...]
    rows: tuple[tuple[str, ...], ...]
    figure: str = ""


def markdown(section: Section) -> str:
    """Return the section in Markdown; its figure is a file beside the document."""
    table = [section.header, ("---",) * len(section.header), *section.rows]
    picture = [f"![{section.title}]({section.name}.svg)"] if section.figure else []
    return "\n\n".join(
        [f"## {section.title}", *section.about, *picture, "\n".join(f"| {' | '.join(cells)} |" for cells in table)]
    )
