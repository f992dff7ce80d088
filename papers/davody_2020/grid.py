"""A table of the paper: networks against amounts of noise, with the printed number above ours."""

from __future__ import annotations

from collections.abc import Callable

from papers import grid
from papers.davody_2020.runs import Cell, Run, Setting, mean_of

Grid = grid.Grid[float, Setting, Cell, Run]
Row = grid.Row[float, Setting]


def networks_against_noise(
    *,
    name: str,
    title: str,
    about: tuple[str, ...],
    unit: str,
    columns: tuple[float, ...],
    rows: tuple[Row, ...],
    default: tuple[str, ...],
    seconds: Callable[[Setting], float],
    short: str = "",
) -> Grid:
    """A table.

    ``columns`` are amounts of noise, called ``unit``; ``seconds`` estimates how long a setting takes on one processor
    core; the rest is as for :class:`papers.grid.Grid`.
    """
    return Grid(
        name=name,
        title=title,
        about=about,
        of="network",
        columns=columns,
        heading=lambda column: f"{unit} {_amount(column)}",
        rows=rows,
        default=default,
        cell=lambda setting, seed, asked: Cell(setting, seed, seconds(setting), asked.weights),
        shown=lambda runs, setting: str(mean_of(runs, setting) or ""),
        short=short,
    )


def _amount(column: float) -> str:
    return f"{column:g}" if column < float("inf") else "∞"
