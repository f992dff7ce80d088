"""The reproduction of one figure or table, for a page, a document or a terminal."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class Section:
    """A figure with its table, or a table alone.

    ``figure`` is an SVG element that uses the colours of the page around it, or empty; ``about`` are paragraphs, the
    cells of ``rows`` are text, and ``name`` is the name of the figure's file.
    """

    name: str
    title: str
    about: tuple[str, ...]
    header: tuple[str, ...]
    rows: tuple[tuple[str, ...], ...]
    figure: str = ""


def markdown(section: Section) -> str:
    """The section as a part of a Markdown document; its figure is a file in the same folder."""
    table = [section.header, ("---",) * len(section.header), *section.rows]
    picture = [f"![{section.title}]({section.name}.svg)"] if section.figure else []
    return "\n\n".join(
        [
            f"## {section.title}",
            *section.about,
            *picture,
            "\n".join(f"| {' | '.join(cells)} |" for cells in table),
        ]
    )
