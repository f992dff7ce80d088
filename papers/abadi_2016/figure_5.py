"""Figure 5: accuracy on MNIST when one setting varies and the others stay at their reference."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

import matplotlib
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.ticker import FixedLocator, FuncFormatter

from noisette.accounting import MomentsAccountant
from noisette.training.report.figures import BLUE, INK, ORANGE, STYLE, svg
from papers.abadi_2016.figure_3 import PANELS
from papers.abadi_2016.mnist import Mnist
from papers.abadi_2016.runs import Run
from papers.abadi_2016.setting import Plan
from papers.abadi_2016.spread import Spread, of_setting, within
from papers.section import Section

TITLE = "Figure 5: one setting at a time"
REFERENCE = Mnist()
EPSILON = 2.0
assert PANELS[1].setting == REFERENCE  # its runs serve here too


@dataclass(frozen=True)
class Sweep:
    """The setting that varies, the whole grid of its values, the default one, and what the paper says of it."""

    name: str
    fields: tuple[str, ...]
    values: tuple[float, ...]
    few: tuple[float, ...]
    printed: str

    def setting(self, value: float) -> Mnist:
        """Return the reference setting with this value."""
        kind = type(getattr(REFERENCE, self.fields[0]))
        return replace(REFERENCE, **dict.fromkeys(self.fields, kind(value)))

    @property
    def reference(self) -> float:
        """The value in all other sweeps."""
        return getattr(REFERENCE, self.fields[-1])

    def shown(self, *, full: bool) -> tuple[float, ...]:
        """Return the values to run in addition to the reference."""
        return self.values if full else self.few


SWEEPS = (
    Sweep(
        "principal components",
        ("components",),
        (0, 20, 40, 60, 80, 100),
        (20, 100),
        "about 2 points lower without them (0)",
    ),
    Sweep("hidden units", ("units",), (200, 500, 1000, 2000), (200, 2000), ""),
    Sweep(
        "lot size",
        ("lot",),
        (100, 200, 400, 600, 1000, 2000),
        (400, 1000),
        "best near the root of the data's size, 245",
    ),
    Sweep(
        "learning rate, constant",
        ("lr", "lr_end"),
        (0.005, 0.01, 0.03, 0.05, 0.07, 0.1, 0.2),
        (0.01, 0.05, 0.2),
        "flat from 0.01 to 0.07, best at 0.05, lower beyond",
    ),
    Sweep("clipping norm of a layer", ("clip",), (1, 2, 3, 4, 6, 8, 10), (2, 8), ""),
    Sweep("noise multiplier", ("noise",), (1, 2, 3, 4, 6, 8), (2, 6), ""),
)


def plans(seeds: Sequence[int], *, full: bool) -> list[Plan]:
    """List the reference and every sweep with each seed; each run ends where the moments accountant ends the budget.

    Settings whose budget does not allow a single step are left out.
    """
    settings = {REFERENCE: None}
    settings |= {sweep.setting(value): None for sweep in SWEEPS for value in sweep.shown(full=full)}
    plans = [Plan(setting, seed, EPSILON, MomentsAccountant.name) for seed in seeds for setting in settings]
    return [plan for plan in plans if plan.steps]


_ABOUT = (
    "One setting varies at a time; the others are 60 components, 1000 units, lots of 600, learning rate 0.1 decreasing "
    "to 0.052, clipping norm 4 and noise multiplier 4 (components: 7). A run stops before the moments accountant, with "
    "both layers on one lot, exceeds epsilon 2 at delta 1e-5; noise multiplier 1 does not allow a single step. The "
    "learning rates of the sweep are constant; the reference decreases to 0.052. The paper prints no table for this "
    "figure: the last column is from its text.",
)
_HEADER = ("setting", "value", "epochs", "ours", "paper")


def section(runs: Sequence[Run]) -> Section:
    """Make the figure and its table from the finished runs."""
    reached = {sweep.name: reached_by(sweep, runs) for sweep in SWEEPS}
    rows = tuple(row for sweep in SWEEPS for row in _rows(sweep, reached[sweep.name]))
    return Section("figure-5", TITLE, (*_ABOUT, *_left_out(reached)), _HEADER, rows, _figure(reached))


Reached = dict[float, tuple[float, Spread]]  # value: epochs and accuracies


def reached_by(sweep: Sweep, runs: Sequence[Run]) -> Reached:
    """Return epochs and accuracies of the finished runs of a sweep, by value, with the reference at its value."""
    reached: Reached = {}
    for value in sorted({*sweep.values, sweep.reference}):
        setting = REFERENCE if value == sweep.reference else sweep.setting(value)
        if not of_setting(runs, setting):
            continue
        steps = Plan(setting, 0, EPSILON, MomentsAccountant.name).steps
        spread = within(of_setting(runs, setting, steps=steps), steps)
        if spread:
            reached[value] = setting.epochs(steps), spread
    return reached


def _left_out(reached: Mapping[str, Reached]) -> list[str]:
    """One paragraph on the values of the whole grid that were not run, if there are any."""
    left = {sweep.name: [f"{v:g}" for v in sweep.values if v not in reached[sweep.name]] for sweep in SWEEPS}
    listed = "; ".join(f"{name} {', '.join(values)}" for name, values in left.items() if values)
    if not listed:
        return []
    return [f"The values of the paper's curves are not known. Of the whole grid (--full) these were not run: {listed}."]


def _rows(sweep: Sweep, reached: Reached) -> list[tuple[str, ...]]:
    return [
        (
            sweep.name if number == 0 else "",
            f"{value:g}" + (" (reference)" if value == sweep.reference else ""),
            f"{epochs:.1f}",
            str(spread),
            sweep.printed if number == 0 else "",
        )
        for number, (value, (epochs, spread)) in enumerate(reached.items())
    ]


def _figure(reached: Mapping[str, Reached]) -> str:
    with matplotlib.rc_context(STYLE):
        drawn = Figure(figsize=(9.0, 5.4))
        for place, sweep in enumerate(SWEEPS):
            column, row = place % 3, place // 3
            axes = drawn.add_axes((0.065 + 0.318 * column, 0.6 - 0.5 * row, 0.275, 0.36))
            _draw(axes, sweep, reached[sweep.name])
            if column == 0:
                axes.set_ylabel("test accuracy (%)")
        return svg(drawn, title="Accuracy by each setting")


def _draw(axes: Axes, sweep: Sweep, reached: Reached) -> None:
    line = [(value, spread) for value, (_, spread) in reached.items() if value in sweep.values]
    values = [value for value, _ in line]
    lows, highs = ([100 * end(spread) for _, spread in line] for end in (lambda s: s.low, lambda s: s.high))
    axes.fill_between(values, lows, highs, color=BLUE, alpha=0.25, linewidth=0)
    axes.plot(values, [100 * spread.median for _, spread in line], "o-", color=BLUE, markersize=4, clip_on=False)
    if sweep.reference in reached:
        _, spread = reached[sweep.reference]
        axes.plot(sweep.reference, 100 * spread.median, "o", color=ORANGE, markersize=6, clip_on=False)
    axes.set_xlabel(sweep.name, color=INK)
    axes.set_ylim(88, 98)
    axes.xaxis.set_major_locator(FixedLocator(values, nbins=4))
    axes.xaxis.set_major_formatter(FuncFormatter(lambda value, _: f"{value:g}"))
    axes.tick_params(length=0)
