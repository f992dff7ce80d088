"""Figure 6: accuracy on CIFAR-10 against epochs, for three budgets."""

from __future__ import annotations

from collections.abc import Sequence

from papers.abadi_2016.cifar import Cifar
from papers.abadi_2016.panels import HEADER, Panel, drawn, row
from papers.abadi_2016.runs import Run
from papers.section import Section

TITLE = "Figure 6: accuracy on CIFAR-10 with convolutions from public images"
# The two rows with lots of 4000 differ only in their budget, so the longer run is used for both.
PANELS = (
    Panel("lots of 2000", Cifar(lot=2000), 2.0, 0.67),
    Panel("lots of 4000", Cifar(lot=4000), 4.0, 0.70),
    Panel("lots of 4000, longer", Cifar(lot=4000), 8.0, 0.73),
)
_ABOUT = (
    "The network of the TensorFlow tutorial. Its convolutions are frozen and come from a file that you provide "
    "(--weights), learnt from public images: CIFAR-100 in the paper; noisette.models.pretrained explains how to make "
    "it. The three linear layers are trained, each clipped to norm 3 with noise multiplier 6, delta 1e-5, and "
    "accounted as one Gaussian mechanism with noise multiplier sigma / sqrt(3).",
    "Differences from the paper: the paper also tried two layers alone, gave the last layer twice the clipping norm of "
    "the others, and distorted its training images at random; it does not print its learning rate, ours is 0.05.",
)


def section(runs: Sequence[Run]) -> Section:
    """Make the figure and its table from the finished runs."""
    figure = drawn(PANELS, runs, lowest=40, salt="abadi-2016-figure-6")
    return Section("figure-6", TITLE, _ABOUT, HEADER, tuple(row(panel, runs) for panel in PANELS), figure)
