"""Certified accuracy against the radius, for several temperatures of the loss."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from functools import partial

import matplotlib
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from noisette.training.report.figures import BLUE, GREEN, INK, ORANGE, STYLE, svg
from papers.bethune_2024.runs import Cell, Run, certified_of
from papers.bethune_2024.schedules import MIXER, PIXELS, Network, seconds
from papers.bethune_2024.setting import Setting
from papers.grid import Grid, Row
from papers.section import Section

_TITLES = {"mnist": "MNIST, ε 3", "cifar10": "CIFAR-10, ε 20"}
PIXEL_STEPS = (0, 1, 2, 4, 8, 16, 64, 128)  # radii, in 255ths: one is the smallest change of one pixel
_RADII = tuple(steps / 255 for steps in PIXEL_STEPS)
_MNIST_TAUS = (60.0, 15.0, 4.0)
# The temperature of the loss, which is one over tau, and the certified accuracies that the paper prints.
_PRINTED = {
    0.01: ("47.4", "5.9", "0.1", "0.0", "0.0", "0.0"),
    0.22: ("44.4", "39.1", "34.2", "24.9", "11.5", "0.8"),
    0.40: ("41.6", "38.4", "35.6", "29.6", "19.1", "5.3"),
    0.74: ("38.4", "36.4", "34.7", "30.9", "24.1", "13.0"),
    2.77: ("33.3", "32.2", "31.2", "29.3", "25.9", "18.8"),
    5.40: ("32.5", "31.4", "30.4", "28.8", "25.5", "19.7"),
}
_COLOURS = (BLUE, GREEN, ORANGE, "#b8609a", "#8a6d00", INK)
TITLE = "Certified accuracy against the radius"
_ABOUT = (
    "The share of test images, in per cent, whose class is correct and cannot change while the image moves by at most "
    "this Euclidean distance, in 255ths: one is the smallest change of a pixel. Certified by the network's Lipschitz "
    "constants, not by attacks. A small tau favours wide margins over accuracy.",
    "MNIST: pixels through 128 hidden units at epsilon 3, as in the figure above; medians of the seeds. CIFAR-10: a "
    "mixer at epsilon 20, run with --full only, beside the numbers that the paper prints for temperatures of 1 / tau. "
    "Inputs are scaled to a sphere, so a given distance has more effect on a dark image. CIFAR-10 may come from files "
    "of JPEG images, whose accuracies are not comparable with printed ones.",
)
At = tuple[Setting, float]  # a radius is one of the setting's


def _scaled(network: Network, tau: float, data: str, size: int, epsilon: float) -> Setting:
    setting = replace(network, tau=tau).setting(data, size, 1e-5, epsilon)
    assert setting is not None, "there is a schedule"
    return replace(setting, radii=_RADII)


def _at(setting: Setting, steps: int) -> At:
    return setting, steps / 255


_SETTINGS: Mapping[str, Setting] = {
    **{f"mnist-tau-{tau:g}": _scaled(PIXELS, tau, "mnist", 60_000, 3.0) for tau in _MNIST_TAUS},
    **{f"cifar10-tau-{1 / heat:.3g}": _scaled(MIXER, 1 / heat, "cifar10", 50_000, 20.0) for heat in _PRINTED},
}
_BESIDE = {
    f"cifar10-tau-{1 / heat:.3g}": (*printed, *("" for _ in PIXEL_STEPS[len(printed) :]))
    for heat, printed in _PRINTED.items()
}
GRID: Grid[int, At, Cell, Run] = Grid(
    name="figure-robustness",
    title=TITLE,
    about=_ABOUT,
    of="data and tau",
    columns=PIXEL_STEPS,
    heading=lambda steps: f"{steps}/255" if steps else "unmoved",
    rows=tuple(
        Row(name, _BESIDE.get(name, ("",) * len(PIXEL_STEPS)), partial(_at, setting))
        for name, setting in _SETTINGS.items()
    ),
    default=tuple(name for name in _SETTINGS if name.startswith("mnist")),
    cell=lambda at, seed, asked: Cell(at[0], seed, seconds(at[0])),
    shown=lambda runs, at: f"{median.median:.1f}" if (median := certified_of(runs, *at)) else "",
)


def section(runs: Sequence[Run]) -> Section:
    """Make the figure and its table from the finished runs."""
    return GRID.section(runs, figure=_figure(runs))


def _figure(runs: Sequence[Run]) -> str:
    with matplotlib.rc_context(STYLE):
        drawn = Figure(figsize=(9.0, 3.9))
        for data, axes in zip(_TITLES, drawn.subplots(1, len(_TITLES)), strict=True):
            _panel(axes, data, runs)
        drawn.subplots_adjust(left=0.065, right=0.985, bottom=0.13, top=0.92, wspace=0.16)
        return svg(drawn, title="Certified robustness")


def _panel(axes: Axes, data: str, runs: Sequence[Run]) -> None:
    rows = [name for name in _SETTINGS if name.startswith(data)]
    for name, colour in zip(rows, _COLOURS, strict=False):
        label, setting = f"τ = {name.rpartition('-')[2]}", _SETTINGS[name]
        medians = [certified_of(runs, setting, radius) for radius in _RADII]
        reached = [(steps, m.median) for steps, m in zip(PIXEL_STEPS, medians, strict=True) if m]
        if reached:
            axes.plot(*zip(*reached, strict=True), "o-", color=colour, markersize=4, label=label)
        if printed := [value for value in _BESIDE.get(name, ()) if value]:
            places = PIXEL_STEPS[: len(printed)]
            axes.plot(places, list(map(float, printed)), "x--", color=colour, linewidth=1, label=f"{label}, printed")
    axes.set_title(_TITLES[data], loc="left", fontsize=9)
    axes.set(xlabel="distance, in 255ths", ylabel="certified accuracy (%)", ylim=(0, None))
    axes.tick_params(length=0)
    if axes.lines:
        axes.legend(loc="best", frameon=False, labelcolor=INK, fontsize=8)
