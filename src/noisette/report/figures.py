"""The two figures of a report, as SVG that takes its colours from the page around it."""

from __future__ import annotations

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
from noisette.report.facts import Facts
from noisette.report.numbers import percent, upward
from noisette.report.svg import BLUE, GREEN, ORANGE, STYLE, end_label, spread, svg

_INCHES = (4.2, 2.9)
_LABELS = {"pld": "PLD", "rdp": "RDP", "moments": "moments"}


def epsilon_against_steps(facts: Facts) -> str:
    """What the run cost after each step by three accountants, as an SVG element; "" if it took no step to speak of."""
    if not facts.points:
        return ""
    steps = [point.step for point in facts.points]
    claimed = [point.epsilon for point in facts.points]
    looks = (
        (PldAccountant(coarseness=4), BLUE, "-"),
        (RdpAccountant(), ORANGE, "--"),
        (MomentsAccountant(), GREEN, ":"),
    )
    curves = [
        (
            _LABELS[accountant.name],
            claimed if accountant.name == facts.accountant else _course(facts, accountant),
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


def _course(facts: Facts, accountant: Accountant) -> list[float]:
    """Epsilon at the points of a run by another accountant than its own."""
    return epsilon_curve(
        PoissonGaussian(facts.sampling_rate, facts.noise_multiplier),
        checkpoints=[point.step for point in facts.points],
        delta=facts.delta - facts.tail_delta,
        accountant=accountant,
        besides={Gaussian(facts.components_noise_multiplier): 1} if facts.components else {},
    )


def accuracy_against_epsilon(facts: Facts) -> str:
    """Test accuracy as the budget was spent, as an SVG element; "" if it was not measured."""
    measured = [(p.epsilon, 100 * p.test_accuracy) for p in facts.points if p.test_accuracy is not None]
    if not measured:
        return ""
    epsilons, percents = zip(*measured, strict=True)
    with matplotlib.rc_context(STYLE):
        figure, axes = _empty("ε spent", "test accuracy (%)")
        axes.plot(epsilons, percents, color=BLUE, marker="o", markersize=3.5, clip_on=False)
        axes.set_xlim(0, float(upward(epsilons[-1])))
        axes.margins(y=0.1)
        axes.yaxis.set_major_locator(MaxNLocator(nbins=6, integer=True))
        end_label(axes, percent(percents[-1] / 100), (epsilons[-1], percents[-1]), BLUE)
        return svg(figure, salt="accuracy")


def _empty(horizontal: str, vertical: str) -> tuple[Figure, Axes]:
    """A figure with room on its right for labels at the ends of lines."""
    figure = Figure(figsize=_INCHES)
    axes = figure.add_axes((0.14, 0.16, 0.62, 0.78))
    axes.set(xlabel=horizontal, ylabel=vertical)
    axes.tick_params(length=0)
    return figure, axes
