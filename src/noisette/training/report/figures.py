"""Figures drawn by matplotlib in one style, as parts of an HTML page or as files, and the page of a command."""

from __future__ import annotations

import html
import io
import math
import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path
from typing import Any, TypeAlias

import matplotlib
from jinja2 import ChoiceLoader, Environment, PackageLoader, StrictUndefined
from markupsafe import Markup
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.ticker import FuncFormatter, LogLocator, MaxNLocator, NullLocator

from noisette.accounting import atomic_files
from noisette.training.report.facts import Facts, percent, power_of_ten, upward

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


# Panels

_INCHES = (4.3, 2.8)  # of one panel
_PLACE = (0.16, 0.165, 0.48, 0.69)  # of its axes, with room on the right for names
_LONG = 1500  # ratio of the ends of an axis above which three tick labels for each power of ten do not fit
_APART = 0.08  # distance of two names, as a share of the height


@dataclass(frozen=True)
class Line:
    """A line with its name at its end; values that a log scale cannot show, 0 and infinity, are left out of it."""

    name: str
    x: Sequence[float]  # in ascending order
    y: Sequence[float]
    colour: str = BLUE  # one of this module, which has a light and a dark variant
    strength: float = 1.0  # opacity
    dashes: str = "-"  # matplotlib's line style


@dataclass(frozen=True)
class Panel:
    """One or more lines on one pair of axes, which have these names."""

    title: str
    horizontal: str
    vertical: str
    lines: Sequence[Line]
    budget: float | None = None  # an upper limit of the values, drawn as a dashed line
    linear: bool = False  # whether the scales are linear, from 0 on the horizontal axis, instead of logarithmic
    lowest: float | None = None  # where a linear vertical axis begins; unless given a little below the values

    @property
    def shown(self) -> list[tuple[Line, list[tuple[float, float]]]]:
        """The lines, each with the points that the scale can show; those without are left out."""
        found = [
            (line, [(x, y) for x, y in zip(line.x, line.y, strict=True) if self.linear or 0 < y < math.inf])
            for line in self.lines
        ]
        return [(line, points) for line, points in found if points]

    @property
    def description(self) -> str:
        """What it shows in words: the axes, and the ends of each line."""
        ends = [
            f"{line.name}: from {points[0][1]:.3g} at {points[0][0]:.3g} to {points[-1][1]:.3g} at {points[-1][0]:.3g}"
            for line, points in self.shown
        ]
        return "; ".join([f"{self.vertical} against {self.horizontal}", *ends])


def as_svg(panels: Sequence[Panel]) -> str:
    """The panels side by side, as an SVG element for an HTML page."""
    described = ". ".join(panel.description for panel in panels)
    with matplotlib.rc_context(STYLE):
        return svg(_figure(panels), title="; ".join(panel.title for panel in panels), description=described)


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
    if not panel.linear:
        log_scale(axes.xaxis, axes.set_xscale, _short)
        log_scale(axes.yaxis, axes.set_yscale, _short)
    axes.tick_params(length=0)
    axes.margins(x=0)
    shown = panel.shown
    for line, points in shown:
        x, y = zip(*points, strict=True)
        marker = "o" if len(points) == 1 else ""
        axes.plot(x, y, line.dashes, color=line.colour, alpha=line.strength, marker=marker, clip_on=False)
    if panel.budget is not None:
        axes.axhline(panel.budget, color=INK, linewidth=0.9, linestyle=(0, (5, 3)))
    if panel.linear:
        axes.margins(y=0.1)
        axes.set_xlim(0, 1.001 * max(x for _, points in shown for x, _ in points) or 1)  # the last tick is shown
        axes.set_ylim(bottom=panel.lowest)
        for k, axis in enumerate((axes.xaxis, axes.yaxis)):
            counts = all(isinstance(at[k], int) for _, points in shown for at in points)  # such as steps
            axis.set_major_locator(MaxNLocator(nbins=6, integer=counts))
    else:
        for axis in (axes.xaxis, axes.yaxis):
            low, high = axis.get_view_interval()
            if high > _LONG * low:
                axis.set_major_locator(LogLocator(subs=(1,)))
    scale, back = (float, float) if panel.linear else (math.log, math.exp)
    low, high = (scale(end) for end in axes.get_ylim())
    apart = _APART * (high - low)
    heights = _below(high, spread([scale(points[-1][1]) for _, points in shown], apart=apart), apart=apart)
    for (line, points), height in zip(shown, heights, strict=True):
        end_label(axes, line.name, (points[-1][0], back(height)), line.colour)


def _below(ceiling: float, heights: Sequence[float], *, apart: float) -> list[float]:
    """The heights, each lowered by as little as keeps labels ``apart`` from each other and below the ceiling."""
    placed = list(heights)
    for index in sorted(range(len(heights)), key=lambda index: heights[index], reverse=True):
        placed[index] = min(heights[index], ceiling)
        ceiling = placed[index] - apart
    return placed


def _short(value: float) -> str:
    for unit, letter in ((1e6, "M"), (1e3, "k")):
        if unit <= value < 1e9:
            return f"{value / unit:g}{letter}"
    return f"{value:g}" if value > 2e-3 else power_of_ten(value)


# The panels of a run


def run_panels(facts: Facts) -> tuple[list[tuple[Panel, str]], Panel | None]:
    """The course of a run as panels with captions, and its certified robustness; none of what was not measured."""
    privacy, data, panels = facts.recipe.privacy, facts.recipe.data, []
    if not facts.private:
        return [], None
    tested = "public test examples" if data.holdout is None else "records held out"
    for what, vertical, measured in (
        (
            "accuracy",
            "test accuracy (%)",
            [(p.epsilon, p.test_accuracy and 100 * p.test_accuracy) for p in facts.points],
        ),
        (
            "error",
            f"test RMSE ({data.unit})" if data.unit else "test RMSE",
            [(p.epsilon, p.test_rmse) for p in facts.points],
        ),
    ):
        if found := [(spent, value) for spent, value in measured if value is not None]:
            spent, values = zip(*found, strict=True)
            line = Line(percent(values[-1] / 100) if what == "accuracy" else f"{values[-1]:.4g}", spent, values)
            panel = Panel(f"Test {what} against ε", "ε spent", vertical, [line], linear=True)
            panels.append((panel, f"Test {what} on the {tested} against the ε spent until then."))
    if facts.points:
        steps, spent = zip(*((point.step, point.epsilon) for point in facts.points), strict=True)
        line = Line(f"{privacy.accountant.upper()} {upward(spent[-1])}", steps, spent)
        caption = f"The privacy cost of the same steps, at δ = {power_of_ten(privacy.delta)}, rounded upwards."
        panels.append((Panel("ε against steps", "training step", "ε spent", [line], linear=True, lowest=0), caption))
    if not facts.certified:
        return panels, None
    radii, shares = zip(*facts.certified, strict=True)
    line = Line("", radii, [100 * share for share in shares])
    unattacked = f"Certified accuracy by distance, {percent(shares[0])} unattacked"
    distance, vertical = "Euclidean distance that an example may be moved", "certified accuracy (%)"
    return panels, Panel(unattacked, distance, vertical, [line], linear=True, lowest=0)


# The answer of a command

Cells: TypeAlias = tuple[str, Sequence[str], Sequence[Sequence[str]]]
"""A table: its caption, its headings (none for a table of names and values), and its rows."""


def write_plot(
    path: Path, *, command: str, title: str, lead: str, panels: Sequence[Panel], tables: Sequence[Cells]
) -> None:
    """Write the answer of a command in the format that the file's name ends with: ``.png``, ``.svg`` or ``.html``.

    Only the page has the title, which is the answer in one line, the ``lead`` with the assumptions, and the tables.

    Raises:
        OSError: the file cannot be written.
    """
    match path.suffix.lower():
        case ".png":
            content = as_png_file(panels)
        case ".svg":
            content = standalone(as_svg(panels)).encode()
        case _:
            figures = [Markup(as_svg([panel])) for panel in panels]
            page = templates("noisette.training.report").get_template("plot.html")
            content = page.render(command=command, title=title, lead=lead, figures=figures, tables=tables).encode()
    atomic_files.write(path, content)
