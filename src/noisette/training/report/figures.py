"""The figures of a report, as SVG that takes its colours from the page around it."""

from __future__ import annotations

from collections.abc import Sequence

import matplotlib
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.ticker import MaxNLocator

from noisette.accounting import (
    Accountant,
    Gaussian,
    MomentsAccountant,
    PldAccountant,
    PoissonGaussian,
    RdpAccountant,
    epsilon_curve,
)
from noisette.training.report.facts import Claim, Facts
from noisette.training.report.numbers import percent, upward
from noisette.training.report.svg import BLUE, GREEN, ORANGE, STYLE, end_label, spread, svg

_INCHES = (4.2, 2.9)
_LABELS = {"pld": "PLD", "rdp": "RDP", "moments": "moments"}


def epsilon_against_steps(facts: Facts) -> str:
    """What the run cost after each step by three accountants, as an SVG element; "" if it took no step to speak of."""
    claim = facts.claim
    if not facts.points or claim is None:
        return ""
    steps = [point.step for point in facts.points]
    claimed = [point.epsilon for point in facts.points if point.epsilon is not None]
    looks = (
        (PldAccountant(coarseness=4), BLUE, "-"),
        (RdpAccountant(), ORANGE, "--"),
        (MomentsAccountant(), GREEN, ":"),
    )
    curves = [
        (
            _LABELS[accountant.name],
            claimed if accountant.name == claim.accountant else _course(facts, claim, accountant),
            *look,
        )
        for accountant, *look in looks
    ]
    with matplotlib.rc_context(STYLE):
        figure, axes = _empty("training step", "ε spent")
        axes.set_xlim(0, steps[-1])
        axes.set_ylim(0, top := 1.08 * max(values[-1] for _, values, *_ in curves))
        heights = spread([values[-1] for _, values, *_ in curves], apart=0.075 * top)
        for (name, values, colour, dashes), height in zip(curves, heights, strict=True):
            axes.plot(steps, values, dashes, color=colour, marker="o" if len(steps) == 1 else "", clip_on=False)
            end_label(axes, f"{name} {upward(values[-1])}", (steps[-1], height), colour)
        return svg(figure, salt="epsilon")


def _course(facts: Facts, claim: Claim, accountant: Accountant) -> list[float]:
    """Epsilon at the points of a run by another accountant than its own."""
    return epsilon_curve(
        PoissonGaussian(facts.sampling_rate, facts.noise_multiplier),
        checkpoints=[point.step for point in facts.points],
        delta=claim.delta - claim.tail_delta,
        accountant=accountant,
        prior_events={Gaussian(facts.components_noise_multiplier): 1} if facts.components else {},
    )


def accuracy_against_epsilon(facts: Facts) -> str:
    """Test accuracy as the budget was spent, as an SVG element; "" if it was not measured, or there was no budget."""
    measured = [
        (p.epsilon, 100 * p.test_accuracy)
        for p in facts.points
        if p.test_accuracy is not None and p.epsilon is not None
    ]
    return _accuracy(measured, "ε spent", float(upward(measured[-1][0]))) if measured else ""


def accuracy_against_steps(facts: Facts) -> str:
    """Test accuracy as training went on, as an SVG element; "" if it was not measured."""
    measured = [(p.step, 100 * p.test_accuracy) for p in facts.points if p.test_accuracy is not None]
    return _accuracy(measured, "training step", measured[-1][0]) if measured else ""


def _accuracy(measured: Sequence[tuple[float, float]], along: str, end: float) -> str:
    places, percents = zip(*measured, strict=True)
    with matplotlib.rc_context(STYLE):
        figure, axes = _empty(along, "test accuracy (%)")
        axes.plot(places, percents, color=BLUE, marker="o", markersize=3.5, clip_on=False)
        axes.set_xlim(0, end)
        axes.margins(y=0.1)
        axes.yaxis.set_major_locator(MaxNLocator(nbins=6, integer=True))
        end_label(axes, percent(percents[-1] / 100), (places[-1], percents[-1]), BLUE)
        return svg(figure, salt="accuracy")


def _empty(horizontal: str, vertical: str) -> tuple[Figure, Axes]:
    """A figure with room on its right for labels at the ends of lines."""
    figure = Figure(figsize=_INCHES)
    axes = figure.add_axes((0.14, 0.16, 0.62, 0.78))
    axes.set(xlabel=horizontal, ylabel=vertical)
    axes.tick_params(length=0)
    return figure, axes
