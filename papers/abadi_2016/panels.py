"""Accuracy against epochs at several noise levels: panels and table rows of figures 3 and 6."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import matplotlib
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from noisette.accounting import MomentsAccountant, PldAccountant, steps_for
from noisette.training.report.facts import duration, percent
from noisette.training.report.figures import BLUE, INK, ORANGE, STYLE, svg
from papers.abadi_2016.runs import Run
from papers.abadi_2016.setting import DELTA, Plan, Setting
from papers.abadi_2016.spread import Spread, course, of_setting, within

PAPERS_ORDERS = range(1, 33)
MOMENTS = MomentsAccountant(PAPERS_ORDERS)


@dataclass(frozen=True)
class Panel:
    """A noise level, its budget, and the test accuracy that the paper prints for it."""

    name: str
    setting: Setting
    epsilon: float
    printed: float

    @property
    def steps_by_moments(self) -> int:
        """Steps within the budget by the paper's accountant, with all layers on one lot."""
        return self.setting.steps_within(self.epsilon, accountant=MOMENTS)

    @property
    def steps_by_pld(self) -> int:
        """Steps within the budget by the privacy loss distribution."""
        return self.setting.steps_within(self.epsilon, accountant=PldAccountant())

    @property
    def steps_if_flat(self) -> int:
        """Steps that the moments accountant would allow with the noise on one gradient instead of on each layer's."""
        return steps_for(
            epsilon=self.epsilon,
            delta=DELTA,
            sampling_rate=self.setting.sampling_rate,
            noise_multiplier=self.setting.noise,
            accountant=MOMENTS,
            prior_events=self.setting.before,
        )


HEADER = (
    "noise level",
    "epsilon",
    "paper",
    "ours, moments",
    "epochs",
    "ours, PLD",
    "epochs",
    "epochs if flat",
    "time of a run",
)


def plans(panels: Sequence[Panel], seeds: Sequence[int], *, weights: str | None = None) -> list[Plan]:
    """List each noise level with each seed; each run ends where the privacy loss distribution ends the budget."""
    return [Plan(panel.setting, seed, panel.epsilon, PldAccountant.name, weights) for seed in seeds for panel in panels]


def row(panel: Panel, runs: Sequence[Run]) -> tuple[str, ...]:
    """Return the table row of a panel."""
    setting = panel.setting
    seeds = of_setting(runs, setting, steps=panel.steps_by_pld)
    return (
        panel.name,
        f"{panel.epsilon:g}",
        percent(panel.printed),
        _shown(within(seeds, panel.steps_by_moments)),
        f"{setting.epochs(panel.steps_by_moments):.1f}",
        _shown(within(seeds, panel.steps_by_pld)),
        f"{setting.epochs(panel.steps_by_pld):.1f}",
        f"{setting.epochs(panel.steps_if_flat):.1f}",
        duration(sum(run.seconds for run in seeds) / len(seeds)) if seeds else "",
    )


def _shown(spread: Spread | None) -> str:
    return str(spread) if spread else "not run"


def drawn(panels: Sequence[Panel], runs: Sequence[Run], *, lowest: int, title: str) -> str:
    """Draw the panels side by side as an SVG element; the axis of accuracies starts at ``lowest`` per cent."""
    with matplotlib.rc_context(STYLE):
        figure = Figure(figsize=(9.0, 3.4))
        for place, panel in enumerate(panels):
            axes = figure.add_axes((0.065 + 0.318 * place, 0.15, 0.275, 0.73))
            axes.set(ylim=(lowest, 100), yticks=range(lowest, 101, (100 - lowest) // 4))
            _draw(axes, panel, of_setting(runs, panel.setting, steps=panel.steps_by_pld))
            axes.tick_params(length=0, labelleft=place == 0)
            if place == 0:
                axes.set_ylabel("test accuracy (%)")
        return svg(figure, title=title)


def _draw(axes: Axes, panel: Panel, seeds: Sequence[Run]) -> None:
    setting = panel.setting
    axes.set_title(f"{panel.name}, ε = {panel.epsilon:g}", fontsize=9, loc="left")
    points = course(seeds)
    epochs = [setting.epochs(step) for step, _ in points]
    axes.fill_between(
        epochs,
        [100 * spread.low for _, spread in points],
        [100 * spread.high for _, spread in points],
        color=BLUE,
        alpha=0.25,
        linewidth=0,
    )
    axes.plot(epochs, [100 * spread.median for _, spread in points], color=BLUE)
    axes.axhline(100 * panel.printed, color=INK, linestyle="--", linewidth=1)
    end = setting.epochs(panel.steps_by_pld)
    last = within(seeds, panel.steps_by_pld)
    beyond = last is not None and last.median > panel.printed
    axes.annotate(
        f"paper {100 * panel.printed:g}",
        (end, 100 * panel.printed),
        xytext=(-6, -4 if beyond else 4),
        textcoords="offset points",
        ha="right",
        va="top" if beyond else "bottom",
    )
    for steps, name in ((panel.steps_by_moments, "moments"), (panel.steps_by_pld, "PLD")):
        reached = within(seeds, steps)
        if reached:
            axes.plot(setting.epochs(steps), 100 * reached.median, "o", color=ORANGE, clip_on=False, zorder=3)
        axes.axvline(setting.epochs(steps), color=ORANGE, linewidth=0.8, linestyle=":")
        axes.annotate(
            name,
            (setting.epochs(steps), 0.02),
            xycoords=axes.get_xaxis_transform(),
            xytext=(-3, 0),
            textcoords="offset points",
            ha="right",
            color=ORANGE,
        )
    axes.set(xlabel="epochs", xlim=(0, end))
