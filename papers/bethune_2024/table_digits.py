"""Digits, a set of 1,437 images: accuracy at a small budget with little data."""

from __future__ import annotations

from functools import partial

from papers.bethune_2024.runs import Cell, Run, median_of
from papers.bethune_2024.schedules import DIGITS, seconds
from papers.bethune_2024.setting import Setting
from papers.grid import Grid, Row

EPSILONS = tuple(DIGITS.at)
DELTA = 1e-4

GRID: Grid[float, Setting, Cell, Run] = Grid(
    name="table-digits",
    title="Digits",
    about=(
        "Test accuracy in per cent on the 360 test images of scikit-learn's digits, delta 1e-4: one linear layer on "
        "the pixels of each image minus its mean, scaled to the sphere. The paper does not have this table; settings "
        "were chosen on 1,437 letters of EMNIST, scaled down to 8 x 8 pixels. Medians of the seeds, with minimum and "
        "maximum.",
    ),
    of="network",
    columns=EPSILONS,
    heading=lambda epsilon: f"ε {epsilon:g}",
    rows=(Row("digits-pixels", ("",) * len(EPSILONS), partial(DIGITS.setting, "digits", 1437, DELTA)),),
    default=("digits-pixels",),
    cell=lambda setting, seed, asked: Cell(setting, seed, seconds(setting)),
    shown=lambda runs, setting: str(median_of(runs, setting) or ""),
)
