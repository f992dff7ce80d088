"""The figures of audits, as SVG elements that take their colours from the page around them."""

from __future__ import annotations

import matplotlib
import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from noisette.audit.certificate import epsilon_of
from noisette.audit.step_audit import StepAudit
from noisette.report.svg import BLUE, GREEN, ORANGE, STYLE, end_label, spread, svg

_INCHES = (7.6, 2.9)
_BINS = 60
_DELTAS = np.logspace(-9, -1, 60)


def step_figure(audit: StepAudit) -> str:
    """Scores of canaries in and out beside what was claimed of them, and the epsilon that they prove."""
    with matplotlib.rc_context(STYLE):
        figure = Figure(figsize=_INCHES)
        _scores(figure.add_axes((0.075, 0.17, 0.40, 0.70)), audit)
        _epsilons(figure.add_axes((0.585, 0.17, 0.27, 0.70)), audit)
        return svg(figure, salt="step audit")


def _scores(axes: Axes, audit: StepAudit) -> None:
    scores = audit.scores
    places = np.linspace(min(-3, scores.values.min()), max(3 + scores.shift, scores.values.max()), _BINS + 1)
    fine = np.linspace(places[0], places[-1], 300)
    claimed = 0.0
    for values, mean, colour in ((scores.of_those_out, 0.0, BLUE), (scores.of_those_in, scores.shift, ORANGE)):
        gaussian = np.exp(-((fine - mean) ** 2) / 2) / np.sqrt(2 * np.pi)
        if values.size:
            axes.hist(values, places.tolist(), density=True, color=colour, alpha=0.35)
        axes.plot(fine, gaussian, color=colour, linewidth=1.4)
        claimed = max(claimed, float(gaussian.max()))
    axes.set(xlabel="score, in deviations of the noise", yticks=[])
    axes.set_ylim(0, max(1.25 * claimed, axes.get_ylim()[1]))
    axes.spines["left"].set_visible(False)
    axes.grid(visible=False)
    axes.tick_params(length=0)
    axes.text(0.0, 1.06, "canaries out", color=BLUE, transform=axes.transAxes)
    axes.text(0.28, 1.06, "canaries in", color=ORANGE, transform=axes.transAxes)
    axes.text(0.53, 1.06, "lines: as documented", transform=axes.transAxes)


def _epsilons(axes: Axes, audit: StepAudit) -> None:
    """Of one step, at every delta."""
    looks = ((audit.claimed_mu, "claimed", GREEN, "-"), (audit.certified_mu, "certified", ORANGE, "--"))
    curves = [([epsilon_of(mu, delta=float(delta)) for delta in _DELTAS[::-1]], *look) for mu, *look in looks]
    top = 1.08 * max(values[-1] for values, *_ in curves) or 1.0
    axes.set_xscale("log")
    axes.set_xlim(_DELTAS[-1], _DELTAS[0])
    axes.set_ylim(0, top)
    axes.set(xlabel="δ", ylabel="ε of one step")
    axes.tick_params(length=0)
    axes.minorticks_off()
    heights = spread([values[-1] for values, *_ in curves], apart=0.09 * top)
    for (values, name, colour, dashes), height in zip(curves, heights, strict=True):
        axes.plot(_DELTAS[::-1], values, dashes, color=colour, clip_on=False)
        end_label(axes, name, (_DELTAS[0], height), colour)
