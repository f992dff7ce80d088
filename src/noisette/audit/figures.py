"""The figures of audits as SVG elements."""

from __future__ import annotations

from typing import Any

import matplotlib
import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from noisette.audit.audited_run import RunAudit
from noisette.audit.certificate import epsilon_of
from noisette.audit.membership import Membership
from noisette.audit.step_audit import StepAudit
from noisette.training.report.facts import power_of_ten
from noisette.training.report.figures import BLUE, FAINT, GREEN, INK, ORANGE, STYLE, end_label, spread, svg

_INCHES = (7.6, 2.9)
_BINS = 60
_DELTAS = np.logspace(-9, -1, 60)


def step_figure(audit: StepAudit) -> str:
    """Scores of canaries in and out with their documented distributions, and guaranteed and certified epsilon."""
    with matplotlib.rc_context(STYLE):
        figure = Figure(figsize=_INCHES)
        _scores(figure.add_axes((0.075, 0.17, 0.40, 0.70)), audit)
        _epsilons(figure.add_axes((0.585, 0.17, 0.27, 0.70)), audit)
        return svg(figure, title="Step audit: scores of canaries, and epsilon by delta")


def _scores(axes: Axes, audit: StepAudit) -> None:
    scores = audit.scores
    bins = np.linspace(min(-3, scores.values.min()), max(3 + scores.shift, scores.values.max()), _BINS + 1)
    _histograms(axes, scores.of_those_out, scores.of_those_in, bins)
    fine = np.linspace(bins[0], bins[-1], 300)
    peak = 0.0
    for mean, colour in ((0.0, BLUE), (scores.shift, ORANGE)):
        gaussian = np.exp(-((fine - mean) ** 2) / 2) / np.sqrt(2 * np.pi)
        axes.plot(fine, gaussian, color=colour, linewidth=1.4)
        peak = max(peak, float(gaussian.max()))
    axes.set_xlabel("score, in standard deviations of the noise")
    axes.set_ylim(0, max(1.25 * peak, axes.get_ylim()[1]))
    axes.text(0.53, 1.06, "lines: as documented", transform=axes.transAxes)


def _histograms(axes: Axes, out: np.ndarray, inside: np.ndarray, bins: np.ndarray) -> None:
    for values, colour in ((out, BLUE), (inside, ORANGE)):
        if values.size:
            axes.hist(values, bins.tolist(), density=True, color=colour, alpha=0.35)
    axes.set_yticks([])
    axes.spines["left"].set_visible(False)
    axes.grid(visible=False)
    axes.tick_params(length=0)
    axes.text(0.0, 1.06, "canaries out", color=BLUE, transform=axes.transAxes)
    axes.text(0.28, 1.06, "canaries in", color=ORANGE, transform=axes.transAxes)


def _epsilons(axes: Axes, audit: StepAudit) -> None:
    looks = ((audit.guaranteed_mu, "guaranteed", GREEN, "-"), (audit.certified_mu, "certified", ORANGE, "--"))
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


def run_figure(audit: RunAudit) -> str:
    """Scores of canaries in and out of whole runs, and guaranteed and certified epsilon at each delta."""
    with matplotlib.rc_context(STYLE):
        figure = Figure(figsize=_INCHES)
        left, right = figure.add_axes((0.075, 0.17, 0.40, 0.70)), figure.add_axes((0.585, 0.17, 0.27, 0.70))
        both = np.concatenate([audit.inside, audit.outside])
        bins = np.linspace(both.min(), both.max() + 1e-9, _BINS + 1)
        _histograms(left, audit.outside, audit.inside, bins)
        left.set_xlabel("score of a canary over the whole run")
        _bars(right, audit)
        return svg(figure, title="Audit of a whole run")


def _bars(axes: Axes, audit: RunAudit) -> None:
    places = np.arange(len(audit.points))
    for shift, colour, name, heights, line in (
        (-0.2, GREEN, "guaranteed", [p.guaranteed for p in audit.points], 0.94),
        (0.2, ORANGE, "certified", [p.certified for p in audit.points], 0.84),
    ):
        axes.bar(places + shift, heights, 0.36, color=colour)
        axes.text(1.04, line, name, color=colour, **_beside(axes))
    axes.set_axisbelow(True)
    axes.set_xticks(places.tolist(), [f"δ = {power_of_ten(p.delta)}" for p in audit.points])
    axes.set_ylabel("ε of the run")
    axes.grid(visible=False, axis="x")
    axes.tick_params(length=0)


def membership_figure(found: Membership) -> str:
    """True positive rate of each attack against its false positive rate, and the region that the guarantee allows."""
    with matplotlib.rc_context(STYLE):
        figure = Figure(figsize=(5.2, 3.6))
        axes = figure.add_axes((0.13, 0.14, 0.58, 0.82))
        least = 1 / len(found.attacks[0].others)  # the smallest rate that can be measured
        rates = np.logspace(np.log10(least), 0, 200)
        allowed = [found.allowed(float(rate)) for rate in rates]
        axes.fill_between(rates, rates, np.maximum(allowed, rates), color=FAINT, alpha=0.45, linewidth=0)
        axes.plot(rates, rates, ":", color=INK, linewidth=1)
        looks = ((BLUE, "-"), (ORANGE, "--"), (GREEN, "-."))
        ends = []
        for attack, (colour, dashes) in zip(found.attacks, looks, strict=False):
            false, true = attack.curve()
            shown = false > 0
            axes.step(false[shown], np.maximum(true[shown], least), dashes, where="post", color=colour)
            ends.append((attack, colour))
        axes.set(xscale="log", yscale="log", xlim=(least, 1), ylim=(least, 1))
        axes.set(xlabel="false positive rate", ylabel="true positive rate (members)")
        axes.tick_params(length=0)
        axes.minorticks_off()
        for k, (attack, colour) in enumerate(ends):
            axes.text(1.04, 0.94 - 0.14 * k, f"{attack.name}\nAUC {attack.auc:.3f}", color=colour, **_beside(axes))
        axes.text(1.04, 0.30, "shaded: allowed by\nthe guarantee", **_beside(axes))
        axes.text(1.04, 0.14, "dotted: guessing", **_beside(axes))
        return svg(figure, title="Membership inference")


def _beside(axes: Axes) -> dict[str, Any]:
    return {"transform": axes.transAxes, "va": "center"}
