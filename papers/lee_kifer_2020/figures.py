"""Figures 5 to 9: the time of a step by the methods of the paper, and of the captured step of this library."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from benchmarks.steps.cell import Cell
from benchmarks.steps.experiments import EXPERIMENTS
from benchmarks.steps.figures import figure
from benchmarks.steps.results import amount
from papers.lee_kifer_2020.runs import Measured, Plan, Run, amount_of, captured_gain, gain
from papers.section import Section

COLUMNS = {
    "plain": "plain",
    "nxBP": "nxBP",
    "MultiLoss": "multiLoss",
    "ReweightGP": "ReweightGP",
    "BookKeeping": "book-keeping",
    "captured": "captured",
    "compiled": "compiled",
}  # the methods of the library's benchmark, and their headings
_LARGE = ("resnet18", "resnet34", "resnet50", "resnet101", "vgg11")  # of figure 8, those for a processor
_SECONDS = {"resnet18": 60.0, "resnet34": 100.0, "resnet50": 120.0, "resnet101": 240.0, "vgg11": 240.0}


def _all(cell: Cell, whole: bool) -> tuple[str, ...]:
    """All methods."""
    return tuple(COLUMNS)


def _uncompiled(cell: Cell, whole: bool) -> tuple[str, ...]:
    """All but the compiled step, which takes long to compile, and on a processor no multiLoss for a VGG."""
    left_out = {"compiled"} | ({"MultiLoss"} if cell.name.startswith("vgg") and not whole else set())
    return tuple(name for name in COLUMNS if name not in left_out)


@dataclass(frozen=True)
class Remade:
    """A figure: what is measured for it, and the printed gains of ReweightGP over nxBP, as far as they are known."""

    number: int
    title: str
    about: tuple[str, ...]
    plan: Plan
    printed: Callable[[Cell], str] = lambda cell: ""

    @property
    def name(self) -> str:
        """The name of the part, and the stem of its file."""
        return f"figure-{self.number}"

    def section(self, runs: Sequence[Run]) -> Section:
        """Make the figure and its table from the finished measurements."""
        of = self.plan.runs(runs)
        rows = tuple(self._row(cell, run.measured if run else None) for cell, run in of.items())
        header = (
            *("network", "batch", "images", *COLUMNS.values()),
            *("nxBP to ReweightGP: paper", "ours", "nxBP to captured or compiled"),
        )
        return Section(self.name, self.title, self.about, header, rows, self._figure(self.plan.measured(runs)))

    def _row(self, cell: Cell, measured: Measured | None) -> tuple[str, ...]:
        image = f"{cell.image} × {cell.image}" if cell.image else ""
        known = (cell.title, str(cell.batch), image)
        if measured is None:
            return (*known, *("not run" for _ in COLUMNS), self.printed(cell), "", "")
        times = (_time(measured, name) for name in COLUMNS)
        return (*known, *times, self.printed(cell), ratio(gain(measured, "ReweightGP")), ratio(captured_gain(measured)))

    def _figure(self, measured: Sequence[Measured]) -> str:
        if not measured:
            return ""
        experiment = EXPERIMENTS[self.plan.experiment]
        facts = {"experiment": f"lee-kifer-2020-{self.name}", "unit": experiment.unit, "axis": experiment.axis}
        return figure(facts | {"cells": [dict(cell) for cell in measured]})


def ratio(value: float | None) -> str:
    """A ratio to three digits, or nothing.

    >>> ratio(93.52), ratio(1.0), ratio(None)
    ('93.5', '1.00', '')
    """
    return (
        "" if value is None else f"{value:.0f}" if value >= 100 else f"{value:.1f}" if value >= 10 else f"{value:.2f}"
    )


def _time(measured: Measured, method: str) -> str:
    if "error" in measured["methods"].get(method, {}):
        return "failed"
    seconds = amount_of(measured, method)
    return amount(seconds, "seconds") if seconds else ""


def _cells(name: str, models: Sequence[str] | None = None, images: Sequence[int] | None = None) -> tuple[Cell, ...]:
    return EXPERIMENTS[name].only(models, None, None, images).cells


FIGURES = (
    Remade(
        5,
        "Figure 5: architectures",
        (
            "Time per step at batch 32. The paper measures epochs of MNIST, Fashion-MNIST, CIFAR-10 and IMDB: of the "
            "images, ours have the shape of the first two, and texts are 128 fixed embeddings of width 200.",
        ),
        Plan("fig5", _cells("fig5"), _cells("fig5"), _all, lambda cell: 60.0),
    ),
    Remade(
        6,
        "Figure 6: batch size",
        ("Time per step as the batch grows; the figure shows time per example.",),
        Plan("fig6", _cells("fig6"), _cells("fig6"), _uncompiled, lambda cell: 45.0),
    ),
    Remade(
        7,
        "Figure 7: depth",
        (
            "Networks of 2 to 8 hidden layers at batch 128. The paper's widths beyond the first two layers, 128 and "
            "256, are not known; ours repeat 256. The printed gain is that on Fashion-MNIST.",
        ),
        Plan("fig7", _cells("fig7"), _cells("fig7"), _all, lambda cell: 45.0),
        lambda cell: "94" if cell.name == "mlp" else "",
    ),
    Remade(
        8,
        "Figure 8: large networks",
        (
            "ResNets and VGGs with group norm at batch 20. A processor measures five of them at 64 × 64; --full adds "
            "the others, and 256 × 256. The gradients of 20 examples that multiLoss keeps take about 10 GiB for a VGG, "
            "so that only --full measures it there.",
        ),
        Plan(
            "fig8",
            _cells("fig8", _LARGE),
            _cells("fig8", images=(64, 256)),
            _uncompiled,
            lambda cell: _SECONDS.get(cell.name, 400.0) * ((cell.image or 64) / 64) ** 2,
        ),
    ),
    Remade(
        9,
        "Figure 9: image size",
        (
            "ResNet-18 at batch 32; the figure shows time per example. A processor measures images up to 128 × 128; "
            "--full adds 256 × 256.",
        ),
        Plan(
            "fig9",
            _cells("fig9", images=(32, 64, 128)),
            _cells("fig9"),
            _uncompiled,
            lambda cell: 30.0 + 150.0 * ((cell.image or 0) / 128) ** 2,
        ),
    ),
)
