"""A table of a paper, cell by cell: the printed number above ours."""

from __future__ import annotations

from collections.abc import Callable, Hashable, Sequence
from dataclasses import dataclass
from typing import Generic, Protocol, TypeVar

from papers.paper import Asked, Job
from papers.section import Section

Column = TypeVar("Column")
Run = TypeVar("Run")
Setting = TypeVar("Setting")
Kept = TypeVar("Kept", bound="Keyed")


class Keyed(Protocol):
    """A run, finished or planned, identified by its setting and its seed."""

    @property
    def setting(self) -> Hashable: ...

    @property
    def seed(self) -> int: ...


class KeyedJob(Keyed, Job, Protocol):
    """A planned run, identified by its setting and its seed."""


Wanted = TypeVar("Wanted", bound=KeyedJob)


def missing(cells: Callable[[Asked], Sequence[Wanted]]) -> Callable[[Asked, Sequence[Keyed]], list[Wanted]]:
    """The requested cells without a finished run, each once."""

    def left(asked: Asked, done: Sequence[Keyed]) -> list[Wanted]:
        known = {(run.setting, run.seed) for run in done}
        wanted = {(cell.setting, cell.seed): cell for cell in cells(asked)}
        return [cell for key, cell in wanted.items() if key not in known]

    return left


def one_of_each_seed(runs: Sequence[Kept], setting: Hashable) -> list[Kept]:
    """The runs of a setting, one for each seed: the last one if a seed was run several times."""
    return list({run.seed: run for run in runs if run.setting == setting}.values())


@dataclass(frozen=True)
class Row(Generic[Column, Setting]):
    """The printed numbers of a row, and the settings of its cells: ``None`` where there is nothing to run.

    ``short`` gives settings that take an hour, if ``whole`` gives longer ones.
    """

    name: str
    printed: tuple[str, ...]
    whole: Callable[[Column], Setting | None]
    short: Callable[[Column], Setting | None] | None = None


@dataclass(frozen=True)
class Grid(Generic[Column, Setting, Wanted, Run]):
    """A table.

    ``of`` is the heading of the rows, and ``heading`` gives that of a column. ``default`` are the rows that a command
    without ``--rows`` runs, ``cell`` makes a job of a setting and a seed, and ``shown`` gives the text of the finished
    runs of a setting, "" if there are none.
    """

    name: str
    title: str
    about: tuple[str, ...]
    of: str
    columns: tuple[Column, ...]
    heading: Callable[[Column], str]
    rows: tuple[Row[Column, Setting], ...]
    default: tuple[str, ...]
    cell: Callable[[Setting, int, Asked], Wanted]
    shown: Callable[[Sequence[Run], Setting], str]
    short: str = ""  # how the short settings differ

    def cells(self, asked: Asked) -> list[Wanted]:
        """The requested cells, all rows of a seed before the next seed."""
        names = asked.rows or (tuple(row.name for row in self.rows) if asked.full else self.default)
        chosen = [row for row in self.rows if row.name in names]
        return [
            self.cell(setting, seed, asked)
            for seed in asked.seeds
            for row in chosen
            for column in self.columns
            if (setting := (row.short if row.short and not asked.full else row.whole)(column))
        ]

    def section(self, runs: Sequence[Run], *more: tuple[str, ...], figure: str = "") -> Section:
        """The table of the finished runs, with ``more`` lines below."""
        header = (self.of, "", *(self.heading(column) for column in self.columns))
        rows = (line for row in self.rows for line in self._lines(row, runs))
        return Section(self.name, self.title, self.about, header, (*rows, *more), figure)

    def _lines(self, row: Row[Column, Setting], runs: Sequence[Run]) -> list[tuple[str, ...]]:
        lines = [(row.name, "paper", *row.printed), ("", "ours", *self._reached(row.whole, runs))]
        if row.short and any(reached := self._reached(row.short, runs)):
            lines.append(("", f"ours, {self.short}", *reached))
        return lines if any(row.printed) else [(row.name, *lines[1][1:]), *lines[2:]]

    def _reached(self, cells: Callable[[Column], Setting | None], runs: Sequence[Run]) -> list[str]:
        settings = (cells(column) for column in self.columns)
        return ["" if setting is None else self.shown(runs, setting) or "not run" for setting in settings]
