"""Figures as SVG elements that use the colours of the page around them."""

from __future__ import annotations

import io
import re
from collections.abc import Sequence
from itertools import pairwise
from typing import Any

import matplotlib
from matplotlib.axes import Axes
from matplotlib.figure import Figure

# Colours that colour-blind readers can tell apart (Okabe and Ito); in grey the dashes differ.
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
# The colours of a figure in a file of its own.
_PAPER = (
    "<style>svg { background: #fcfbf8 } @media (prefers-color-scheme: dark) { svg { background: #16181c; --ink: "
    "#e4e3df; --faint: #373b43; --blue: #56b4e9; --green: #3ecf9f; --orange: #f5914a } }</style>"
)


def svg(figure: Figure, *, salt: str) -> str:
    """The figure as an element of a page: no prolog, no links, and colours from the variables of the page."""
    drawn = io.StringIO()
    with matplotlib.rc_context({"svg.hashsalt": salt}):
        figure.savefig(
            drawn,
            format="svg",
            transparent=True,
            metadata={"Creator": None, "Date": None, "Format": None, "Type": None},
        )
    element = drawn.getvalue()
    element = element[element.index("<svg") :]
    referred = set(re.findall(r'(?:href="|url\()#([^")]+)', element))
    element = re.sub(r' id="([^"]*)"', lambda name: name[0] if name[1] in referred else "", element)
    element = re.sub(r"font: ([\d.]+px) [^;\"]*", r"font: \1 system-ui, sans-serif", element)
    for colour, variable in _VARIABLES.items():
        element = element.replace(colour, f"var({variable}, {colour})")
    return element


def standalone(element: str) -> str:
    """The figure with its own background and colours, light or dark as the reader's system asks."""
    start = element.index(">") + 1
    return f"{element[:start]}\n{_PAPER}{element[start:]}"


def end_label(axes: Axes, text: str, end: tuple[float, float], colour: str) -> None:
    """Text to the right of the end of a line."""
    axes.annotate(
        text, end, xytext=(7, 0), textcoords="offset points", color=colour, va="center", annotation_clip=False
    )


def spread(heights: Sequence[float], *, apart: float) -> list[float]:
    """The heights, moved upwards just as far as labels need to be ``apart``."""
    order = sorted(range(len(heights)), key=lambda index: heights[index])
    placed = list(heights)
    for below, above in pairwise(order):
        placed[above] = max(placed[above], placed[below] + apart)
    return placed
