"""Figure 1: validation accuracy against epochs, at several amounts of noise on the weights."""

from __future__ import annotations

from collections.abc import Sequence

import matplotlib
from matplotlib.figure import Figure
from matplotlib.ticker import FixedLocator, FuncFormatter, NullLocator

from noisette.training.report.figures import BLUE, GREEN, INK, ORANGE, STYLE, svg
from papers.davody_2020 import table_2
from papers.davody_2020.runs import Cell, Run
from papers.davody_2020.setting import NoisyWeights
from papers.paper import Asked
from papers.section import Section

TITLE = "Figure 1: more noise on the weights, more epochs, the same accuracy"
RATE = 0.1
EPOCHS = {0.1: 10, 1.0: 20, 2.0: 25, 5.0: 45, 10.0: 80}  # by sigma
_COLOURS = dict(zip(EPOCHS, (INK, BLUE, GREEN, "#b8609a", ORANGE), strict=True))
_NEAR = 0.005  # of the plateau, in accuracy
_LAST = 5  # epochs whose mean is the plateau
_ABOUT = (
    "LeNet-5 with batch norm on MNIST, accuracy on 10,000 held-out training images, each under one draw of the noise. "
    "All curves have the same constant learning rate, 0.1 (Adam, batches of 128), so that a weight that must outgrow "
    "more noise needs more steps. The plateau is the mean of the last five epochs; it is reached with the first epoch "
    "that is within half a point of it.",
    "The paper says that LeNet needs about seven times as many epochs at σ = 10 as at σ = 1.",
)
_HEADER = ("σ", "epochs run", "plateau", "epochs to plateau", "times those at σ = 1")


def setting(sigma: float) -> NoisyWeights:
    """How a curve is run."""
    return NoisyWeights(
        data="mnist",
        model="bn-lenet-5",
        sigma=sigma,
        epochs=EPOCHS[sigma],
        batch_size=128,
        lr=RATE,
        lr_norms=table_2.NORM_RATE,
        cosine=False,
        patience=None,
    )


def cells(asked: Asked) -> list[Cell]:
    """A curve for each amount of noise and each seed."""
    settings = [setting(sigma) for sigma in EPOCHS]
    return [Cell(curve, seed, table_2.seconds(curve)) for seed in asked.seeds for curve in settings]


def section(runs: Sequence[Run]) -> Section:
    """The figure of the finished runs, and its table; of several seeds, the first that was run."""
    curves = {sigma: curve for sigma in EPOCHS if (curve := _curve(runs, sigma))}
    return Section("figure-1", TITLE, _ABOUT, _HEADER, tuple(_rows(curves)), _figure(curves))


Curve = Sequence[float]  # accuracy after each epoch


def _curve(runs: Sequence[Run], sigma: float) -> Curve:
    run = next((run for run in runs if run.setting == setting(sigma)), None)
    return [accuracy for _, accuracy in run.points] if run else []


def plateau(curve: Curve) -> float:
    """The mean of the last epochs."""
    last = curve[-_LAST:]
    return sum(last) / len(last)


def epochs_to_plateau(curve: Curve) -> int:
    """The first epoch near the plateau."""
    return next(epoch for epoch, accuracy in enumerate(curve, 1) if accuracy >= plateau(curve) - _NEAR)


def times_as_long(runs: Sequence[Run]) -> str:
    """The epochs to the plateau under the most noise, as a ratio to those at sigma 1; "" if a curve is missing."""
    much, little = (_curve(runs, sigma) for sigma in (max(EPOCHS), 1.0))
    return f"{epochs_to_plateau(much) / epochs_to_plateau(little):.1f}" if much and little else ""


def _rows(curves: dict[float, Curve]) -> list[tuple[str, ...]]:
    base = curves.get(1.0)
    rows = []
    for sigma in EPOCHS:
        curve = curves.get(sigma)
        if not curve:
            rows.append((f"{sigma:g}", "not run", "", "", ""))
            continue
        epochs = epochs_to_plateau(curve)
        times = f"{epochs / epochs_to_plateau(base):.1f}" if base else ""
        rows.append((f"{sigma:g}", f"{len(curve)}", f"{100 * plateau(curve):.2f} %", f"{epochs}", times))
    return rows


def _figure(curves: dict[float, Curve]) -> str:
    with matplotlib.rc_context(STYLE):
        drawn = Figure(figsize=(9.0, 3.8))
        axes = drawn.add_axes((0.07, 0.14, 0.91, 0.82))
        axes.set_xscale("log")
        for sigma, curve in curves.items():
            percents = [100 * accuracy for accuracy in curve]
            axes.plot(range(1, len(curve) + 1), percents, color=_COLOURS[sigma], label=f"σ = {sigma:g}")
            epochs = epochs_to_plateau(curve)
            axes.plot(epochs, percents[epochs - 1], "o", color=_COLOURS[sigma], clip_on=False, zorder=3)
        axes.xaxis.set_major_locator(FixedLocator([1, 2, 5, 10, 20, 40, 80]))
        axes.xaxis.set_minor_locator(NullLocator())
        axes.xaxis.set_major_formatter(FuncFormatter(lambda value, _: f"{value:g}"))
        axes.set(xlabel="epochs", ylabel="validation accuracy (%)", xlim=(1, max(EPOCHS.values())), ylim=(90, 100))
        if curves:
            axes.plot([], [], "o", color=INK, label="plateau reached")
            axes.legend(loc="lower right", frameon=False)
        axes.tick_params(length=0)
        return svg(drawn, title="Accuracy by epsilon")
