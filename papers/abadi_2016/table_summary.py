"""Every number that the paper prints in figures 2 to 6, with ours beside it."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from noisette.training.report.facts import percent, power_of_ten, upward
from papers import summary
from papers.abadi_2016 import figure_2, figure_3, figure_4, figure_5, figure_6
from papers.abadi_2016.panels import Panel
from papers.abadi_2016.runs import Run
from papers.abadi_2016.spread import Spread, of_setting, within
from papers.section import Section
from papers.summary import Row

_ABOUT = (
    "Ours by the paper's accountant: strong composition as printed, or the moments accountant with both layers on one "
    "lot. Beside it the same by the privacy loss distribution (PLD), which allows more steps within the same budget. "
    "Accuracies are medians of the seeds on the test images, with minimum and maximum.",
)
_OURS = ("ours", "ours, PLD")
_DIGITS = "lots by Poisson sampling; both layers accounted as one mechanism"
_PHOTOGRAPHS = (
    "convolutions from images of a random process in the place of CIFAR-100; images recompressed as JPEG; three layers "
    "trained, with one clipping norm; no distortion of training images"
)


def section(runs: Sequence[Run]) -> Section:
    """Make the table from the finished runs."""
    rows = [*_epsilons(), *_panels("figure 3", figure_3.PANELS, runs, _DIGITS), *_best(runs), *_sweeps(runs)]
    rows += _panels("figure 6", figure_6.PANELS, runs, _PHOTOGRAPHS)
    return summary.section(rows, _ABOUT, ours=_OURS)


def _epsilons() -> Iterator[Row]:
    for line in figure_2.LINES:
        for epoch, printed in line.printed.items():
            ours = tuple(upward(shown.epsilons([epoch])[0]) for shown in (line, figure_2.LINES[-1]))
            yield Row("figure 2", f"epsilon after {epoch} epochs, {line.name}", f"{printed:g}", ours, "computed")


def _panels(part: str, shown: Sequence[Panel], runs: Sequence[Run], differs: str) -> Iterator[Row]:
    for panel in shown:
        seeds = of_setting(runs, panel.setting, steps=panel.steps_by_pld)
        reached = [within(seeds, steps) for steps in (panel.steps_by_moments, panel.steps_by_pld)]
        ours = (_accuracy(reached[0]), _accuracy(reached[1]))
        quantity = f"accuracy, {panel.name}, epsilon {panel.epsilon:g}"
        yield Row(part, quantity, percent(panel.printed), ours, str(len(seeds)), differs)


def _best(runs: Sequence[Run]) -> Iterator[Row]:
    """The number that figure 4 does not share with figure 3."""
    (epsilon, delta), printed = next(iter(figure_4.PRINTED.items()))
    ours = figure_4.best_within(runs, epsilon, delta)
    quantity = f"best accuracy, epsilon {epsilon:g}, delta {power_of_ten(delta)}"
    yield Row("figure 4", quantity, percent(printed), ours, "those of figure 3", "best of the runs of figure 3")


def _sweeps(runs: Sequence[Run]) -> Iterator[Row]:
    for sweep in figure_5.SWEEPS:
        if sweep.printed:
            reached = figure_5.reached_by(sweep, runs)
            ours = ", ".join(f"{value:g}: {percent(spread.median)}" for value, (_, spread) in reached.items())
            seeds = sorted({spread.seeds for _, spread in reached.values()})
            yield Row("figure 5", sweep.name, sweep.printed, (ours, ""), " or ".join(map(str, seeds)), _DIGITS)


def _accuracy(spread: Spread | None) -> str:
    return spread.accuracy if spread else ""
