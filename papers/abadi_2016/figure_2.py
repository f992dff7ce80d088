"""Figure 2: epsilon against epochs, by strong composition and by the moments accountant."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import matplotlib
from matplotlib.figure import Figure
from matplotlib.ticker import FuncFormatter, LogLocator, NullLocator

from noisette.accounting import Accountant, PldAccountant, PoissonGaussian, StrongComposition, epsilon_curve
from noisette.training.report.facts import upward
from noisette.training.report.figures import BLUE, GREEN, INK, ORANGE, STYLE, svg
from papers.abadi_2016.panels import MOMENTS
from papers.abadi_2016.setting import DELTA
from papers.drawing import end_label, spread
from papers.section import Section

STEP = PoissonGaussian(sampling_rate=0.01, noise_multiplier=4.0)
STEPS_AN_EPOCH = 100
TITLE = "Figure 2: epsilon against epochs"


@dataclass(frozen=True)
class Line:
    """An accountant in the figure, and the epsilons that the paper prints for it, by epoch."""

    name: str
    accountant: Accountant
    colour: str
    dashes: str
    printed: dict[int, float]

    def epsilons(self, epochs: Sequence[int]) -> list[float]:
        """Return epsilon after each number of epochs."""
        steps = [STEPS_AN_EPOCH * epoch for epoch in epochs]
        return epsilon_curve(STEP, checkpoints=steps, delta=DELTA, accountant=self.accountant)


LINES = (
    Line("strong, proved", StrongComposition(), ORANGE, ":", {}),
    Line("strong, as printed", StrongComposition(as_printed=True), ORANGE, "--", {100: 9.34, 400: 24.22}),
    Line("moments", MOMENTS, BLUE, "-", {100: 1.26, 400: 2.55}),
    Line("PLD", PldAccountant(), GREEN, "-", {}),
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
