"""The figures of a report, as SVG that uses the colours of the page around it."""

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
from noisette.training.report.facts import Facts
from noisette.training.report.numbers import percent, upward
from noisette.training.report.svg import BLUE, GREEN, ORANGE, STYLE, end_label, spread, svg

_INCHES = (4.2, 2.9)
_LABELS = {"pld": "PLD", "rdp": "RDP", "moments": "moments"}


def epsilon_against_steps(facts: Facts) -> str:
    """Epsilon spent after each step by three accountants, as an SVG element; "" if the run has no points."""
    if not facts.points:
        return ""
    steps = [point.step for point in facts.points]
    looks = (
        (PldAccountant(coarseness=4), BLUE, "-"),
        (RdpAccountant(), ORANGE, "--"),
        (MomentsAccountant(), GREEN, ":"),
    )
    curves = [(_LABELS[accountant.name], _course(facts, accountant), *look) for accountant, *look in looks]
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
    """Epsilon at the points of a run: as the run measured it by its own accountant, computed here by another one."""
    privacy, projection = facts.recipe.privacy, facts.recipe.projection
    if accountant.name == privacy.accountant:
        return [point.epsilon for point in facts.points]
    return epsilon_curve(
        PoissonGaussian(facts.sampling_rate, facts.noise_multiplier),
        checkpoints=[point.step for point in facts.points],
        delta=privacy.delta - facts.tail_delta,
        accountant=accountant,
        prior_events={Gaussian(projection.noise_multiplier): 1} if projection.components else {},
    )


def accuracy_against_epsilon(facts: Facts) -> str:
    """Test accuracy against the epsilon spent until then, as an SVG element; "" if it was not measured."""
    measured = [(p.epsilon, 100 * p.test_accuracy) for p in facts.points if p.test_accuracy is not None]
    if not measured:
        return ""
    spent, percents = zip(*measured, strict=True)
    with matplotlib.rc_context(STYLE):
        figure, axes = _empty("ε spent", "test accuracy (%)")
        axes.plot(spent, percents, color=BLUE, marker="o", markersize=3.5, clip_on=False)
        axes.set_xlim(0, float(upward(spent[-1])))
        axes.margins(y=0.1)
        axes.yaxis.set_major_locator(MaxNLocator(nbins=6, integer=True))
        end_label(axes, percent(percents[-1] / 100), (spent[-1], percents[-1]), BLUE)
        return svg(figure, salt="accuracy")


def _empty(horizontal: str, vertical: str) -> tuple[Figure, Axes]:
    """A figure with space on its right for labels at the ends of lines."""
    figure = Figure(figsize=_INCHES)
    axes = figure.add_axes((0.14, 0.16, 0.62, 0.78))
    axes.set(xlabel=horizontal, ylabel=vertical)
    axes.tick_params(length=0)
    return figure, axes
