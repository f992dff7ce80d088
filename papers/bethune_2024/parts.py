"""The figures and tables of the study: what each needs to be run, and what it makes of the runs."""

from __future__ import annotations

from papers.bethune_2024 import figure_pareto, figure_robustness, figure_speed, table_digits, table_tabular
from papers.bethune_2024.runs import Run, read
from papers.grid import missing
from papers.paper import Paper, Part

_SEEDS = (0, 1, 2)
_FULL = frozenset({"full"})

PAPER: Paper[Run] = Paper(
    name="bethune-2024",
    title="Private training without clipping, made again",
    about=(
        "After Bethune et al. 2024: networks that stretch no vector, so that layers, loss and inputs bound each "
        "example's gradient and none is clipped, but that at the scores, a few numbers per example. Every run is "
        "private and priced by itself.",
    ),
    parts={
        "figure-pareto": Part(
            figure_pareto.GRID.title,
            figure_pareto.section,
            missing(figure_pareto.GRID.cells),
            _SEEDS,
            _FULL,
            tuple(row.name for row in figure_pareto.GRID.rows),
        ),
        "table-digits": Part(
            table_digits.GRID.title,
            table_digits.GRID.section,
            missing(table_digits.GRID.cells),
            _SEEDS,
            frozenset(),
            tuple(row.name for row in table_digits.GRID.rows),
        ),
        "table-tabular": Part(
            table_tabular.GRID.title,
            table_tabular.GRID.section,
            missing(table_tabular.GRID.cells),
            _SEEDS,
            frozenset(),
            tuple(row.name for row in table_tabular.GRID.rows),
        ),
        "figure-robustness": Part(
            figure_robustness.TITLE,
            figure_robustness.section,
            missing(figure_robustness.GRID.cells),
            _SEEDS,
            _FULL,
            tuple(row.name for row in figure_robustness.GRID.rows),
        ),
        "figure-speed": Part(figure_speed.TITLE, figure_speed.section),
    },
    read=read,
    first="figure-speed",
)
