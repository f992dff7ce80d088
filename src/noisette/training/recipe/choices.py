"""The names that a recipe can choose from, each table in one place. Reading the tables does not import torch."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Literal

from noisette._internal.registry import Entry


@dataclass(frozen=True)
class BatchNormEntry(Entry):
    """A norm that replaces batch norm; ``needs_public`` if its statistics come from public examples."""

    needs_public: bool = False


def _norms():
    from noisette import nn

    return nn


def _conversion():
    from noisette.nn import conversion  # has the norms of torch, which is not imported here

    return conversion


def _schemes():
    from noisette.sampling import schemes

    return schemes


def _optimizers():
    from noisette.training import optimizers

    return optimizers


def _allocations():
    from noisette.lipschitz import noise_allocation

    return noise_allocation


BATCH_NORMS: Mapping[str, BatchNormEntry] = {
    "public": BatchNormEntry(lambda: _norms().PublicBatchNorm, "statistics of public examples", needs_public=True),
    "per-example": BatchNormEntry(
        lambda: _norms().PerExampleBatchNorm, "statistics of one example and the public ones, in closed form", True
    ),
    "per-example-exact": BatchNormEntry(
        lambda: _norms().ExactPerExampleBatchNorm, "the same from a forward pass for each example (slow)", True
    ),
    "frozen": BatchNormEntry(lambda: _norms().FrozenBatchNorm, "fixed statistics of public data", True),
    "group": BatchNormEntry(lambda: _conversion().nn.GroupNorm, "group norm"),
    "layer": BatchNormEntry(lambda: _conversion().nn.LayerNorm, "layer norm"),
    "instance": BatchNormEntry(lambda: _conversion()._InstanceNorm, "instance norm"),
}
NEED_PUBLIC = tuple(name for name, norm in BATCH_NORMS.items() if norm.needs_public)

BATCHES: Mapping[str, Entry] = {
    "poisson": Entry(lambda: _schemes().Poisson, "each example by itself, at the lowest cost"),
    "truncated": Entry(lambda: _schemes().TruncatedPoisson, "the same, but at most --largest-batch examples"),
    "balls-in-bins": Entry(lambda: _schemes().BallsInBins, "each example once in a pass"),
    "cyclic": Entry(
        lambda: _schemes().CyclicPoisson, "of --bands groups in turn, and noise that later steps take back"
    ),
}

# Whether a step is captured and compiled, with the value of ``capture`` that it stands for.
COMPILE: Mapping[str, Literal["auto", "compiled", "eager"]] = {"auto": "auto", "yes": "compiled", "no": "eager"}

OPTIMIZERS: Mapping[str, Entry] = {
    "sgd": Entry(lambda: _optimizers().sgd, "stochastic gradient descent, with momentum"),
    "adam": Entry(lambda: _optimizers().adam, "steps scaled by running means of the noised gradients"),
    "adam-bc": Entry(lambda: _optimizers().adam_bc, "the same without the variance of the noise in them"),
}

ALLOCATIONS: Mapping[str, Entry] = {
    "global": Entry(lambda: _allocations().GlobalAllocation, "the same noise on every parameter"),
    "per-layer": Entry(lambda: _allocations().PerLayerAllocation, "an equal share for each layer"),
    "optimal": Entry(lambda: _allocations().OptimalAllocation, "the least noise in total"),
}
