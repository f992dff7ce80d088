"""The picture of ``experiments.tables``: a panel for each table, accuracy against epsilon."""

from __future__ import annotations

from collections.abc import Sequence
from statistics import median
from typing import Any

import matplotlib
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from noisette.training.report.figures import BLUE, GREEN, INK, ORANGE, STYLE, svg
from papers.drawing import standalone

TITLES = {
    "adult": "Adult, 32,561 rows",
    "adbench-magic": "Magic, 15,216 rows",
    "adbench-campaign": "Campaign, 32,950 rows",
    "digits": "Digits, 1,437 rows",
    "adult-age": "Adult: age from the rest",
}
LINES: dict[str, dict[str, Any]] = {
    "noisette": {"color": BLUE, "marker": "o", "label": "noisette, default settings"},
    "diffprivlib LogisticRegression": {"color": ORANGE, "marker": "s", "linestyle": "--"},
    "diffprivlib LinearRegression": {"color": ORANGE, "marker": "D", "linestyle": "--"},
    "diffprivlib GaussianNB": {"color": GREEN, "marker": "^", "linestyle": ":"},
    "diffprivlib RandomForest": {"color": "#b8609a", "marker": "x", "linestyle": "-."},
}
PLAIN = {"not private: linear": "--", "not private: boosted trees": ":"}
_LIMITS = {
    "adult": (0.7, 0.9),
    "adbench-magic": (0.65, 0.9),
    "adbench-campaign": (0.8, 0.93),
    "digits": (0.0, 1.0),
    "adult-age": (0.0, 0.6),
}


def picture(results: Sequence[dict[str, Any]]) -> str:
    """The picture as a file of SVG."""
    with matplotlib.rc_context(STYLE):
        drawn = Figure(figsize=(9.0, 5.2))
        axes = drawn.subplots(2, 3).flatten()
        for place, name in zip(axes, TITLES, strict=False):
            _panel(place, name, [r for r in results if r["table"] == name])
        _legend(axes[-1], axes[:-1])
        drawn.tight_layout()
        return standalone(svg(drawn, title="Accuracy on tables"))


def _panel(axes: Axes, name: str, results: Sequence[dict[str, Any]]) -> None:
    """Medians over the seeds, with the range as a bar; lines across without privacy."""
    axes.set_title(TITLES[name], fontsize=9, color=INK, loc="left")
    for method, dash in PLAIN.items():
        for result in results:
            if result["method"] == method:
                axes.axhline(result["score"], color=INK, linewidth=1, linestyle=dash, label=method)
    below = []
    for method, style in LINES.items():
        found: dict[float, list[float]] = {}
        for result in results:
            if result["method"] == method:
                found.setdefault(result["epsilon"], []).append(result["score"])
        if not found:
            continue
        epsilons = sorted(found)
        middle = [median(found[e]) for e in epsilons]
        if max(middle) < _LIMITS[name][0]:
            below.append(method)
        spread = [[m - min(found[e]) for e, m in zip(epsilons, middle, strict=True)]]
        spread.append([max(found[e]) - m for e, m in zip(epsilons, middle, strict=True)])
        axes.errorbar(epsilons, middle, spread, **{"label": method, "markersize": 4, "linewidth": 1.2, **style})
    axes.set_xscale("log")
    axes.set_xticks([0.5, 1, 3, 8], ["0.5", "1", "3", "8"])
    axes.minorticks_off()
    axes.set_ylim(_LIMITS[name])
    if below:
        axes.text(0.03, 0.04, f"below this panel: {', '.join(below)}", transform=axes.transAxes, fontsize=7, color=INK)
    axes.set_xlabel("epsilon")
    axes.set_ylabel("R² on test rows" if name == "adult-age" else "accuracy on test rows")


def _legend(place: Axes, panels: Sequence[Axes]) -> None:
    """One legend for all panels, in the place of the last one."""
    place.axis("off")
    handles = {label: h for axes in panels for h, label in zip(*axes.get_legend_handles_labels(), strict=True)}
    place.legend(handles.values(), handles.keys(), loc="center left", frameon=False, fontsize=8)
