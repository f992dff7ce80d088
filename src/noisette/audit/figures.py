"""The figure of membership inference as an SVG element."""

from __future__ import annotations

import matplotlib
import numpy as np
from matplotlib.figure import Figure

from noisette.audit.membership import Membership
from noisette.training.report.figures import BLUE, FAINT, GREEN, INK, ORANGE, STYLE, svg


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
        lines = ((0.94, BLUE, "-"), (0.80, ORANGE, "--"), (0.66, GREEN, "-."))
        labels = [(0.30, "shaded: allowed by\nthe guarantee", INK), (0.14, "dotted: guessing", INK)]
        for attack, (height, colour, dashes) in zip(found.attacks, lines, strict=False):
            false, true = attack.curve()
            shown = false > 0
            axes.step(false[shown], np.maximum(true[shown], least), dashes, where="post", color=colour)
            labels.append((height, f"{attack.name}\nAUC {attack.auc:.3f}", colour))
        axes.set(xscale="log", yscale="log", xlim=(least, 1), ylim=(least, 1))
        axes.set(xlabel="false positive rate", ylabel="true positive rate (members)")
        axes.tick_params(length=0)
        axes.minorticks_off()
        for height, text, colour in labels:
            axes.text(1.04, height, text, color=colour, transform=axes.transAxes, va="center")
        return svg(figure, title="Membership inference")
