"""Adaptive clipping: a clipping norm that follows a quantile of the gradient norms, by a noised count."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence

import torch
from torch import Tensor

from noisette import errors as checks
from noisette.core.clip import SMALLEST_BOUND, Count, Group

# C stays within this range of its first value. Where all gradients vanish C falls in every step, and the noise with it:
# without a floor it would leave the range of single precision, in which norms and noise are zero.
_RANGE = (1e-6, 1e6)


class AdaptiveClip:
    """One norm over all trainable parameters, clipped to a bound C that follows a quantile of the norms.

    After each step C becomes C exp(-learning_rate (b - target_quantile)), where b is the noised fraction of examples
    whose norm is at most C: a count, divided by the expected batch size, released together with the gradient. Gradient
    and count share one release, so the privacy cost of a step is that of a step without the count; in exchange the
    gradient gets 1 / sqrt(1 - count_share) times the noise. C stays within a factor of a million of its first value.

    Args:
        initial_norm: the bound C of the first step.
        target_quantile: the fraction of the examples whose norm should be at most C, in (0, 1).
        learning_rate: how fast C moves.
        count_share: the share of the release's budget that goes to the count, in (0, 1).

    Attributes:
        max_grad_norm: the bound C as of the last release. It is public.

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
        self.max_grad_norm = float(initial_norm)
        self._lowest = max(SMALLEST_BOUND, _RANGE[0] * self.max_grad_norm)
        self._highest = _RANGE[1] * self.max_grad_norm
        self._count = Count(torch.zeros((), dtype=torch.float64), self.count_share)
        self._adapted_to: Tensor | None = None

    def adapt(self, released_count: Tensor) -> None:
        """Move C by the released count of a step, over the expected batch size; the same tensor moves it only once.

        With a target of 0.5, a learning rate of 0.2 and 70 of 100 examples within C the count is (70 - 30) / 2 = 20,
        released as 0.2: b is 0.7, and C shrinks by the factor exp(-0.2 * 0.2) = 0.96.
        """
        if released_count is self._adapted_to:
            return
        self._adapted_to = released_count
        within = float(released_count) + 0.5  # examples count +1/2 or -1/2, which puts the fraction one half too low
        moved = self.max_grad_norm * math.exp(-self.learning_rate * (within - self.target_quantile))
        self.max_grad_norm = min(max(moved, self._lowest), self._highest)

    def groups(self, names: Sequence[str]) -> list[Group]:
        return [Group(tuple(names), self.max_grad_norm, count=self._count)]

    def state(self) -> Mapping[str, float]:
        """The bound C as of the last release."""
        return {"max_grad_norm": self.max_grad_norm}

    def restore(self, state: Mapping[str, float]) -> None:
        """Continue with the C that :meth:`state` gave.

        Raises:
            ValueError: it is not a finite number above zero.
        """
        checks.positive(max_grad_norm=state["max_grad_norm"])
        self.max_grad_norm = float(state["max_grad_norm"])
        self._adapted_to = self._count.released.grad  # the restored C includes it
