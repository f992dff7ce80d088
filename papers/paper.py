"""The reproduction of a paper: its figures and tables, the runs that each needs, and the page that shows them."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Generic, Protocol, TypeVar

from noisette.accounting import atomic_files
from noisette.training.report.figures import templates
from papers.drawing import standalone
from papers.run_file import RUNS
from papers.section import Section, markdown

if TYPE_CHECKING:
    from noisette.data import DataSet

Run = TypeVar("Run")
Tell = Callable[[float, float | None], None]  # called with the finished share of a run, 0 to 1, and its latest accuracy
_PAGES = templates("papers")


@dataclass(frozen=True)
class Asked:
    """The requested part of a figure or table: seeds, rows, small or full grid, and the file of public weights."""

    seeds: Sequence[int]
    full: bool = False
    weights: str | None = None
    rows: Sequence[str] | None = None  # all if left out


class Job(Protocol):
    """A planned run."""

    @property
    def seconds(self) -> float:
        """Approximate time on one processor core."""
        ...

    @property
    def sets(self) -> Sequence[str]:
        """Names of the data sets that the run needs."""
        ...

    def make(self, data: Mapping[str, DataSet], runs: Path, tell: Tell) -> None:
        """Carry out the run and add its line to the file ``runs``; ``tell`` is called with the progress.

        Raises:
            KeyboardInterrupt: Ctrl-C was pressed; no line is written.
        """
        ...


@dataclass(frozen=True)
class Part(Generic[Run]):
    """A figure or a table of a paper.

    ``missing`` lists the requested runs that are not finished, none if there is nothing to run, and ``seeds`` are the
    default seeds, none if nothing is trained. ``options`` are the options of the command that the part accepts in
    addition to seeds, and ``rows`` are the rows that can be requested separately.
    """

    title: str
    section: Callable[[Sequence[Run]], Section]
    missing: Callable[[Asked, Sequence[Run]], Sequence[Job]] = lambda asked, done: []
    seeds: Sequence[int] = ()
    options: frozenset[str] = frozenset()
    rows: Sequence[str] = ()


@dataclass(frozen=True)
class Paper(Generic[Run]):
    """A paper: its parts by name, such as "figure-2", and the function that reads its file of runs.

    ``first`` is the part that a command without ``--figure`` and ``--table`` makes; it trains nothing.
    """

    name: str
    title: str
    about: tuple[str, ...]
    parts: Mapping[str, Part[Run]]
    read: Callable[[Path], list[Run]]
    first: str | None = None

    @property
    def page(self) -> str:
        """File name of the page."""
        return f"{self.name}.html"

    def write(self, name: str, out: Path) -> Section:
        """Make a part from the runs of a folder, and write it there into the page, which keeps its other parts.

        Guarantee: no file is ever half-written; each replaces the older one when it is complete.
        """
        older = (out / self.page).read_text("utf-8") if (out / self.page).exists() else ""
        shown = [other for other in self.parts if other == name or f'id="{other}"' in older]
        sections = dict(zip(shown, self.drawn(shown, out / RUNS), strict=True))
        for section in sections.values():
            if section.figure:
                atomic_files.write(out / f"{section.name}.svg", standalone(section.figure).encode())
        page = _PAGES.get_template("page.html").render(title=self.title, about=self.about, sections=sections.values())
        atomic_files.write(out / self.page, page.encode())
        return sections[name]

    def drawn(self, names: Sequence[str], runs: Path) -> list[Section]:
        """Make the parts from the runs of a file."""
        finished = self.read(runs)
        return [self.parts[name].section(finished) for name in names]

    def document(self, sections: Sequence[Section], origin: str) -> str:
        """Return the sections as a Markdown document that names its origin; the figures are files beside it."""
        parts = [f"# {self.title}", *self.about, origin, *(markdown(section) for section in sections)]
        return "\n\n".join(parts) + "\n"
