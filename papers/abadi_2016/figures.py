"""The figures of the paper: the runs that each needs, and the function that draws it."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from papers import summary
from papers.abadi_2016 import figure_2, figure_3, figure_4, figure_5, figure_6, table_summary
from papers.abadi_2016.panels import plans
from papers.abadi_2016.runs import PlannedRun, Run, missing, read
from papers.abadi_2016.setting import Plan
from papers.paper import Asked, Paper, Part

_SEEDS, _SEED = (0, 1, 2), (0,)


def _left(wanted: Callable[[Asked], list[Plan]]) -> Callable[[Asked, Sequence[Run]], list[PlannedRun]]:
    """Return a function that lists the wanted plans without a finished run."""
    return lambda asked, done: [PlannedRun(plan) for plan in missing(wanted(asked), done)]


PAPER: Paper[Run] = Paper(
    name="abadi-2016",
    title="Reproducing Abadi et al. 2016: Deep Learning with Differential Privacy",
    about=(
        "The figures of Abadi et al. 2016, with the printed number beside ours. Epsilon is for adding or removing one "
        "record, with lots drawn by Poisson sampling; it is the epsilon of one run, as in the paper, and includes "
        "neither the repetition with several seeds nor the choice of settings.",
    ),
    parts={
        summary.NAME: Part(summary.TITLE, table_summary.section),
        "figure-2": Part(figure_2.TITLE, lambda runs: figure_2.section()),
        "figure-3": Part(
            figure_3.TITLE, figure_3.section, _left(lambda asked: plans(figure_3.PANELS, asked.seeds)), _SEEDS
        ),
        "figure-4": Part(
            figure_4.TITLE,
            figure_4.section,
            _left(lambda asked: figure_4.plans(asked.seeds, full=asked.full)),
            _SEEDS,
            frozenset({"full"}),
        ),
        "figure-5": Part(
            figure_5.TITLE,
            figure_5.section,
            _left(lambda asked: figure_5.plans(asked.seeds, full=asked.full)),
            _SEED,
            frozenset({"full"}),
        ),
        "figure-6": Part(
            figure_6.TITLE, figure_6.section, _left(figure_6.plans), _SEED, frozenset({"full", "weights"})
        ),
    },
    read=read,
    first="figure-2",
)
