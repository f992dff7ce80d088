"""Custom clipping: a factor of the user's own, kept within the clipping norm."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from noisette import errors as checks
from noisette.core.clip import Factor, Group

# Norms that a factor is tried on: zero, and 1e-12 to 1e12.
_GRID = (0.0, *(10.0 ** (k / 10) for k in range(-120, 121)))


@dataclass(frozen=True)
class CustomClipping:
    """A factor of your own, a function of the norm.

    It is tried on norms from 1e-12 to 1e12 and zero when the rule is made, and held to min(factor, C / norm) always.

    Args:
        factor: norms of shape (b,) to factors of shape (b,): finite, not negative, each from its own norm alone, and
            at most C / norm.
        max_grad_norm: the bound C.

    Guarantee: one example moves the sum by at most C, whatever the function returns, provided that it looks at one
    norm at a time.

    Raises:
        ValueError: the function returned something else; the message says at which norm.

    >>> rule = CustomClipping(lambda norms: 0.5 / (1 + norms), max_grad_norm=1.0)
    >>> CustomClipping(lambda norms: 1 / (norms - 3), max_grad_norm=1.0)
    Traceback (most recent call last):
      ...
    ValueError: the factor at norm 0 is -0.333333: expected a finite number that is not negative
    """

    factor: Factor
    max_grad_norm: float

    def __post_init__(self) -> None:
        checks.positive(max_grad_norm=self.max_grad_norm)
        norms = torch.tensor(_GRID, dtype=torch.float64)
        factors = self._checked_factors(norms)
        for norm, factor in zip(_GRID, factors.tolist(), strict=True):
            if not 0 <= factor < math.inf:
                raise ValueError(
                    f"the factor at norm {norm:g} is {factor:g}: expected a finite number that is not negative"
                )
            if factor * norm > self.max_grad_norm * (1 + 2**-13):
                raise ValueError(
                    f"the factor at norm {norm:g} is {factor:g}, which leaves a norm of {factor * norm:g}, above "
                    f"max_grad_norm={self.max_grad_norm:g}"
                )
        alone = torch.cat([self._checked_factors(norm) for norm in norms.split(1)])
        for norm, one, factor in zip(_GRID, alone.tolist(), factors.tolist(), strict=True):
            if not math.isclose(one, factor, rel_tol=1e-6):
                raise ValueError(
                    f"the factor at norm {norm:g} is {factor:g} among other norms and {one:g} alone: it must look at "
                    "one norm at a time"
                )

    def groups(self, names: Sequence[str]) -> list[Group]:
        return [Group(tuple(names), float(self.max_grad_norm), self._checked_factors)]

    def _checked_factors(self, norms: Tensor) -> Tensor:
        """The factors, which no memory of the norms is left in.

        Raises:
            ValueError: not a tensor with one factor for each norm.
        """
        factors = self.factor(norms.clone())
        if not isinstance(factors, Tensor) or factors.shape != norms.shape:
            given = tuple(factors.shape) if isinstance(factors, Tensor) else type(factors).__name__
            raise ValueError(f"the factor returned {given} for norms of shape {tuple(norms.shape)}: give one for each")
        return factors.detach()
