"""A paper made again: its figures and tables, what each needs to be run, and the page that shows them."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Generic, Protocol, TypeVar

from noisette._internal import atomic_files
from noisette.training.report.svg import standalone
from noisette.training.report.templates import templates
from papers.run_file import RUNS
from papers.section import Section, markdown

if TYPE_CHECKING:
    from noisette.data import DataSet

Run = TypeVar("Run")
Tell = Callable[[float, float | None], None]  # how much of a run is done, 0 to 1, and its latest accuracy
_PAGES = templates("papers")


@dataclass(frozen=True)
class Asked:
    """What of a figure or table is to be run: with which seeds and rows, how much of it, from which public weights."""

    seeds: Sequence[int]
    full: bool = False
    weights: str | None = None
    rows: Sequence[str] | None = None  # all if left out


class Job(Protocol):
    """A run to be made."""

    @property
    def seconds(self) -> float:
        """About how long it takes on one processor core."""
        ...

    @property
    def sets(self) -> Sequence[str]:
        """The names of the data sets that it needs."""
        ...

    def make(self, data: Mapping[str, DataSet], runs: Path, tell: Tell) -> None:
        """Make the run and add its line to the file ``runs``; ``tell`` is told how far it is.

        Raises:
            KeyboardInterrupt: Ctrl-C was pressed; the run leaves no line.
        """
        ...


@dataclass(frozen=True)
class Part(Generic[Run]):
    """A figure or a table of a paper.

    ``missing`` are the runs that are asked for and not among the finished ones, and ``seeds`` are those of the command
    that names none; both are empty where nothing is trained. ``options`` are those of the command that it understands
    beside seeds, and ``rows`` those that can be asked for alone.
    """

    title: str
    section: Callable[[Sequence[Run]], Section]
    missing: Callable[[Asked, Sequence[Run]], Sequence[Job]] = lambda asked, done: []
    seeds: Sequence[int] = ()
    options: frozenset[str] = frozenset()
    rows: Sequence[str] = ()


@dataclass(frozen=True)
class Paper(Generic[Run]):
    """A paper: its parts by their names, such as "figure-2", and how its file of runs is read.

    ``first`` is the part that a command makes that names none, if there is one that trains nothing.
    """

    name: str
    title: str
    about: tuple[str, ...]
    parts: Mapping[str, Part[Run]]
    read: Callable[[Path], list[Run]]
    first: str | None = None

    @property
    def page(self) -> str:
        """What the page's file is called."""
        return f"{self.name}.html"

    def write(self, name: str, out: Path) -> Section:
        """Make a part from the runs of a folder, and write it there with a page of all parts that the page had.

        Guarantee: no file is ever half-written; each takes the place of an older one when it is whole.
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
        """The parts, made from the runs of a file."""
        finished = self.read(runs)
        return [self.parts[name].section(finished) for name in names]

    def document(self, sections: Sequence[Section], origin: str) -> str:
        """The sections as a Markdown document that tells its origin; their figures lie beside it."""
        parts = [f"# {self.title}", *self.about, origin, *(markdown(section) for section in sections)]
        return "\n\n".join(parts) + "\n"
