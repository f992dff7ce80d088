"""A table of the paper: networks against amounts of noise, with the printed number above ours."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from noisette.reproduce.davody_2020.runs import Cell, Run, Setting, mean_of
from noisette.reproduce.paper import Asked
from noisette.reproduce.section import Section

Cells = Callable[[float], Setting | None]  # at an amount of noise; None where there is nothing to be run


@dataclass(frozen=True)
class Row:
    """A network: what the paper prints for it, in per cent, and how its cells are run.

    ``short`` are cells that fit in an hour, where the whole ones do not.
    """

    name: str
    printed: tuple[str, ...]
    whole: Cells
    short: Cells | None = None


@dataclass(frozen=True)
class Grid:
    """A table.

    ``columns`` are amounts of noise, called ``unit``; ``default`` are the rows of a command that names none, and
    ``seconds`` says about how long a setting takes on one processor core.
    """

    name: str
    title: str
    about: tuple[str, ...]
    unit: str
    columns: tuple[float, ...]
    rows: tuple[Row, ...]
    default: tuple[str, ...]
    seconds: Callable[[Setting], float]
    short: str = ""  # what short cells are

    def cells(self, asked: Asked) -> list[Cell]:
        """The cells that are asked for, all rows of a seed before the next seed."""
        names = asked.rows or (tuple(row.name for row in self.rows) if asked.full else self.default)
        chosen = [row for row in self.rows if row.name in names]
        return [
            Cell(setting, seed, self.seconds(setting), asked.weights)
            for seed in asked.seeds
            for row in chosen
            for column in self.columns
            if (setting := (row.short if row.short and not asked.full else row.whole)(column))
        ]

    def section(self, runs: Sequence[Run], *more: tuple[str, ...]) -> Section:
        """The table, made from the runs that are there, with ``more`` lines below."""
        header = ("network", "", *(f"{self.unit} {_amount(column)}" for column in self.columns))
        rows = (line for row in self.rows for line in self._lines(row, runs))
        return Section(self.name, self.title, self.about, header, (*rows, *more))

    def _lines(self, row: Row, runs: Sequence[Run]) -> list[tuple[str, ...]]:
        lines = [(row.name, "paper", *row.printed), ("", "ours", *self._reached(row.whole, runs))]
        if row.short and any(reached := self._reached(row.short, runs)):
            lines.append(("", f"ours, {self.short}", *reached))
        return lines if any(row.printed) else [(row.name, *lines[1][1:]), *lines[2:]]

    def _reached(self, cells: Cells, runs: Sequence[Run]) -> list[str]:
        return [_shown(runs, cells(column)) for column in self.columns]


def _shown(runs: Sequence[Run], setting: Setting | None) -> str:
    mean = mean_of(runs, setting) if setting else None
    return str(mean) if mean else ("" if setting is None else "not run")


def _amount(column: float) -> str:
    return f"{column:g}" if column < float("inf") else "∞"
