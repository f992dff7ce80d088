"""Figures as SVG elements that take their colours from the page around them."""

from __future__ import annotations

import io
import re
from typing import Any

import matplotlib
from matplotlib.figure import Figure

# Told apart by colour-blind eyes (Okabe and Ito), and by their dashes in grey.
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


def svg(figure: Figure, *, salt: str) -> str:
    """The figure as an element of a page: no prolog, no addresses, colours from the page's variables."""
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
