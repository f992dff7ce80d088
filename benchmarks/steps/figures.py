"""The figure of an experiment as an SVG element."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import matplotlib
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from benchmarks.steps.methods import METHODS, OURS
from benchmarks.steps.report import Report, cell_label, method_label
from noisette.training.report.figures import BLUE, GREEN, INK, ORANGE, STYLE, svg
from papers.drawing import log_scale

_INCHES = 9.0
_HUES = (
    BLUE,
    ORANGE,
    GREEN,
    "#b8609a",
    "#8a8a2e",
    "#a3704c",
    "#7c7f86",
    "#3f9c9c",
    "#5b4b8a",
)  # readable on light and on dark backgrounds
_OFFSETS = {"o": -0.21, "x": -0.05, "s": 0.11, "^": 0.27}  # of marks from the middle of their row
_AXIS_LABELS = {"batch": "examples in a batch", "image": "image width in pixels", "model": ""}


def figure(report: Report) -> str:
    """Lines if the experiment has a horizontal axis, otherwise a row of marks for each cell."""
    with matplotlib.rc_context(STYLE):
        return svg(_lines(report) if report["axis"] else _rows(report), title=report["experiment"])


def _rows(report: Report) -> Figure:
    """Ratios to plain eager training on a log axis, a row for each cell; so are the targets."""
    cells, styles = report["cells"], _styles(report)
    height = 0.42 * len(cells) + 0.75 + _legend_inches(len(styles) + 2)
    drawn = Figure(figsize=(_INCHES, height))
    axes = drawn.add_axes((0.24, 0.5 / height, 0.73, (0.42 * len(cells) + 0.1) / height))
    axes.axvline(1, color=INK, linewidth=1, linestyle="--", label=method_label("plain"))
    for name, style in styles.items():
        ratios = [cell["methods"].get(name, {}).get("ratio") for cell in cells]
        offset = _OFFSETS[style["marker"]]
        points = [(ratio, row + offset) for row, ratio in enumerate(ratios) if ratio]
        axes.plot(*_columns(points), **style, linestyle="", label=method_label(name))
    targets = [(cell["target"], row) for row, cell in enumerate(cells) if cell["target"]]
    if targets:
        axes.plot(*_columns(targets), color=INK, marker="|", markersize=17, linestyle="", label="target to plain eager")
    log_scale(axes.xaxis, axes.set_xscale, "{:g}×".format)
    measured = "time per step" if report["unit"] == "seconds" else "peak memory of a step"
    axes.set_xlabel(f"{measured}, plain eager = 1")
    axes.set_yticks(range(len(cells)), [cell_label(cell) for cell in cells])
    axes.set_ylim(len(cells) - 0.5, -0.5)
    axes.spines["left"].set_visible(False)
    axes.tick_params(length=0)
    _legend(drawn, axes)
    return drawn


def _lines(report: Report) -> Figure:
    """Milliseconds per example on a log axis, a panel for each model or batch size."""
    axis, styles = report["axis"], _styles(report)
    panels: dict[str, list[dict[str, Any]]] = {}
    for cell in report["cells"]:
        panels.setdefault(cell_label(cell, without=axis), []).append(cell)
    height = 2.9 + _legend_inches(len(styles) + 1)
    drawn = Figure(figsize=(_INCHES, height))
    width = 0.92 / max(len(panels), 1.4)
    axes = None
    for k, (title, cells) in enumerate(panels.items()):
        axes = drawn.add_axes((0.07 + k * width, 0.62 / height, width - 0.05, 1.95 / height), sharey=axes)
        axes.set_title(title, fontsize=9, color=INK, loc="left")
        plain = {"color": INK, "marker": "", "linestyle": "--", "linewidth": 1}
        for name, style in {"plain": plain, **styles}.items():
            times = [cell["methods"].get(name, {}).get("seconds") for cell in cells]
            points = [(x, 1000 * t / cell["batch"]) for x, (t, cell) in enumerate(zip(times, cells, strict=True)) if t]
            axes.plot(*_columns(points), **{"linewidth": 1.2, **style}, label=method_label(name))
        axes.set_xticks(range(len(cells)), [_tick(cell, axis) for cell in cells])
        axes.set_xlim(-0.3, len(cells) - 0.7)
        log_scale(axes.yaxis, axes.set_yscale, "{:g}".format)
        axes.set_xlabel(_AXIS_LABELS[axis])
        axes.tick_params(length=0, labelleft=k == 0)
        if k == 0:
            axes.set_ylabel("ms per example")
    assert axes is not None
    _legend(drawn, axes)
    return drawn


def _tick(cell: dict[str, Any], axis: str) -> str:
    return cell["title"].replace(", ", ",\n") if axis == "model" else str(cell[axis])


def _styles(report: Report) -> dict[str, dict[str, Any]]:
    """Colour and mark of each whole step except plain eager training: noisette filled, other libraries open."""
    names = [name for cell in report["cells"] for name in cell["methods"]]
    # The parts of a run stand in the table alone: next to whole steps they are nothing.
    measured = [name for name in names if name != "plain" and not name.startswith("run: ")]
    styles: dict[str, dict[str, Any]] = {}
    count = dict.fromkeys(_OFFSETS, 0)
    for name in dict.fromkeys([*METHODS, *measured]):  # so that a method looks the same in all figures
        marker = _marker(name)
        hues = (INK, *_HUES) if marker == "x" else _HUES
        colour = hues[count[marker] % len(hues)]
        count[marker] += name != "plain"
        styles[name] = {
            "color": colour,
            "marker": marker,
            "markersize": 6.5 if marker == "o" else 5.5,
            "markerfacecolor": "none" if marker in "s^" else colour,
            "markeredgewidth": 1.4,
        }
    return {name: style for name, style in styles.items() if name in measured}


def _marker(name: str) -> str:
    """A filled circle for noisette, an open square for Opacus, an open triangle for fastDP, a cross for all else."""
    if name in OURS:
        return "o"
    return "s" if name.startswith("Opacus") else "^" if name.startswith("fastDP") else "x"


def _columns(points: Sequence[tuple[float, float]]) -> tuple[list[float], list[float]]:
    return [x for x, _ in points], [y for _, y in points]


_LEGEND_COLUMNS = 4


def _legend_inches(entries: int) -> float:
    return 0.2 * -(-entries // _LEGEND_COLUMNS) + 0.15


def _legend(drawn: Figure, axes: Axes) -> None:
    drawn.legend(
        *axes.get_legend_handles_labels(), loc="upper center", ncols=_LEGEND_COLUMNS, frameon=False, borderaxespad=0.2
    )
