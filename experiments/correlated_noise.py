"""The error of sums over steps with correlated noise, by the number of bands, at the same epsilon. Nothing is trained.

    python -m experiments.correlated_noise [--check]

writes docs/correlated-noise/error.svg. For each number of bands the noise multiplier is the least that the budget
allows with cyclic Poisson batches, and the error is that of the best coefficients for the number of steps: the root of
the mean squared error of the sums over the first t steps, averaged over all t, over that with independent noise.
"""

from __future__ import annotations

import argparse
import math
import sys
from pathlib import Path

import matplotlib
from matplotlib.figure import Figure

from noisette.accounting import BandedGaussian
from noisette.accounting.calibrate import least_noise
from noisette.noise.banded import banded_coefficients, mean_squared_error
from noisette.training.report.figures import BLUE, GREEN, INK, ORANGE, STYLE, svg
from papers.drawing import end_label, log_scale, spread, standalone

FIGURE = Path(__file__).parents[1] / "docs" / "correlated-noise" / "error.svg"
DELTA = 1e-5
EPSILONS = {1.0: ORANGE, 3.0: GREEN, 8.0: BLUE}
SETTINGS = {  # sampling rate, passes over the records
    "1 % of the records in a batch, 10 epochs": (0.01, 10),
    "5 % of the records in a batch, 40 epochs": (0.05, 40),
}
BANDS = (1, 2, 3, 4, 6, 8, 12, 16, 20, 32, 48, 64, 100)


def errors(sampling_rate: float, epochs: float, epsilon: float) -> dict[int, float]:
    """By the number of bands: the error over that of one band."""
    steps, found = round(epochs / sampling_rate), {}
    for bands in BANDS:
        if bands * sampling_rate <= 1:
            noise = least_noise(
                lambda multiplier, bands=bands: BandedGaussian(sampling_rate, multiplier, bands),
                epsilon=epsilon,
                delta=DELTA,
                steps=steps,
            )
            found[bands] = noise * math.sqrt(mean_squared_error(banded_coefficients(bands, steps), steps))
    return {bands: error / found[1] for bands, error in found.items()}


def figure() -> str:
    """The figure as a file of SVG."""
    with matplotlib.rc_context(STYLE):
        drawn = Figure(figsize=(8.6, 3.0))
        for axes, (title, (rate, epochs)) in zip(drawn.subplots(1, 2, sharey=True), SETTINGS.items(), strict=True):
            axes.set_title(title, fontsize=9, loc="left")
            ends = {}
            for epsilon, colour in EPSILONS.items():
                of_bands = errors(rate, epochs, epsilon)
                print(title, epsilon, {bands: round(error, 3) for bands, error in of_bands.items()})
                axes.plot(*zip(*of_bands.items(), strict=True), color=colour, marker="o", markersize=3)
                ends[epsilon] = list(of_bands.items())[-1]
            heights = spread([height for _, height in ends.values()], apart=0.09)
            for (epsilon, (bands, _)), height in zip(ends.items(), heights, strict=True):
                end_label(axes, f"epsilon {epsilon:g}", (bands, height), EPSILONS[epsilon])
            axes.axhline(1.0, color=INK, linewidth=0.9, linestyle=(0, (5, 3)))
            log_scale(axes.xaxis, axes.set_xscale, "{:g}".format)
            axes.set(xlabel="bands", ylim=(0, 1.45))
            axes.tick_params(length=0)
        drawn.axes[0].set_ylabel("error, over that of independent noise")
        drawn.subplots_adjust(left=0.08, right=0.91, bottom=0.17, top=0.88, wspace=0.3)
        return standalone(svg(drawn, title="Error with correlated noise"))


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n")[0])
    parser.add_argument("--check", action="store_true", help="write nothing; exit with 1 if the figure is out of date")
    if parser.parse_args().check:
        sys.exit(figure() != FIGURE.read_text())
    FIGURE.parent.mkdir(exist_ok=True)
    FIGURE.write_text(figure())


if __name__ == "__main__":
    main()
