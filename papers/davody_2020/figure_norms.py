"""Accuracy against epsilon for every norm, sound and unsound, with the guarantee of each."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import matplotlib
from matplotlib.figure import Figure
from matplotlib.ticker import FixedLocator, FuncFormatter, NullLocator

from noisette.training.report.figures import INK, ORANGE, STYLE, svg
from papers.davody_2020.norms import MIXTURE, NORMS, Norm, seconds
from papers.davody_2020.runs import Cell, Mean, Run, mean_of
from papers.davody_2020.schedules import TABLE_5
from papers.davody_2020.table_5 import EPSILONS, PRINTED
from papers.paper import Asked
from papers.section import Section

TITLE = "Every norm, sound and unsound: accuracy against epsilon"
DEFAULT = tuple(norm.name for norm in NORMS if norm.guaranteed and not norm.shift)  # table 5 has the moved images
_ABOUT = (
    "LeNet-5 on MNIST with the settings of table 5; a figure that the paper does not have. At one place of the axis "
    "all norms have the same noise, lots and steps. Batch norm as printed is drawn dashed and hollow at the noise it "
    "was run with: the epsilon below it is the one that this noise would give if no record moved the gradients of "
    "others, and it does not hold. Crosses are the paper's numbers for it. Squares are one epoch of lots of 32, with "
    "the noise for that. The images of one line alone are moved at random; norms are compared by the others.",
    '"One example and public" gives each example statistics of itself and the 128 public images, as the paper does in '
    'test; "statistics of the start" are taken once, from the public images under the first weights. They do not '
    "follow the weights, so that learning rates which suit the other norms can make such a run fail, at 10 %, which is "
    "guessing and not drawn.",
)
_LOWEST = 60.0  # per cent: a run that ends below has failed
_HEADER = ("norm", "guarantee", *(f"ε {epsilon:g}" for epsilon in EPSILONS))


def cells(asked: Asked) -> list[Cell]:
    """Every norm at every budget; the printed one, which takes days, only on request."""
    names = asked.rows or (tuple(norm.name for norm in NORMS) if asked.full else DEFAULT)
    asked_for = [norm.setting(epsilon) for norm in NORMS if norm.name in names for epsilon in EPSILONS]
    settings = [setting for setting in asked_for if setting]
    return [Cell(setting, seed, seconds(setting)) for seed in asked.seeds for setting in settings]


def guarantee(norm: Norm) -> str:
    """The guarantee of a run with this norm."""
    return "(ε, 1e-5)" if norm.guaranteed else "no guarantee"


def section(runs: Sequence[Run]) -> Section:
    """The figure of the finished runs, and its table."""
    reached = {norm.name: _reached(runs, norm) for norm in NORMS}
    rows = tuple(
        (norm.label, guarantee(norm), *(_shown(norm, reached[norm.name], epsilon) for epsilon in EPSILONS))
        for norm in NORMS
    )
    return Section("figure-norms", TITLE, _ABOUT, _HEADER, rows, _figure(reached))


def _reached(runs: Sequence[Run], norm: Norm) -> dict[float, Mean]:
    settings = ((epsilon, norm.setting(epsilon)) for epsilon in EPSILONS)
    means = ((epsilon, mean_of(runs, setting)) for epsilon, setting in settings if setting)
    return {epsilon: mean for epsilon, mean in means if mean}


def _shown(norm: Norm, means: Mapping[float, Mean], epsilon: float) -> str:
    return str(means.get(epsilon, "not run")) if epsilon in norm.schedule else ""


def _marker(norm: Norm) -> str:
    """A round point on a line, or a square for small lots; dashed where there is no guarantee."""
    return ("o" if norm.schedule is TABLE_5 else "s") + ("-" if norm.guaranteed else "--")


def _figure(reached: dict[str, dict[float, Mean]]) -> str:
    with matplotlib.rc_context(STYLE):
        drawn = Figure(figsize=(9.0, 4.4))
        axes = drawn.add_axes((0.065, 0.125, 0.9, 0.84))
        axes.set_xscale("log")
        for norm in NORMS:
            means = {epsilon: mean for epsilon, mean in reached[norm.name].items() if mean.mean >= _LOWEST}
            axes.errorbar(
                list(means),
                [mean.mean for mean in means.values()],
                yerr=[mean.error or 0.0 for mean in means.values()],
                fmt=_marker(norm),
                color=norm.colour,
                markersize=5,
                label=f"{norm.label}: {guarantee(norm)}" + ("" if reached[norm.name] else ", not run"),
                markerfacecolor=norm.colour if norm.guaranteed else "none",
            )
        printed = PRINTED[MIXTURE.name]
        axes.plot(
            EPSILONS, printed, "x", color=ORANGE, markersize=6, label="batch norm as printed, the paper's numbers"
        )
        axes.xaxis.set_major_locator(FixedLocator(EPSILONS))
        axes.xaxis.set_minor_locator(NullLocator())
        axes.xaxis.set_major_formatter(FuncFormatter(lambda value, _: f"{value:g}"))
        axes.set(xlabel="ε that the noise was made for", ylabel="test accuracy (%)", ylim=(_LOWEST, 100))
        axes.tick_params(length=0)
        axes.legend(loc="lower right", frameon=False, labelcolor=INK)
        return svg(drawn, title="Accuracy by norm")
