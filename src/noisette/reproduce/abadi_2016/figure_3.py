"""Figure 3: accuracy on MNIST against epochs, at three levels of noise."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import matplotlib
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from noisette.accounting import MomentsAccountant, PldAccountant, steps_for
from noisette.report.numbers import duration, percent
from noisette.report.svg import BLUE, INK, ORANGE, STYLE, svg
from noisette.reproduce.abadi_2016.figure_2 import PAPERS_ORDERS
from noisette.reproduce.abadi_2016.runs import Run
from noisette.reproduce.abadi_2016.setting import DELTA, Plan, Setting
from noisette.reproduce.abadi_2016.spread import Spread, course, of_setting, within
from noisette.reproduce.section import Section

TITLE = "Figure 3: accuracy on MNIST at three levels of noise"
MOMENTS = MomentsAccountant(PAPERS_ORDERS)


@dataclass(frozen=True)
class Panel:
    """A level of noise, its budget, and the test accuracy that the paper prints for it."""

    name: str
    setting: Setting
    epsilon: float
    printed: float

    @property
    def steps_by_moments(self) -> int:
        """Steps within the budget by the paper's accountant, both layers on one lot."""
        return self.setting.steps_within(self.epsilon, accountant=MOMENTS)

    @property
    def steps_by_pld(self) -> int:
        """Steps within the budget by the privacy loss distribution."""
        return self.setting.steps_within(self.epsilon, accountant=PldAccountant())

    @property
    def steps_if_flat(self) -> int:
        """Steps that the moments accountant would allow if the noise were on one gradient, not on each of two."""
        return steps_for(
            epsilon=self.epsilon,
            delta=DELTA,
            sampling_rate=self.setting.sampling_rate,
            noise_multiplier=self.setting.noise,
            accountant=MOMENTS,
            besides=self.setting.projection,
        )


PANELS = (
    Panel("large noise", Setting(noise=8.0, pca_noise=16.0), 0.5, 0.90),
    Panel("medium noise", Setting(noise=4.0, pca_noise=7.0), 2.0, 0.95),
    Panel("small noise", Setting(noise=2.0, pca_noise=4.0), 8.0, 0.97),
)


def plans(seeds: Sequence[int]) -> list[Plan]:
    """Each level of noise with each seed, until the privacy loss distribution ends the budget."""
    return [Plan(panel.setting, seed, panel.epsilon, PldAccountant.name) for seed in seeds for panel in PANELS]


_ABOUT = (
    "60 private principal components, 1000 ReLU units, lots of 600, each layer's gradient clipped at 4, learning rate "
    "0.1 falling to 0.052 over ten epochs, delta 1e-5. Accuracy is that on the test images: that on the training "
    "images would itself be private.",
    "A budget only says when a run stops, so one run answers for both accountants: the paper's moments accountant "
    "ends the budget at the first mark, the privacy loss distribution at the second. Both layers see the same lot and "
    "are priced as one Gaussian mechanism with noise sigma / sqrt(2), beside the principal components. Which price "
    'the paper used is not known. The column "if flat" holds the epochs that the moments accountant would allow if '
    "the noise were on one gradient clipped as a whole: too many for what was run.",
)
_HEADER = (
    "noise, noise of components",
    "epsilon",
    "paper",
    "ours, moments",
    "epochs",
    "ours, privacy loss distribution",
    "epochs",
    "epochs if flat",
    "time of a run",
)


def section(runs: Sequence[Run]) -> Section:
    """The figure and its table, made from the runs that are there."""
    return Section("figure-3", TITLE, _ABOUT, _HEADER, tuple(_row(panel, runs) for panel in PANELS), _figure(runs))


def _row(panel: Panel, runs: Sequence[Run]) -> tuple[str, ...]:
    setting = panel.setting
    seeds = of_setting(runs, setting, steps=panel.steps_by_pld)
    return (
        f"{setting.noise:g}, {setting.pca_noise:g}",
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


def _figure(runs: Sequence[Run]) -> str:
    with matplotlib.rc_context(STYLE):
        drawn = Figure(figsize=(9.0, 3.4))
        for place, panel in enumerate(PANELS):
            axes = drawn.add_axes((0.065 + 0.318 * place, 0.15, 0.275, 0.73))
            _draw(axes, panel, of_setting(runs, panel.setting, steps=panel.steps_by_pld))
            axes.tick_params(length=0, labelleft=place == 0)
            if place == 0:
                axes.set_ylabel("test accuracy (%)")
        return svg(drawn, salt="abadi-2016-figure-3")


def _draw(axes: Axes, panel: Panel, seeds: Sequence[Run]) -> None:
    setting = panel.setting
    axes.set_title(
        f"{panel.name} ({setting.noise:g}, {setting.pca_noise:g}), ε = {panel.epsilon:g}", fontsize=9, loc="left"
    )
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
    axes.annotate(
        f"paper {100 * panel.printed:g}",
        (end, 100 * panel.printed),
        xytext=(0, -4),
        textcoords="offset points",
        ha="right",
        va="top",
    )
    for steps, name in ((panel.steps_by_moments, "moments"), (panel.steps_by_pld, "PLD")):
        reached = within(seeds, steps)
        if reached:
            axes.plot(setting.epochs(steps), 100 * reached.median, "o", color=ORANGE, clip_on=False, zorder=3)
        axes.axvline(setting.epochs(steps), color=ORANGE, linewidth=0.8, linestyle=":")
        axes.annotate(
            name,
            (setting.epochs(steps), 80.5),
            xytext=(-3, 0),
            textcoords="offset points",
            ha="right",
            color=ORANGE,
        )
    axes.set(xlabel="epochs", xlim=(0, end), ylim=(80, 100), yticks=range(80, 101, 5))
