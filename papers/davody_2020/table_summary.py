"""For each table what is printed, what was reached here, with how many seeds, and what differs."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from papers import summary
from papers.davody_2020 import figure_1, table_2, table_3, table_4, table_5, table_6, table_7
from papers.davody_2020.grid import Grid
from papers.davody_2020.norms import LAYER, MIXTURE, MOVED, PLAIN
from papers.davody_2020.runs import Run, mean_of
from papers.section import Section

_ABOUT = (
    "Test accuracies in per cent, with standard errors where there are several seeds; σ is the deviation of noise on "
    "weights, ε the budget of private training. All cells are in the tables below.",
)


@dataclass(frozen=True)
class Shown:
    """Some cells of a row of a table; ``printed`` names the row that the paper has in its place, if it is another."""

    table: Grid
    row: str
    columns: Sequence[float]
    differs: str = ""
    printed: str = ""

    def lines(self, runs: Sequence[Run]) -> Iterator[summary.Row]:
        """One line for each column."""
        rows = {row.name: row for row in self.table.rows}
        for column in self.columns:
            setting = rows[self.row].whole(column)
            mean = mean_of(runs, setting) if setting else None
            yield summary.Row(
                self.table.name.replace("-", " "),
                f"{self.row}, {self.table.heading(column)}",
                rows[self.printed or self.row].printed[self.table.columns.index(column)],
                (mean.shown if mean else "",),
                str(mean.seeds) if mean else "",
                self.differs,
            )


_RATES = "learning rates and epochs are ours: the paper gives none"
_ARTICLES = "18,349 of 120,000 articles, and a part of the word vectors"
_PRIVATE = "lots, epochs and learning rates are ours; Poisson sampling; LeNet-5 with ReLU"
_PUBLIC = (
    "statistics of the public images alone, so that ε holds, which it does not for the printed numbers; training "
    "images move by a pixel at random"
)
_CONVOLUTIONS = (
    "convolutions from images of a random process, without labels, in the place of CIFAR-100; images recompressed as "
    "JPEG"
)
_NOISE_ON_WEIGHTS = (
    Shown(table_2.GRID, "lenet-5", (0.1, 1.0), _RATES),
    Shown(table_2.GRID, "bn-lenet-5", (0.1, 2.0), _RATES),
    Shown(table_2.GRID, "ln-lenet-5", (0.1, 2.0), _RATES),
)
_OTHERS = (
    Shown(table_3.GRID, "vgg-16", (1.0,), "needs a GPU; the table below has networks of an eighth of the width"),
    Shown(table_3.GRID, "bn-vgg-16", (1.0,), "needs a GPU; the table below has networks of an eighth of the width"),
    Shown(table_4.GRID, "bilstm-dl", (2.0,), _ARTICLES),
    Shown(table_4.GRID, "ln-bilstm-dl", (2.0,), _ARTICLES),
    Shown(table_5.GRID, PLAIN.name, (7.0, 1.0, 0.1), _PRIVATE),
    Shown(table_5.GRID, LAYER.name, (7.0, 1.0, 0.1), _PRIVATE),
    Shown(table_5.GRID, MOVED.name, table_5.EPSILONS, f"{_PRIVATE}; {_PUBLIC}", MIXTURE.name),
    *(
        Shown(table_6.GRID, name, table_6.EPSILONS, _CONVOLUTIONS)
        for name in ("tf-tutorial", "ln-tf-tutorial", "frozen-bn-tf-tutorial")
    ),
    Shown(table_7.GRID, "bilstm-dl", (7.0, 0.1), _ARTICLES),
    Shown(table_7.GRID, "ln-bilstm-dl", (7.0, 0.1), _ARTICLES),
)


def section(runs: Sequence[Run]) -> Section:
    """Make the table from the finished runs."""
    parts = (*_NOISE_ON_WEIGHTS, None, *_OTHERS)
    return summary.section([line for shown in parts for line in (shown.lines(runs) if shown else _slow(runs))], _ABOUT)


def _slow(runs: Sequence[Run]) -> Iterator[summary.Row]:
    """How much longer training takes under more noise on the weights."""
    times = figure_1.times_as_long(runs)
    quantity = "epochs that LeNet-5 needs at σ 10 to those at σ 1"
    yield summary.Row("figure 1", quantity, "about 7", (times,), "1" if times else "", "held-out training images")
