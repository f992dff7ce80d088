"""The figures and tables of the paper: the runs that each needs, and the function that makes it."""

from __future__ import annotations

from papers import summary
from papers.bethune_2024 import (
    figure_pareto,
    figure_robustness,
    figure_speed,
    table_best,
    table_digits,
    table_summary,
    table_tabular,
)
from papers.bethune_2024.runs import Run, read
from papers.grid import missing
from papers.paper import Paper, Part

_SEEDS = (0, 1, 2)
_FULL = frozenset({"full"})

PAPER: Paper[Run] = Paper(
    name="bethune-2024",
    title="Reproducing Bethune et al. 2024: DP-SGD without clipping",
    about=(
        "Experiments after Bethune et al. 2024: in 1-Lipschitz networks the layers, the loss and the inputs bound each "
        "example's gradient, so only the gradient at the scores is clipped, a few numbers per example. Every run is "
        "private, and epsilon is that of one run.",
    ),
    parts={
        summary.NAME: Part(summary.TITLE, table_summary.section),
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
        "table-best": Part(
            table_best.TITLE, table_best.section, missing(table_best.cells), (0,), frozenset(), table_best.SETS
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
    first=summary.NAME,
)
