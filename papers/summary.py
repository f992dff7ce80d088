"""The first table of a paper's page: what the paper prints, what was reached here, how often, and what differs."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from papers.section import Section

NAME = "table-summary"  # among the parts of a paper
TITLE = "What is printed, and what was reached"


@dataclass(frozen=True)
class Row:
    """A printed number or statement of a paper, with ours beside it.

    ``part`` names the figure or table, such as "figure 3". ``ours`` has one text per column of ours; the first is empty
    if nothing was run. ``repeated`` tells how often ours was run, and ``differs`` how the experiment differs from the
    paper's, empty if it does not.
    """

    part: str
    quantity: str
    printed: str
    ours: tuple[str, ...]
    repeated: str = ""
    differs: str = ""


def section(
    rows: Iterable[Row], about: tuple[str, ...] = (), *, ours: Sequence[str] = ("ours",), repeated: str = "seeds"
) -> Section:
    """Make the table; ``ours`` are the headings of our columns, and ``repeated`` that of how often ours was run."""
    lines: list[tuple[str, ...]] = []
    above: Row | None = None
    for row in rows:
        older = above if above and above.part == row.part else None
        differs = "the same" if older and row.differs and row.differs == older.differs else row.differs
        reached = (*row.ours, row.repeated) if row.ours[0] else ("not run", *row.ours[1:], "")
        lines.append(("" if older else row.part, row.quantity, row.printed, *reached, differs))
        above = row
    return Section(NAME, TITLE, about, ("part", "quantity", "paper", *ours, repeated, "differs"), tuple(lines))
