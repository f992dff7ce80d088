"""Figure 3: accuracy on MNIST against epochs, at three levels of noise."""

from __future__ import annotations

from collections.abc import Sequence

from papers.abadi_2016.mnist import Mnist
from papers.abadi_2016.panels import HEADER, Panel, drawn, row
from papers.abadi_2016.runs import Run
from papers.section import Section

TITLE = "Figure 3: accuracy on MNIST at three levels of noise"
PANELS = (
    Panel("large noise (8, 16)", Mnist(noise=8.0, pca_noise=16.0), 0.5, 0.90),
    Panel("medium noise (4, 7)", Mnist(noise=4.0, pca_noise=7.0), 2.0, 0.95),
    Panel("small noise (2, 4)", Mnist(noise=2.0, pca_noise=4.0), 8.0, 0.97),
)
_ABOUT = (
    "60 private principal components, 1000 ReLU units, lots of 600, each layer's gradient clipped to norm 4, learning "
    "rate 0.1 decreasing to 0.052 over ten epochs, delta 1e-5. In brackets: the noise multipliers of the gradients and "
    "of the components. Accuracies are measured on the test images: those on the training images would be private.",
    "The budget only determines where a run stops, so one run is enough for both accountants: the budget is spent at "
    "the first mark by the paper's moments accountant, and at the second by the privacy loss distribution (PLD). Both "
    "layers use the same lot and are accounted as one Gaussian mechanism with noise multiplier sigma / sqrt(2), "
    'composed with the principal components. It is not known which accounting the paper used. The column "epochs if '
    'flat" shows the epochs that the moments accountant would allow if the noise were on one gradient clipped as a '
    "whole; no run is that long. Where a seed was run more than once, its longest run counts.",
)


def section(runs: Sequence[Run]) -> Section:
    """Make the figure and its table from the finished runs."""
    figure = drawn(PANELS, runs, lowest=80, title="Accuracy and epsilon by epochs, MNIST")
    return Section("figure-3", TITLE, _ABOUT, HEADER, tuple(row(panel, runs) for panel in PANELS), figure)
