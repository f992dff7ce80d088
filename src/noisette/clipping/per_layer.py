"""Per-layer clipping: the parameters of each module have a norm of their own."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

from noisette import errors as checks
from noisette.core.clip import Group


@dataclass(frozen=True)
class PerLayerClipping:
    """A norm for the parameters of each module, each clipped to C / sqrt(K) where there are K modules.

    Args:
        max_grad_norm: the bound C of all layers together.

    Guarantee: one example moves the sum of each layer by at most C / sqrt(K), and so all of them by at most C.
    Source: McMahan et al. 2018, "Learning Differentially Private Recurrent Language Models", section 2.3.

    >>> names = ["0.weight", "0.bias", "2.weight", "scale", "4.weight"]
    >>> [(group.names, group.bound) for group in PerLayerClipping(3.0).groups(names)]
    [(('0.weight', '0.bias'), 1.5), (('2.weight',), 1.5), (('scale',), 1.5), (('4.weight',), 1.5)]
    """

    max_grad_norm: float

    def __post_init__(self) -> None:
        checks.positive(max_grad_norm=self.max_grad_norm)

    def groups(self, names: Sequence[str]) -> list[Group]:
        layers: dict[str, list[str]] = {}
        for name in names:
            layers.setdefault(name.rpartition(".")[0], []).append(name)
        bound = self.max_grad_norm / math.sqrt(len(layers))
        return [Group(tuple(layer), bound) for layer in layers.values()]
