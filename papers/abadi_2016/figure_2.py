"""Figure 2: epsilon against epochs, by strong composition and by the moments accountant."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import matplotlib
from matplotlib.figure import Figure
from matplotlib.ticker import FuncFormatter, LogLocator, NullLocator
from scipy.optimize import minimize_scalar

from noisette.accounting import Accountant, Gaussian, GdpAccountant, PldAccountant, PoissonGaussian
from noisette.training.report.facts import upward
from noisette.training.report.figures import BLUE, GREEN, INK, ORANGE, STYLE, svg
from papers.abadi_2016.panels import MOMENTS
from papers.abadi_2016.setting import DELTA
from papers.drawing import end_label, spread
from papers.section import Section

STEP = PoissonGaussian(sampling_rate=0.01, noise_multiplier=4.0)
STEPS_AN_EPOCH = 100
TITLE = "Figure 2: epsilon against epochs"


def strong(steps: int) -> float:
    """Return epsilon by the strong composition theorem, with exact losses and the best split of delta.

    A step's exact epsilon is amplified by sampling to ln(1 + q (exp(epsilon) - 1)). Source: Dwork, Rothblum and Vadhan
    2010, Theorem III.3; amplification: Balle, Barthe and Gaboardi 2018, Theorem 8.
    """
    alone = GdpAccountant().compose({Gaussian(STEP.noise_multiplier): 1})

    def with_share(share: float) -> float:
        left = (1 - share) * DELTA / (STEP.sampling_rate * steps)
        loss = math.log1p(STEP.sampling_rate * math.expm1(alone.epsilon(delta=left)))
        return math.sqrt(2 * steps * math.log(1 / (share * DELTA))) * loss + steps * loss * math.expm1(loss)

    best: Any = minimize_scalar(with_share, bounds=(0, 1), method="bounded", options={"xatol": 1e-4})
    return float(best.fun)


def strong_as_printed(steps: int) -> float:
    """Return epsilon as printed: no bound, for neither the noise's nor the sampling's formula is proved for it."""
    half = DELTA / 2
    root = math.sqrt(2 * math.log(1.25 * STEP.sampling_rate * steps / half))
    loss = STEP.sampling_rate * root / STEP.noise_multiplier
    return math.sqrt(2 * steps * math.log(1 / half)) * loss + steps * loss**2


def by(accountant: Accountant) -> Callable[[int], float]:
    """Return epsilon by the number of steps."""
    return lambda steps: accountant.compose({STEP: steps}).epsilon(delta=DELTA)


@dataclass(frozen=True)
class Line:
    """A way to compute epsilon in the figure, and the epsilons that the paper prints for it, by epoch."""

    name: str
    epsilon: Callable[[int], float]
    colour: str
    dashes: str
    printed: dict[int, float]

    def epsilons(self, epochs: Sequence[int]) -> list[float]:
        """Return epsilon after each number of epochs."""
        return [self.epsilon(STEPS_AN_EPOCH * epoch) for epoch in epochs]


LINES = (
    Line("strong, proved", strong, ORANGE, ":", {}),
    Line("strong, as printed", strong_as_printed, ORANGE, "--", {100: 9.34, 400: 24.22}),
    Line("moments", by(MOMENTS), BLUE, "-", {100: 1.26, 400: 2.55}),
    Line("PLD", by(PldAccountant()), GREEN, "-", {}),
)
_SHOWN = (10, 50, 100, 200, 400)
_DRAWN = (1, 2, 5, *range(10, 100, 10), *range(100, 401, 25))


def section() -> Section:
    """Make the figure and its table: sampling rate 0.01, noise multiplier 4, delta 1e-5."""
    header, columns = ["epochs"], [[str(epoch) for epoch in _SHOWN]]
    for line in LINES:
        if line.printed:
            header.append(f"{line.name}: paper")
            columns.append([f"{line.printed[epoch]:g}" if epoch in line.printed else "" for epoch in _SHOWN])
        header.append(f"{line.name}: ours" if line.printed else line.name)
        columns.append([upward(epsilon) for epsilon in line.epsilons(_SHOWN)])
    return Section("figure-2", TITLE, _ABOUT, tuple(header), tuple(zip(*columns, strict=True)), _figure())


_ABOUT = (
    "Sampling rate 0.01, noise multiplier 4, delta 1e-5, 100 steps per epoch. Circles are the numbers that the paper "
    "prints. Every epsilon of ours is rounded up.",
    "Strong composition as printed uses q times a step's epsilon as the epsilon of a step on a sampled lot, and the "
    "square of that for the expected privacy loss: neither is proved. The proved form uses ln(1 + q (exp(epsilon) - "
    "1)) for a step, with the exact epsilon of its Gaussian mechanism and the best split of delta, and gives a far "
    "larger epsilon.",
    "The moments accountant uses the paper's orders, 1 to 32, which cannot certify less than ln(1/delta)/32 = 0.36. "
    "Its 2.58 after 400 epochs uses the larger moment of both directions; the smaller one alone would give 2.56. The "
    "privacy loss distribution (PLD) is noisette's default accountant.",
)


def _figure() -> str:
    with matplotlib.rc_context(STYLE):
        drawn = Figure(figsize=(9.0, 4.2))
        axes = drawn.add_axes((0.07, 0.13, 0.72, 0.83))
        axes.set_yscale("log")
        axes.yaxis.set_major_locator(LogLocator(subs=(1, 2, 5)))
        axes.yaxis.set_minor_locator(NullLocator())
        axes.yaxis.set_major_formatter(FuncFormatter(lambda value, _: f"{value:g}"))
        axes.set(xlabel="epochs", ylabel="ε", xlim=(0, _DRAWN[-1]))
        axes.tick_params(length=0)
        courses = [line.epsilons(_DRAWN) for line in LINES]
        heights = spread([math.log(epsilons[-1]) for epsilons in courses], apart=0.3)
        for line, epsilons, height in zip(LINES, courses, heights, strict=True):
            axes.plot(_DRAWN, epsilons, line.dashes, color=line.colour)
            end_label(axes, f"{line.name} {upward(epsilons[-1])}", (_DRAWN[-1], math.exp(height)), line.colour)
            for epoch, printed in line.printed.items():
                axes.plot(epoch, printed, "o", color=INK, markerfacecolor="none", markersize=7, clip_on=False)
                below = {"xytext": (6, -13), "ha": "left" if epoch < _DRAWN[-1] else "right"}
                place = below if line.dashes == "--" else {"xytext": (-4, 8), "ha": "right"}
                axes.annotate(f"paper {printed:g}", (epoch, printed), textcoords="offset points", **place)
        return svg(drawn, title="Epsilon by epochs, by the moments accountant and the strong composition theorem")
