"""Allocations: how the noise of one release is divided among parameters with different sensitivities.

Every allocation gives the same mechanism: in units of the noise, one example changes all parameters together by at most
one over the noise multiplier. Allocations differ in the noise that each parameter gets.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Protocol

from torch import Tensor

from noisette import errors as checks


@dataclass(frozen=True)
class Part:
    """Parameters with the same noise standard deviation, their joint sensitivity, and their share of the budget."""

    names: tuple[str, ...]
    bound: float
    share: float


class Allocation(Protocol):
    """Divides the noise budget of a release among the parameters."""

    def parts(self, sensitivities: Mapping[str, float], parameters: Mapping[str, Tensor]) -> Sequence[Part]:
        """Assign every parameter to one part; the shares add up to one.

        Raises:
            ValueError: the allocation does not fit the parameters.
        """
        ...


@dataclass(frozen=True)
class GlobalAllocation:
    """The same noise standard deviation for every element of every parameter.

    Source: Bethune et al. 2024, the "global" strategy.
    """

    def parts(self, sensitivities: Mapping[str, float], parameters: Mapping[str, Tensor]) -> Sequence[Part]:
        return [Part(tuple(sensitivities), math.hypot(*sensitivities.values()), 1.0)]


@dataclass(frozen=True)
class PerLayerAllocation:
    """A noise standard deviation in proportion to the sensitivity of each parameter.

    Args:
        weights: by name of parameter, the noise standard deviation in units of its sensitivity, relative to the others;
            1 for parameters that are not listed.

    Source: Bethune et al. 2024, the "per-layer" strategy. Their noise multiplier is that of each layer alone; ours, of
    the whole release, is theirs divided by the square root of the number of parameters.
    """

    weights: Mapping[str, float] = field(default_factory=dict)

    def parts(self, sensitivities: Mapping[str, float], parameters: Mapping[str, Tensor]) -> Sequence[Part]:
        if unknown := sorted(self.weights.keys() - sensitivities.keys()):
            raise ValueError(
                f"weights for {', '.join(unknown)}, but the trainable parameters are {list(sensitivities)}"
            )
        checks.positive(**{f"weights[{name!r}]": weight for name, weight in self.weights.items()})
        return _one_part_each(sensitivities, {name: self.weights.get(name, 1.0) ** -2 for name in sensitivities})


@dataclass(frozen=True)
class OptimalAllocation:
    """The least total noise variance, over all elements of all parameters, for the noise multiplier.

    Minimises sum p s^2 over the standard deviations s, subject to sum (sensitivity / s)^2 = 1 / sigma^2, for p elements
    in a parameter. The solution has s^2 in proportion to sensitivity / sqrt(p).
    """

    def parts(self, sensitivities: Mapping[str, float], parameters: Mapping[str, Tensor]) -> Sequence[Part]:
        proportions = {name: bound * math.sqrt(parameters[name].numel()) for name, bound in sensitivities.items()}
        return _one_part_each(sensitivities, proportions)


def _one_part_each(sensitivities: Mapping[str, float], proportions: Mapping[str, float]) -> list[Part]:
    """One part per parameter, with shares in these proportions."""
    total = sum(proportions.values())
    return [Part((name,), bound, proportions[name] / total) for name, bound in sensitivities.items()]
