"""Figures drawn by matplotlib in one style, as parts of an HTML page."""

import html
import io
import re
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import matplotlib
from jinja2 import ChoiceLoader, Environment, PackageLoader, StrictUndefined
from markupsafe import Markup
from matplotlib.figure import Figure
from matplotlib.ticker import MaxNLocator, NullLocator

from noisette.training.report.facts import ClassFigures, Facts, percent, power_of_ten, upward

# Distinguishable with colour blindness (Okabe and Ito); lines also differ in their dashes. paper.css has the colours of
# a dark page.
INK, FAINT, BLUE, GREEN, ORANGE = "#23262b", "#d7d5cf", "#0072b2", "#00795a", "#c65102"
PAPER = "#fcfbf8"
_INCHES = (4.3, 2.8)
STYLE: dict[Any, Any] = {
    "svg.fonttype": "none",
    "font.size": 9,
    **dict.fromkeys(("text.color", "axes.labelcolor", "axes.edgecolor", "xtick.color", "ytick.color"), INK),
    "axes.linewidth": 0.6,
    "axes.spines.top": False,
    "axes.spines.right": False,
    "axes.grid": True,
    "grid.color": FAINT,
    "grid.linewidth": 0.6,
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


def svg(figure: Figure, *, title: str, line: str = "") -> str:
    """A figure drawn under :data:`STYLE` as an SVG element for an HTML page, without prolog and external addresses.

    The title, the names of the axes and ``line`` in words are for screen readers. A page has no title twice.
    """
    named = [(axes.get_ylabel(), axes.get_xlabel()) for axes in figure.axes]
    described = [f"{vertical} against {horizontal}" for vertical, horizontal in named if vertical]
    description = "; ".join([*described, line] if line else described)
    drawn = io.StringIO()
    with matplotlib.rc_context({"svg.hashsalt": title}):
        left_out = dict.fromkeys(("Creator", "Date", "Format", "Type"))
        figure.savefig(drawn, format="svg", transparent=True, metadata=left_out)
    element = drawn.getvalue()[drawn.getvalue().index("<svg") :]
    element = re.sub(r"\s*<style.*?</style>", "", element)  # it would apply to the rest of the page as well
    referred = set(re.findall(r'(?:href="|url\()#([^")]+)', element))
    element = re.sub(r' id="([^"]*)"', lambda name: name[0] if name[1] in referred else "", element)
    start, rest = element.split(">", 1)
    start = start.replace("<svg", '<svg role="img" stroke-linejoin="round"', 1)
    return f"{start}>\n<title>{html.escape(title)}</title>\n<desc>{html.escape(description)}</desc>{rest}"


@dataclass(frozen=True)
class Panel:
    """A line on one pair of axes, which have these names."""

    title: str
    horizontal: str
    vertical: str
    name: str  # of the line
    points: Sequence[tuple[float, float]]  # from left to right
    lowest: float | None = None  # where the vertical axis begins; unless given a little below the values
    highest: float | None = None  # where it ends at the latest
    level: tuple[str, float] | None = None  # the name and the height of a dashed line
    by_factors: bool = False  # whether the horizontal axis is logarithmic, with a tick at each point


def as_svg(panel: Panel) -> str:
    """The panel as an SVG element for an HTML page; in words it has its axes, and the ends of the line."""
    points = panel.points
    ends = f"from {points[0][1]:.3g} at {points[0][0]:.3g} to {points[-1][1]:.3g} at {points[-1][0]:.3g}"
    with matplotlib.rc_context(STYLE):
        figure = Figure(figsize=_INCHES, layout="constrained")
        axes = figure.add_subplot()
        axes.set_title(panel.title, fontsize=9, loc="left", pad=10)
        axes.set(xlabel=panel.horizontal, ylabel=panel.vertical)
        axes.tick_params(length=0)
        x, y = zip(*points, strict=True)
        marker = "o" if panel.by_factors or len(points) == 1 else ""
        axes.plot(x, y, color=BLUE, marker=marker, clip_on=False, label=panel.name)
        if panel.level is not None:
            axes.axhline(panel.level[1], color=ORANGE, linestyle="--", label=panel.level[0])
            ends += f"; dashed, {panel.level[0]}: {panel.level[1]:.3g}"
        axes.legend(frameon=False)
        axes.margins(y=0.1)
        axes.set_ylim(panel.lowest, None if panel.highest is None else min(axes.get_ylim()[1], panel.highest))
        for axis, values in ((axes.xaxis, x), (axes.yaxis, y)):
            counts = all(isinstance(value, int) for value in values)  # such as steps
            axis.set_major_locator(MaxNLocator(nbins=6, integer=counts))
        if panel.by_factors:
            axes.set_xscale("log")
            axes.set_xticks(x, [f"{value:.3g}" for value in x], minor=False)
            axes.xaxis.set_minor_locator(NullLocator())
        else:
            axes.set_xlim(0, 1.001 * max(x) or 1)  # the last tick is shown
        return svg(figure, title=panel.title, line=f"{panel.name}: {ends}")


def recall_and_precision(facts: Facts) -> list[tuple[Panel, str]]:
    """The precision for the rarer of two classes against its recall, with a caption; none of other figures."""
    test = facts.test
    if not isinstance(test, ClassFigures) or test.found is None or not test.recall_precision:
        return []
    line, rate = f"average {test.average_precision:.3f}", ("base rate", test.found_share)
    panel = Panel("Precision against recall", "recall", "precision", line, test.recall_precision, 0, None, rate)
    return [(panel, f"Of {facts.class_names[test.found]}, as the threshold of its probability is lowered.")]


def course_of_run(facts: Facts) -> list[tuple[Panel, str]]:
    """The course of a private run as panels with captions; none of what was not measured."""
    privacy, data, panels = facts.recipe.privacy, facts.recipe.data, []
    tested = "public test examples" if data.holdout is None else "records held out"
    measured = {
        "log loss": ("test log loss", [p.test_log_loss for p in facts.points]),
        "accuracy": ("test accuracy (%)", [p.test_accuracy and 100 * p.test_accuracy for p in facts.points]),
        "error": (f"test RMSE ({data.unit})" if data.unit else "test RMSE", [p.test_rmse for p in facts.points]),
    }
    is_rare = isinstance(facts.test, ClassFigures) and facts.test.is_unbalanced and facts.test.log_loss is not None
    del measured["accuracy" if is_rare else "log loss"]  # of a rare class accuracy says little
    for what, (vertical, values) in measured.items():
        found = [(p.epsilon, value) for p, value in zip(facts.points, values, strict=True) if value is not None]
        if found:
            last = percent(found[-1][1] / 100) if what == "accuracy" else f"{found[-1][1]:.4g}"
            panel = Panel(f"Test {what} against ε", "ε spent", vertical, last, found)
            panels.append((panel, f"Test {what} on the {tested} against the ε spent until then."))
    if facts.points:
        name = f"{privacy.accountant.upper()} {upward(facts.points[-1].epsilon)}"
        spent = [(p.step, p.epsilon) for p in facts.points]
        caption = f"The privacy cost of the same steps, at δ = {power_of_ten(privacy.delta)}, rounded upwards."
        panels.append((Panel("ε against steps", "training step", "ε spent", name, spent, lowest=0), caption))
    return panels
