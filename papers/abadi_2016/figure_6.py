"""Figure 6: accuracy on CIFAR-10 against epochs, for three budgets."""

from __future__ import annotations

from collections.abc import Sequence

from papers.abadi_2016 import panels
from papers.abadi_2016.cifar import Cifar
from papers.abadi_2016.panels import HEADER, Panel, drawn, row
from papers.abadi_2016.runs import Run
from papers.abadi_2016.setting import Plan
from papers.paper import Asked
from papers.section import Section

TITLE = "Figure 6: accuracy on CIFAR-10 with convolutions from public images"
# The two rows with lots of 4000 differ only in their budget, so the longer run is used for both.
PANELS = (
    Panel("lots of 2000", Cifar(lot=2000), 2.0, 0.67),
    Panel("lots of 4000", Cifar(lot=4000), 4.0, 0.70),
    Panel("lots of 4000, longer", Cifar(lot=4000), 8.0, 0.73),
)
_ABOUT = (
    "The network of the TensorFlow tutorial. Its convolutions are frozen and come from a file of public weights "
    "(--weights). The three linear layers are trained, each clipped to norm 3 with noise multiplier 6, delta 1e-5, and "
    "accounted as one Gaussian mechanism with noise multiplier sigma / sqrt(3).",
    "The paper learnt its convolutions from the photographs and labels of CIFAR-100. Ours come from 10,000 images "
    "of a random process, shaded leaves, without labels: `python -m papers.abadi_2016.public_convolutions FILE` makes "
    "the file from a seed in minutes. And our copy of CIFAR-10 is recompressed as JPEG. So our accuracies are not "
    "comparable with the printed ones.",
    "Further differences: the paper also tried two layers alone, gave the last layer twice the clipping norm of the "
    "others, and distorted its training images at random; it does not print its learning rate. Ours, 0.2, is the "
    "best of five on EMNIST letters (81.5 % there; half of it 78.6 %, twice 74.7 %), with the noise and the steps of "
    "epsilon 2. A first rate of 0.05, which nothing had chosen, had reached 40.1 % and 37.0 % on CIFAR-10 at epsilon 2 "
    "and 4. The command without --full leaves out epsilon 8.",
)


def plans(asked: Asked) -> list[Plan]:
    """List the budgets with each seed, the largest only if all are asked for: its run takes most of the time."""
    return panels.plans(PANELS if asked.full else PANELS[:-1], asked.seeds, weights=asked.weights)


def section(runs: Sequence[Run]) -> Section:
    """Make the figure and its table from the finished runs."""
    figure = drawn(PANELS, runs, lowest=20, title="Accuracy and epsilon by epochs, CIFAR-10")
    return Section("figure-6", TITLE, _ABOUT, HEADER, tuple(row(panel, runs) for panel in PANELS), figure)
