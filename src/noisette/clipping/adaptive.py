"""A clipping bound that follows a quantile of the gradient norms, learned from a count noised with the gradient."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence

import torch
from torch import Tensor

from noisette._internal import checks
from noisette.clipping.clipping_rules import Count, Group


class AdaptiveClip:
    """One norm over all trainable parameters, clipped to a bound that follows a quantile of the norms.

    After each step C becomes C exp(-learning_rate (b - target_quantile)), where b is the noised part of the examples
    whose norm is at most C: a count, divided by the expected batch size, released together with the gradient. Gradient
    and count share one budget of noise, so a step costs what it costs without the count; the gradient pays with
    1 / sqrt(1 - count_share) times the noise.

    Args:
        initial_norm: the bound of the first step.
        target_quantile: the part of the examples that the bound should leave whole, in (0, 1).
        learning_rate: how fast the bound moves.
        count_share: the part of the budget that goes to the count, in (0, 1).

    Guarantee: in every step one example moves the sum by at most that step's C, which depends on released values alone.
    Source: Andrew et al. 2021, "Differentially Private Learning with Adaptive Clipping", algorithm 1.

    >>> AdaptiveClip(0.1).max_grad_norm
    0.1
    """

    def __init__(
        self,
        initial_norm: float,
        target_quantile: float = 0.5,
        learning_rate: float = 0.2,
        count_share: float = 0.01,
    ) -> None:
        checks.positive(initial_norm=initial_norm, learning_rate=learning_rate)
        checks.open_fraction(target_quantile=target_quantile, count_share=count_share)
        self.target_quantile = float(target_quantile)
        self.learning_rate = float(learning_rate)
        self.count_share = float(count_share)
        self._max_grad_norm = float(initial_norm)
        self._count = Count(torch.zeros((), dtype=torch.float64), self.count_share)
        self._read: Tensor | None = None

    @property
    def max_grad_norm(self) -> float:
        """The bound C as of the last release. It is public."""
        noised = self._count.released.grad
        if noised is not None and noised is not self._read:
            self._read = noised
            # Examples count +1/2 or -1/2, which puts the part of those within the bound one half too low.
            within = float(noised) + 0.5
            self._max_grad_norm *= math.exp(-self.learning_rate * (within - self.target_quantile))
        return self._max_grad_norm

    def groups(self, names: Sequence[str]) -> list[Group]:
        return [Group(tuple(names), self.max_grad_norm, count=self._count)]

    def state(self) -> Mapping[str, float]:
        """The bound C as of the last release."""
        return {"max_grad_norm": self.max_grad_norm}

    def restore(self, state: Mapping[str, float]) -> None:
        """Go on with the C that :meth:`state` gave.

        Raises:
            ValueError: it is not a finite number above zero.
        """
        checks.positive(max_grad_norm=state["max_grad_norm"])
        self._max_grad_norm = float(state["max_grad_norm"])
        self._read = self._count.released.grad  # what was released before has had its say
