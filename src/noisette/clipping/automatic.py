"""Automatic clipping: every gradient is scaled to nearly the clipping norm."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from torch import Tensor

from noisette import errors as checks
from noisette.core.clip import Group


@dataclass(frozen=True)
class AutomaticClipping:
    """Scale every gradient, small ones too, to nearly the clipping norm C: factor C / (norm + stability).

    The learning rate then need not be tuned together with C.

    Args:
        max_grad_norm: the bound C.
        stability: above 0; keeps small gradients smaller than large ones.

    Guarantee: one example moves the sum by at most C.
    Source: Bu et al. 2022, "Automatic Clipping", AUTO-S.

    >>> import torch
    >>> [group] = AutomaticClipping(1.0).groups(["w"])
    >>> [round(factor, 4) for factor in group.factor(torch.tensor([0.0, 0.01, 1.99])).tolist()]
    [100.0, 50.0, 0.5]
    """

    max_grad_norm: float
    stability: float = 0.01

    def __post_init__(self) -> None:
        checks.positive(max_grad_norm=self.max_grad_norm, stability=self.stability)

    def groups(self, names: Sequence[str]) -> list[Group]:
        return [Group(tuple(names), float(self.max_grad_norm), self._factor)]

    def _factor(self, norms: Tensor) -> Tensor:
        return self.max_grad_norm / (norms + self.stability)
