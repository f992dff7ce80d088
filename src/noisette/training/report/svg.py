"""Matplotlib figures as SVG, in the colours of the HTML page that contains them or of a file of their own."""

from __future__ import annotations

import io
import re
from collections.abc import Callable, Sequence
from itertools import pairwise
from typing import Any

import matplotlib
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.ticker import FuncFormatter, LogLocator, NullLocator

# Distinguishable with colour blindness (Okabe and Ito); lines also differ in their dashes.
INK, FAINT, BLUE, GREEN, ORANGE = "#23262b", "#d7d5cf", "#0072b2", "#00795a", "#c65102"
_VARIABLES = {INK: "--ink", FAINT: "--faint", BLUE: "--blue", GREEN: "--green", ORANGE: "--orange"}
STYLE: dict[Any, Any] = {
    "svg.fonttype": "none",
    "font.size": 9,
    "text.color": INK,
    "axes.labelcolor": INK,
    "axes.edgecolor": INK,
    "axes.linewidth": 0.6,
    "axes.spines.top": False,
    "axes.spines.right": False,
    "axes.grid": True,
    "grid.color": FAINT,
    "grid.linewidth": 0.6,
    "xtick.color": INK,
    "ytick.color": INK,
    "lines.linewidth": 1.8,
    "lines.solid_capstyle": "round",
}
PAPER = "#fcfbf8"
_DARK = {INK: "#e4e3df", FAINT: "#373b43", BLUE: "#56b4e9", GREEN: "#3ecf9f", ORANGE: "#f5914a", PAPER: "#16181c"}
_FONT = "system-ui, sans-serif"


def svg(figure: Figure, *, salt: str) -> str:
    """The figure as an SVG element for an HTML page: no prolog, no external addresses.

    Every property is a presentation attribute, which all renderers of SVG understand. Where its value is a colour of
    the page, a ``style`` with the page's CSS variable overrides it.

    Args:
        figure: a matplotlib figure.
        salt: makes the identifiers of this figure differ from those of others on the page.
    """
    drawn = io.StringIO()
    with matplotlib.rc_context({"svg.hashsalt": salt}):
        left_out = dict.fromkeys(("Creator", "Date", "Format", "Type"))
        figure.savefig(drawn, format="svg", transparent=True, metadata=left_out)
    element = drawn.getvalue()
    element = element[element.index("<svg") :]
    # Matplotlib's style sheet would override presentation attributes, and apply to the rest of the page as well.
    element = re.sub(r"\s*<style.*?</style>", "", element).replace("<svg", '<svg stroke-linejoin="round"', 1)
    referred = set(re.findall(r'(?:href="|url\()#([^")]+)', element))
    element = re.sub(r' id="([^"]*)"', lambda name: name[0] if name[1] in referred else "", element)
    return re.sub(r' style="([^"]*)"', lambda style: _attributes(style[1]), element)


def _attributes(style: str) -> str:
    """The declarations of a ``style`` as presentation attributes, and a ``style`` for the colours of the page alone."""
    style = re.sub(r"font: ([\d.]+px) [^;]*", rf"font-size: \1; font-family: {_FONT}", style)  # matplotlib before 3.11
    style = re.sub(r"font-family: [^;]*", f"font-family: {_FONT}", style)
    values = dict(declaration.split(": ", 1) for declaration in style.split("; "))
    themed = "; ".join(f"{k}: var({_VARIABLES[value]}, {value})" for k, value in values.items() if value in _VARIABLES)
    attributes = "".join(f' {name}="{value}"' for name, value in values.items())
    return f'{attributes} style="{themed}"' if themed else attributes


def standalone(element: str) -> str:
    """The figure as a file with a background, in dark colours for readers who prefer a dark colour scheme.

    It has no CSS variables. Renderers without CSS show it in light colours.
    """
    element = re.sub(r' style="[^"]*"', "", element)
    start = element.index(">") + 1
    dark = " ".join(
        f'[{name}="{light}"] {{ {name}: {value} }}' for light, value in _DARK.items() for name in ("fill", "stroke")
    )
    style = f"<style>@media (prefers-color-scheme: dark) {{ {dark} }}</style>"
    return f'{element[:start]}\n{style}\n<rect width="100%" height="100%" fill="{PAPER}"/>{element[start:]}'


def log_scale(axis: Any, set_scale: Callable[[str], None], label: Callable[[float], str]) -> None:
    """Give an axis a log scale with ticks at 1, 2 and 5 times powers of ten, each with the label of its value."""
    set_scale("log")
    axis.set_major_locator(LogLocator(subs=(1, 2, 5)))
    axis.set_minor_locator(NullLocator())
    axis.set_major_formatter(FuncFormatter(lambda value, _: label(value)))


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
