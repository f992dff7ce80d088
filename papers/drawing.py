"""Figures in one style, as parts of pages and as files, for papers, experiments and benchmarks."""

from __future__ import annotations

import html
import io
import re
from collections.abc import Callable, Sequence
from itertools import pairwise
from typing import Any

import matplotlib
from jinja2 import ChoiceLoader, Environment, PackageLoader, StrictUndefined
from markupsafe import Markup
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.ticker import FuncFormatter, LogLocator, NullLocator

# Distinguishable with colour blindness (Okabe and Ito); lines also differ in their dashes. paper.css has the colours of
# a dark page.
INK, FAINT, BLUE, GREEN, ORANGE = "#23262b", "#d7d5cf", "#0072b2", "#00795a", "#c65102"
PAPER = "#fcfbf8"
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
_DARK = {INK: "#e4e3df", FAINT: "#373b43", BLUE: "#56b4e9", GREEN: "#3ecf9f", ORANGE: "#f5914a"}
# Matplotlib writes colours into style attributes, which a style sheet has to overrule.
_RULES = " ".join(
    f'svg [style*="{name}: {light}"] {{ {name}: {dark} !important; }}'
    for light, dark in _DARK.items()
    for name in ("fill", "stroke")
)
FIGURE_CSS = (
    "svg text, svg tspan { font-family: system-ui, sans-serif !important; } "
    f"@media (prefers-color-scheme: dark) {{ {_RULES} }}"
)
"""The font and the dark colours of figures, for the style sheet of a page or of a file."""


def templates(package: str) -> Environment:
    """The templates of a package, with the style sheet of the report; undefined variables are errors."""
    environment = Environment(
        loader=ChoiceLoader([PackageLoader(package, ""), PackageLoader("noisette.training.report", "")]),
        autoescape=True,
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    environment.globals["figure_css"] = Markup(FIGURE_CSS)
    return environment


def svg(figure: Figure, *, title: str, description: str = "") -> str:
    """A figure drawn under :data:`STYLE` as an SVG element for an HTML page, without prolog and external addresses.

    Title and description, which names the axes unless given, are for screen readers. Figures on one page have different
    titles, and so different identifiers.
    """
    if not description:
        named = [(axes.get_ylabel(), axes.get_xlabel()) for axes in figure.axes]
        description = "; ".join(f"{vertical} against {horizontal}" for vertical, horizontal in named if vertical)
    drawn = io.StringIO()
    with matplotlib.rc_context({"svg.hashsalt": title}):
        left_out = dict.fromkeys(("Creator", "Date", "Format", "Type"))
        figure.savefig(drawn, format="svg", transparent=True, metadata=left_out)
    element = drawn.getvalue()
    element = element[element.index("<svg") :]
    element = re.sub(r"\s*<style.*?</style>", "", element)  # it would apply to the rest of the page as well
    referred = set(re.findall(r'(?:href="|url\()#([^")]+)', element))
    element = re.sub(r' id="([^"]*)"', lambda name: name[0] if name[1] in referred else "", element)
    start, rest = element.split(">", 1)
    start = start.replace("<svg", '<svg role="img" stroke-linejoin="round"', 1)
    return f"{start}>\n<title>{html.escape(title)}</title>\n<desc>{html.escape(description)}</desc>{rest}"


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
