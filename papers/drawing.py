"""Figures as files, and names at the ends of their lines and log scales, for papers, experiments and benchmarks."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from itertools import pairwise
from typing import Any

from matplotlib.axes import Axes
from matplotlib.ticker import FuncFormatter, LogLocator, NullLocator

from noisette.training.report.figures import FIGURE_CSS, PAPER


def standalone(element: str) -> str:
    """The figure as a file with a background, in dark colours for readers who prefer a dark colour scheme."""
    start, rest = element.split("</desc>", 1)
    dark = "@media (prefers-color-scheme: dark) { .paper { fill: #16181c } }"
    paper = f'<rect class="paper" width="100%" height="100%" fill="{PAPER}"/>'
    return f"{start}</desc>\n<style>{FIGURE_CSS} {dark}</style>\n{paper}{rest}"


def end_label(axes: Axes, text: str, end: tuple[float, float], colour: str) -> None:
    """Text right of the end of a line."""
    axes.annotate(
        text, end, xytext=(7, 0), textcoords="offset points", color=colour, va="center", annotation_clip=False
    )


def spread(heights: Sequence[float], *, apart: float) -> list[float]:
    """The heights, each raised by as little as keeps labels ``apart`` from each other."""
    order = sorted(range(len(heights)), key=lambda index: heights[index])
    placed = list(heights)
    for below, above in pairwise(order):
        placed[above] = max(placed[above], placed[below] + apart)
    return placed


def log_scale(axis: Any, set_scale: Callable[[str], None], label: Callable[[float], str]) -> None:
    """Give an axis a log scale with ticks at 1, 2 and 5 times powers of ten, each with the label of its value."""
    set_scale("log")
    axis.set_major_locator(LogLocator(subs=(1, 2, 5)))
    axis.set_minor_locator(NullLocator())
    axis.set_major_formatter(FuncFormatter(lambda value, _: label(value)))
