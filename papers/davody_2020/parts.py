"""The tables and figures of the paper, with the runs that each needs."""

from __future__ import annotations

from papers import summary
from papers.davody_2020 import (
    figure_1,
    figure_norms,
    norms,
    table_2,
    table_3,
    table_4,
    table_5,
    table_6,
    table_7,
    table_summary,
)
from papers.davody_2020.grid import Grid
from papers.davody_2020.runs import Run, read
from papers.grid import missing
from papers.paper import Paper, Part

_SEEDS, _SEED = (0, 1, 2), (0,)


def _table(grid: Grid, seeds: tuple[int, ...], *options: str) -> Part[Run]:
    rows = tuple(row.name for row in grid.rows)
    return Part(grid.title, grid.section, missing(grid.cells), seeds, frozenset(options), rows)


PAPER: Paper[Run] = Paper(
    name="davody-2020",
    title="Reproducing Davody et al. 2020: normalisation layers and private training",
    about=(
        "The tables of Davody et al. 2020, with the printed number above ours. Tables 2 to 4 and figure 1 are about "
        "noise on weights and have no privacy guarantee. Tables 5 to 7 are private training: each epsilon is that of "
        "one run, and includes neither the other seeds nor the choice of settings.",
    ),
    parts={
        summary.NAME: Part(summary.TITLE, table_summary.section),
        "table-2": _table(table_2.GRID, _SEEDS),
        "figure-1": Part(figure_1.TITLE, figure_1.section, missing(figure_1.cells), _SEED),
        "table-3": _table(table_3.GRID, _SEED, "full"),
        "table-4": _table(table_4.GRID, _SEED),
        "table-5": Part(
            table_5.GRID.title,
            table_5.section,
            missing(table_5.GRID.cells),
            _SEEDS,
            frozenset({"full"}),
            tuple(row.name for row in table_5.GRID.rows),
        ),
        "figure-norms": Part(
            figure_norms.TITLE,
            figure_norms.section,
            missing(figure_norms.cells),
            _SEED,
            frozenset({"full"}),
            tuple(norm.name for norm in norms.NORMS),
        ),
        "table-6": _table(table_6.GRID, _SEED, "weights"),
        "table-7": _table(table_7.GRID, _SEED),
    },
    read=read,
)
