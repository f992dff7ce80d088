"""The figures of a report, as SVG that uses the colours of the page around it."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import suppress

import matplotlib
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.ticker import MaxNLocator

from noisette.accounting import (
    Accountant,
    Events,
    MomentsAccountant,
    PldAccountant,
    RdpAccountant,
    epsilon_curve,
)
from noisette.accounting.serialization import event_of
from noisette.errors import UnsupportedEventError
from noisette.training.report.facts import Facts
from noisette.training.report.numbers import percent, upward
from noisette.training.report.svg import BLUE, GREEN, ORANGE, STYLE, end_label, spread, svg

_INCHES = (4.2, 2.9)
_LIFT = 4  # points between a marker and its label
_LABELS = {"pld": "PLD", "rdp": "RDP", "moments": "moments"}


def epsilon_against_steps(facts: Facts) -> str:
    """Epsilon spent after each step by three accountants, as an SVG element; "" if the run has no points."""
    if not facts.points:
        return ""
    steps = [point.step for point in facts.points]
    looks = (
        (PldAccountant(), BLUE, "-"),
        (RdpAccountant(), ORANGE, "--"),
        (MomentsAccountant(), GREEN, ":"),
    )
    curves = []
    for accountant, *look in looks:
        with suppress(UnsupportedEventError):  # of kinds of batches that an accountant does not know
            curves.append((_LABELS[accountant.name], _course(facts, accountant), *look))
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
    privacy = facts.recipe.privacy
    if accountant.name == privacy.accountant:
        return [point.epsilon for point in facts.points]
    return epsilon_curve(
        event_of(facts.event),
        checkpoints=[point.step for point in facts.points],
        delta=privacy.delta,
        accountant=accountant,
        prior_events=_other_releases(facts),
    )


def _other_releases(facts: Facts) -> Events:
    """Everything that the ledger counts beside the steps of the run."""
    others = {event_of(event): times for event, times in facts.released}
    others[event_of(facts.event)] = others.get(event_of(facts.event), 0) - facts.steps
    return {event: times for event, times in others.items() if times > 0}


def accuracy_against_epsilon(facts: Facts) -> str:
    """Test accuracy against the epsilon spent until then, as an SVG element; "" if it was not measured."""
    measured = [(p.epsilon, 100 * p.test_accuracy) for p in facts.points if p.test_accuracy is not None]
    if not measured:
        return ""
    return _against_epsilon(measured, "test accuracy (%)", percent(measured[-1][1] / 100), whole=True)


def error_against_epsilon(facts: Facts) -> str:
    """The test error of a predicted number against the epsilon spent, as an SVG element; "" if it was not measured."""
    measured = [(p.epsilon, p.test_rmse) for p in facts.points if p.test_rmse is not None]
    if not measured:
        return ""
    unit = facts.recipe.data.unit
    return _against_epsilon(
        measured, f"test RMSE ({unit})" if unit else "test RMSE", f"{measured[-1][1]:.4g}", whole=False
    )


def _against_epsilon(measured: Sequence[tuple[float, float]], name: str, last: str, *, whole: bool) -> str:
    """A line through the measured values, labelled with the last; ``whole`` if ticks are whole numbers."""
    spent, values = zip(*measured, strict=True)
    with matplotlib.rc_context(STYLE):
        figure, axes = _empty("ε spent", name)
        axes.plot(spent, values, color=BLUE, marker="o", markersize=3.5, clip_on=False)
        axes.set_xlim(0, float(upward(spent[-1])))
        axes.margins(y=0.1)
        axes.yaxis.set_major_locator(MaxNLocator(nbins=6, integer=whole))
        end_label(axes, last, (spent[-1], values[-1]), BLUE)
        return svg(figure, salt="accuracy")


def accuracy_against_radius(measured: Sequence[tuple[float, float]]) -> str:
    """Certified test accuracy against the radius, as an SVG element; "" if it was not measured.

    Args:
        measured: radii in ascending order, from 0 on, each with the share that :func:`noisette.certified_accuracy`
            gives for it.
    """
    if not measured:
        return ""
    radii, shares = zip(*measured, strict=True)
    with matplotlib.rc_context(STYLE):
        horizontal = "Euclidean distance that an example may be moved"
        figure, axes = _empty(horizontal, "certified accuracy (%)", (0.14, 0.16, 0.82, 0.74))
        axes.fill_between(radii, 0, [100 * share for share in shares], color=BLUE, alpha=0.12, linewidth=0)
        axes.plot(radii, [100 * share for share in shares], color=BLUE, clip_on=False)
        axes.set(xlim=(0, radii[-1] or 1), ylim=(0, 100))
        axes.xaxis.set_major_locator(MaxNLocator(nbins=6))
        axes.plot(radii[0], 100 * shares[0], color=BLUE, marker="o", markersize=4, clip_on=False)
        axes.annotate(
            f"{percent(shares[0])} unattacked",
            (radii[0], 100 * shares[0]),
            xytext=(_LIFT, _LIFT),
            textcoords="offset points",
            color=BLUE,
            annotation_clip=False,
        )
        return svg(figure, salt="radius")


def _empty(
    horizontal: str, vertical: str, place: tuple[float, float, float, float] = (0.14, 0.16, 0.62, 0.78)
) -> tuple[Figure, Axes]:
    """A figure with axes at this place; the default has space on the right for labels at the ends of lines."""
    figure = Figure(figsize=_INCHES)
    axes = figure.add_axes(place)
    axes.set(xlabel=horizontal, ylabel=vertical)
    axes.tick_params(length=0)
    return figure, axes
