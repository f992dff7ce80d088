"""The tabular study: detection of anomalies at epsilon 1, without and with clipping."""

from __future__ import annotations

from functools import partial
from typing import Literal

from papers.bethune_2024.runs import Cell, Run, median_of
from papers.bethune_2024.schedules import clipless_rows, clipped_rows, seconds
from papers.bethune_2024.setting import Setting
from papers.grid import Grid, Row

Method = Literal["DP-SGD", "clipless"]
EPSILON = 1.0
METHODS: tuple[Method, ...] = ("DP-SGD", "clipless")
# Rows for training, columns, delta, and the best areas under the ROC curve of the paper's table 3a, in per cent.
PRINTED = {
    "aloi": (39_627, 27, 1e-5, ("56.5", "56.2")),
    "campaign": (32_950, 62, 1e-5, ("90.0", "82.2")),
    "celeba": (162_079, 39, 1e-6, ("96.6", "96.5")),
    "donors": (495_460, 10, 1e-6, ("100.0", "100.0")),
    "magic": (15_216, 10, 1e-5, ("90.7", "89.7")),
    "shuttle": (39_277, 9, 1e-5, ("98.3", "99.4")),
    "skin": (196_045, 3, 1e-6, ("100.0", "99.8")),
    "yeast": (1_187, 8, 1e-4, ("66.8", "75.1")),
}


def _setting(name: str, method: Method) -> Setting | None:
    size, columns, delta, _ = PRINTED[name]
    network = (clipless_rows if method == "clipless" else clipped_rows)(size, columns)
    return network.setting(f"adbench-{name}", size, delta, EPSILON)


GRID: Grid[Method, Setting, Cell, Run] = Grid(
    name="table-tabular",
    title="Anomalies in tables at epsilon 1",
    about=(
        "Area under the ROC curve in per cent on the test rows, with the paper's delta, at epsilon 1 by the privacy "
        "loss distribution. Both of our columns train the same layers on the same inputs, scaled to the sphere: DP-SGD "
        "clips each example's gradient and leaves the weights unconstrained; clipless clips only the gradient at the "
        "scores and keeps the weights orthogonal, or those of a single layer in a ball. Narrow tables have a hidden "
        "layer of 64 units, sorted in pairs, whose outputs are concatenated with the row and a constant. Noise on a "
        "hidden layer grows with its inputs, so the others have one linear layer on fixed features: wide tables, of 25 "
        "columns or more, on the square root of each number's size, with its sign, and a constant; the table of less "
        "than 5,000 rows on 512 cosines of random combinations of its columns. With one layer on the sphere the two "
        "methods differ only in the constraint. Medians of the seeds, with minimum and maximum.",
        "The paper prints the best of many runs on its validation rows, a search that is not included in epsilon; ours "
        "has one setting for all tables of a size and width. It was chosen on Adult (unchanged, with fewer of its "
        "rarer class, with its numbers scaled to their range as ADBench does, and for small tables with six "
        "standardised numbers of 1,187 rows), on ADBench's mammography and on random points, none of which the table "
        "shows. A first breadth of the cosines, chosen for columns between 0 and 1, had failed on yeast (54.5 and "
        "46.9). Mean, deviation and range of yeast's training columns were then looked at, which no epsilon covers: "
        "they are standardised. The breadth was chosen again on standardised columns of the public sets.",
        "The paper's split is not known, only its sizes: 80 % for training; the 297 test rows of yeast fix an area "
        "only within about three points, the 975 anomalies among those of celeba within 0.4 (one standard error). On "
        "our split of yeast a support vector machine reaches 74.8 without privacy, below the printed 75.1; on that of "
        "celeba a logistic regression 97.1. Its census set is too large to be distributed with these sets. ADBench has "
        "scaled the columns of most sets by statistics of all rows, which no epsilon here covers; except for yeast as "
        "said, nothing else was computed from the rows when these settings were chosen.",
    ),
    of="set",
    columns=METHODS,
    heading=str,
    rows=tuple(Row(name, printed, partial(_setting, name)) for name, (*_, printed) in PRINTED.items()),
    default=tuple(PRINTED),
    cell=lambda setting, seed, asked: Cell(setting, seed, seconds(setting)),
    shown=lambda runs, setting: str(median_of(runs, setting) or ""),
)
