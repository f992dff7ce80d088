"""Matplotlib figures as SVG, in the colours of the HTML page that contains them or of a file of their own."""

from __future__ import annotations

import io
import math
import re
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path
from typing import Any, TypeAlias

import matplotlib
from markupsafe import Markup
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.ticker import FuncFormatter, LogLocator, MaxNLocator, NullLocator

from noisette.accounting import (
    Accountant,
    Events,
    MomentsAccountant,
    PldAccountant,
    RdpAccountant,
    atomic_files,
    epsilon_curve,
)
from noisette.accounting.events import event_of
from noisette.errors import UnsupportedEventError
from noisette.training.report.facts import Facts
from noisette.training.report.numbers import percent, power_of_ten, templates, upward

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


_INCHES = (4.2, 2.9)
_LIFT = 4  # points between a marker and its label
_LABELS = {"pld": "PLD", "rdp": "RDP", "moments": "moments"}


def epsilon_against_steps(facts: Facts) -> str:
    """Epsilon spent after each step by three accountants, as an SVG element; "" if the run has no points."""
    if not facts.points:
        return ""
    steps = [point.step for point in facts.points]
    looks = (
        (PldAccountant(), BLUE, "-"),
        (RdpAccountant(), ORANGE, "--"),
        (MomentsAccountant(), GREEN, ":"),
    )
    curves = []
    for accountant, *look in looks:
        with suppress(UnsupportedEventError):  # of kinds of batches that an accountant does not know
            curves.append((_LABELS[accountant.name], _course(facts, accountant), *look))
    with matplotlib.rc_context(STYLE):
        figure, axes = _empty("training step", "ε spent")
        axes.set_xlim(0, steps[-1])
        axes.set_ylim(0, top := 1.08 * max(values[-1] for _, values, *_ in curves))
        heights = spread([values[-1] for _, values, *_ in curves], apart=0.075 * top)
        for (name, values, colour, dashes), height in zip(curves, heights, strict=True):
            axes.plot(steps, values, dashes, color=colour, marker="o" if len(steps) == 1 else "", clip_on=False)
            end_label(axes, f"{name} {upward(values[-1])}", (steps[-1], height), colour)
        return svg(figure, salt="epsilon")


def _course(facts: Facts, accountant: Accountant) -> list[float]:
    """Epsilon at the points of a run: as the run measured it by its own accountant, computed here by another one."""
    privacy = facts.recipe.privacy
    if accountant.name == privacy.accountant:
        return [point.epsilon for point in facts.points]
    return epsilon_curve(
        event_of(facts.event),
        checkpoints=[point.step for point in facts.points],
        delta=privacy.delta,
        accountant=accountant,
        prior_events=_other_releases(facts),
    )


def _other_releases(facts: Facts) -> Events:
    """Everything that the ledger counts beside the steps of the run."""
    others = {event_of(event): times for event, times in facts.released}
    others[event_of(facts.event)] = others.get(event_of(facts.event), 0) - facts.steps
    return {event: times for event, times in others.items() if times > 0}


def accuracy_against_epsilon(facts: Facts) -> str:
    """Test accuracy against the epsilon spent until then, as an SVG element; "" if it was not measured."""
    measured = [(p.epsilon, 100 * p.test_accuracy) for p in facts.points if p.test_accuracy is not None]
    if not measured:
        return ""
    return _against_epsilon(measured, "test accuracy (%)", percent(measured[-1][1] / 100), whole=True)


def error_against_epsilon(facts: Facts) -> str:
    """The test error of a predicted number against the epsilon spent, as an SVG element; "" if it was not measured."""
    measured = [(p.epsilon, p.test_rmse) for p in facts.points if p.test_rmse is not None]
    if not measured:
        return ""
    unit = facts.recipe.data.unit
    return _against_epsilon(
        measured, f"test RMSE ({unit})" if unit else "test RMSE", f"{measured[-1][1]:.4g}", whole=False
    )


def _against_epsilon(measured: Sequence[tuple[float, float]], name: str, last: str, *, whole: bool) -> str:
    """A line through the measured values, labelled with the last; ``whole`` if ticks are whole numbers."""
    spent, values = zip(*measured, strict=True)
    with matplotlib.rc_context(STYLE):
        figure, axes = _empty("ε spent", name)
        axes.plot(spent, values, color=BLUE, marker="o", markersize=3.5, clip_on=False)
        axes.set_xlim(0, float(upward(spent[-1])))
        axes.margins(y=0.1)
        axes.yaxis.set_major_locator(MaxNLocator(nbins=6, integer=whole))
        end_label(axes, last, (spent[-1], values[-1]), BLUE)
        return svg(figure, salt="accuracy")


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
        horizontal = "Euclidean distance that an example may be moved"
        figure, axes = _empty(horizontal, "certified accuracy (%)", (0.14, 0.16, 0.82, 0.74))
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


def _empty(
    horizontal: str, vertical: str, place: tuple[float, float, float, float] = (0.14, 0.16, 0.62, 0.78)
) -> tuple[Figure, Axes]:
    """A figure with axes at this place; the default has space on the right for labels at the ends of lines."""
    figure = Figure(figsize=_INCHES)
    axes = figure.add_axes(place)
    axes.set(xlabel=horizontal, ylabel=vertical)
    axes.tick_params(length=0)
    return figure, axes


_PLAN_INCHES = (4.3, 2.8)  # of one panel
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
        colour: a colour of :mod:`noisette.training.report.figures`, which has a light and a dark variant.
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
    width, height = _PLAN_INCHES
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


Cells: TypeAlias = tuple[str, Sequence[str], Sequence[Sequence[str]]]
"""A table: its caption, its headings (none for a table of names and values), and its rows."""

_PAGES = templates("noisette.training.report")


@dataclass(frozen=True)
class Plot:
    """The figures and tables of a command's answer.

    Args:
        command: the command's name.
        title: the answer in one line.
        lead: the assumptions behind it, in one or two sentences.
        panels: the figure, as panels side by side.
        tables: the numbers behind it.
    """

    command: str
    title: str
    lead: str
    panels: Sequence[Panel]
    tables: Sequence[Cells]

    def write(self, path: Path) -> None:
        """Write the file at once in the format that its name ends with: ``.png``, ``.svg`` or ``.html``.

        Raises:
            OSError: the file cannot be written.
        """
        formats = {".png": as_png_file, ".svg": lambda panels: as_svg_file(panels).encode(), ".html": self._html}
        atomic_files.write(path, formats[path.suffix.lower()](self.panels))

    def _html(self, panels: Sequence[Panel]) -> bytes:
        figures = [(panel.title, Markup(as_svg([panel]))) for panel in panels]
        return _PAGES.get_template("plot.html").render(plot=self, figures=figures).encode()
