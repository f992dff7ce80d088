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
    "60 private principal components, 1000 ReLU units, lots of 600, each layer's gradient clipped at 4, learning rate "
    "0.1 falling to 0.052 over ten epochs, delta 1e-5. In brackets: the noise on the gradients, and that on the "
    "components. Accuracy is that on the test images: that on the training images would itself be private.",
    "A budget only says when a run stops, so one run answers for both accountants: the paper's moments accountant "
    "ends the budget at the first mark, the privacy loss distribution (PLD) at the second. Both layers see the same "
    "lot and are priced as one Gaussian mechanism with noise sigma / sqrt(2), beside the principal components. Which "
    'price the paper used is not known. The column "if flat" holds the epochs that the moments accountant would allow '
    "if the noise were on one gradient clipped as a whole: too many for what was run.",
)


def section(runs: Sequence[Run]) -> Section:
    """The figure and its table, made from the runs that are there."""
    figure = drawn(PANELS, runs, lowest=80, salt="abadi-2016-figure-3")
    return Section("figure-3", TITLE, _ABOUT, HEADER, tuple(row(panel, runs) for panel in PANELS), figure)
