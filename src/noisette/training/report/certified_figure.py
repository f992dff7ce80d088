"""The figure of certified accuracy against the radius."""

from __future__ import annotations

from collections.abc import Sequence

import matplotlib
from matplotlib.figure import Figure
from matplotlib.ticker import MaxNLocator

from noisette.training.report.numbers import percent
from noisette.training.report.svg import BLUE, STYLE, svg

_INCHES = (4.2, 2.9)
_LIFT = 4  # points between a marker and its label


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
        figure = Figure(figsize=_INCHES)
        axes = figure.add_axes((0.14, 0.16, 0.82, 0.74))
        axes.set(xlabel="Euclidean distance that an example may be moved", ylabel="certified accuracy (%)")
        axes.tick_params(length=0)
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
