"""Figures of privacy costs before a run: lines on log scales, each labelled at its end."""

from __future__ import annotations

import io
import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import matplotlib
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.ticker import FuncFormatter, LogLocator, NullLocator

from noisette.training.report.numbers import power_of_ten
from noisette.training.report.svg import BLUE, INK, STYLE, end_label, spread, standalone, svg

_PAPER = "#fcfbf8"
_INCHES = (4.3, 2.8)  # of one panel
_PLACE = (0.16, 0.165, 0.48, 0.69)  # of its axes, with space on the right for labels
_LONG = 1500  # ratio of an axis' ends above which only powers of ten are labelled
_APART = 0.08  # of the height: the least distance between labels


@dataclass(frozen=True)
class Line:
    """A named line.

    Args:
        name: the label at its end.
        x: horizontal coordinates, above 0 and ascending.
        y: values there. Zeros and infinities, which a log scale cannot show, are left out.
        colour: one of those that a page can set for its light and its dark style.
        strength: the opacity, up to 1.
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
    """Lines over one pair of axes.

    Args:
        title: the heading.
        horizontal: name of the horizontal axis.
        vertical: name of the vertical axis.
        lines: at least one.
        budget: the largest value allowed, shown as a dashed line.
    """

    title: str
    horizontal: str
    vertical: str
    lines: Sequence[Line]
    budget: float | None = None


def as_svg(panels: Sequence[Panel]) -> str:
    """The panels side by side, as an SVG element that uses the colours of the page around it."""
    with matplotlib.rc_context(STYLE):
        return svg(_figure(panels), salt=panels[0].title)


def as_svg_file(panels: Sequence[Panel]) -> str:
    """The panels side by side, as an SVG file with its own background and colours."""
    return standalone(as_svg(panels))


def as_png_file(panels: Sequence[Panel]) -> bytes:
    """The panels side by side, as a PNG file on a light background."""
    drawn = io.BytesIO()
    with matplotlib.rc_context(STYLE), matplotlib.rc_context({"axes.facecolor": _PAPER}):
        _figure(panels).savefig(drawn, format="png", dpi=200, facecolor=_PAPER)
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
    _log(axes.xaxis, axes.set_xscale)
    _log(axes.yaxis, axes.set_yscale)
    axes.tick_params(length=0)
    axes.margins(x=0)
    shown = [(line, line.points) for line in panel.lines if line.points]
    for line, points in shown:
        marker = "o" if len(points) == 1 else ""
        axes.plot(
            *zip(*points, strict=True),
            line.dashes,
            color=line.colour,
            alpha=line.strength,
            marker=marker,
            clip_on=False,
        )
    if panel.budget is not None:
        axes.axhline(panel.budget, color=INK, linewidth=0.9, linestyle=(0, (5, 3)))
    low, high = (math.log(end) for end in axes.get_ylim())
    apart = _APART * (high - low)
    heights = _below(high, spread([math.log(points[-1][1]) for _, points in shown], apart=apart), apart=apart)
    _only_powers_of_ten(axes.xaxis)
    _only_powers_of_ten(axes.yaxis)
    for (line, points), height in zip(shown, heights, strict=True):
        end_label(axes, line.name, (points[-1][0], math.exp(height)), line.colour)


def _below(ceiling: float, heights: Sequence[float], *, apart: float) -> list[float]:
    """The heights, moved downwards just as far as labels need to be ``apart`` and below the ceiling."""
    placed = list(heights)
    for index in sorted(range(len(heights)), key=lambda index: heights[index], reverse=True):
        placed[index] = min(heights[index], ceiling)
        ceiling = placed[index] - apart
    return placed


def _log(axis: Any, set_scale: Any) -> None:
    """A log scale whose labels are plain numbers."""
    set_scale("log")
    axis.set_major_locator(LogLocator(subs=(1, 2, 5)))
    axis.set_minor_locator(NullLocator())
    axis.set_major_formatter(FuncFormatter(lambda value, _: _short(value)))


def _only_powers_of_ten(axis: Any) -> None:
    """Label only the powers of ten of a long axis."""
    low, high = axis.get_view_interval()
    if high > _LONG * low:
        axis.set_major_locator(LogLocator(subs=(1,)))


def _short(value: float) -> str:
    for unit, letter in ((1e6, "M"), (1e3, "k")):
        if unit <= value < 1e9:
            return f"{value / unit:g}{letter}"
    return f"{value:g}" if value > 2e-3 else power_of_ten(value)
