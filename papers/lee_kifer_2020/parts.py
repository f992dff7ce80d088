"""The figures and tables of the paper: what is measured for each, and the function that makes it."""

from __future__ import annotations

from papers import summary
from papers.lee_kifer_2020 import table_memory, table_summary
from papers.lee_kifer_2020.figures import FIGURES
from papers.lee_kifer_2020.runs import Run, read
from papers.paper import Paper, Part

PAPER: Paper[Run] = Paper(
    name="lee-kifer-2020",
    title="Remaking Lee & Kifer 2020: the speed of clipping each example's gradient",
    about=(
        "Experiments after Lee & Kifer 2020, with the captured step of this library beside the paper's methods: plain "
        "training, nxBP, multiLoss and ReweightGP.",
    ),
    parts={
        summary.NAME: Part(summary.TITLE, table_summary.section),
        **{
            figure.name: Part(
                figure.title,
                figure.section,
                figure.plan.missing,
                options=frozenset() if figure.plan.small == figure.plan.whole else frozenset({"full"}),
            )
            for figure in FIGURES
        },
        "table-memory": Part(
            table_memory.TITLE, table_memory.section, table_memory.PLAN.missing, options=frozenset({"full"})
        ),
    },
    read=read,
    first=summary.NAME,
)
