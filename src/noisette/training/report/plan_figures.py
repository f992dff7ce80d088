"""Figures of privacy costs before a run: lines on log scales, each with its name at its end."""

from __future__ import annotations

import io
import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import matplotlib
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.ticker import LogLocator

from noisette.training.report.numbers import power_of_ten
from noisette.training.report.svg import BLUE, INK, PAPER, STYLE, end_label, log_scale, spread, standalone, svg

_INCHES = (4.3, 2.8)  # of one panel
_PLACE = (0.16, 0.165, 0.48, 0.69)  # of its axes, with room on the right for names
_LONG = 1500  # ratio of the ends of an axis above which three tick labels for each power of ten do not fit
_APART = 0.08  # distance of two names, as a share of the height


@dataclass(frozen=True)
class Line:
    """A named line.

    Args:
        name: written at its end.
        x: positions on the horizontal axis, above 0 and in ascending order.
        y: values there. Values that a log scale cannot show, 0 and infinity, are left out.
        colour: a colour of :mod:`noisette.training.report.svg`, which has a light and a dark variant.
        strength: opacity, 1 for full colour.
        dashes: matplotlib's line style.
    """

    name: str
    x: Sequence[float]
    y: Sequence[float]
    colour: str = BLUE
    strength: float = 1.0
    dashes: str = "-"

    @property
    def points(self) -> list[tuple[float, float]]:
        """The points that a log scale can show."""
        return [(x, y) for x, y in zip(self.x, self.y, strict=True) if 0 < y < math.inf]


@dataclass(frozen=True)
class Panel:
    """Lines on one pair of axes.

    Args:
        title: written above it.
        horizontal: name of the horizontal axis.
        vertical: name of the vertical axis.
        lines: at least one.
        budget: an upper limit of the values, drawn as a dashed line.
    """

    title: str
    horizontal: str
    vertical: str
    lines: Sequence[Line]
    budget: float | None = None


def as_svg(panels: Sequence[Panel]) -> str:
    """The panels side by side, as an SVG element in the colours of the HTML page that contains it."""
    with matplotlib.rc_context(STYLE):
        return svg(_figure(panels), salt=panels[0].title)


def as_svg_file(panels: Sequence[Panel]) -> str:
    """The panels side by side, as an SVG file with its own background and colours."""
    return standalone(as_svg(panels))


def as_png_file(panels: Sequence[Panel]) -> bytes:
    """The panels side by side, as a PNG file with a light background."""
    drawn = io.BytesIO()
    with matplotlib.rc_context(STYLE), matplotlib.rc_context({"axes.facecolor": PAPER}):
        _figure(panels).savefig(drawn, format="png", dpi=200, facecolor=PAPER)
    return drawn.getvalue()


def _figure(panels: Sequence[Panel]) -> Figure:
    width, height = _INCHES
    figure = Figure(figsize=(width * len(panels), height))
    left, bottom, across, up = _PLACE
    for k, panel in enumerate(panels):
        _draw(panel, figure.add_axes(((k + left) / len(panels), bottom, across / len(panels), up)))
    return figure


def _draw(panel: Panel, axes: Axes) -> None:
    budget = "" if panel.budget is None else f"; – –  budget {panel.budget:g}"
    axes.set_title(f"{panel.title}{budget}", fontsize=9, loc="left", pad=10)
    axes.set(xlabel=panel.horizontal, ylabel=panel.vertical)
    log_scale(axes.xaxis, axes.set_xscale, _short)
    log_scale(axes.yaxis, axes.set_yscale, _short)
    axes.tick_params(length=0)
    axes.margins(x=0)
    shown = [(line, line.points) for line in panel.lines if line.points]
    for line, points in shown:
        x, y = zip(*points, strict=True)
        marker = "o" if len(points) == 1 else ""
        axes.plot(x, y, line.dashes, color=line.colour, alpha=line.strength, marker=marker, clip_on=False)
    if panel.budget is not None:
        axes.axhline(panel.budget, color=INK, linewidth=0.9, linestyle=(0, (5, 3)))
    low, high = (math.log(end) for end in axes.get_ylim())
    apart = _APART * (high - low)
    heights = _below(high, spread([math.log(points[-1][1]) for _, points in shown], apart=apart), apart=apart)
    _thin_ticks(axes.xaxis)
    _thin_ticks(axes.yaxis)
    for (line, points), height in zip(shown, heights, strict=True):
        end_label(axes, line.name, (points[-1][0], math.exp(height)), line.colour)


def _below(ceiling: float, heights: Sequence[float], *, apart: float) -> list[float]:
    """The heights, each lowered by as little as keeps labels ``apart`` from each other and below the ceiling."""
    placed = list(heights)
    for index in sorted(range(len(heights)), key=lambda index: heights[index], reverse=True):
        placed[index] = min(heights[index], ceiling)
        ceiling = placed[index] - apart
    return placed


def _thin_ticks(axis: Any) -> None:
    """Label only powers of ten where the axis is too long for more."""
    low, high = axis.get_view_interval()
    if high > _LONG * low:
        axis.set_major_locator(LogLocator(subs=(1,)))


def _short(value: float) -> str:
    for unit, letter in ((1e6, "M"), (1e3, "k")):
        if unit <= value < 1e9:
            return f"{value / unit:g}{letter}"
    return f"{value:g}" if value > 2e-3 else power_of_ten(value)
