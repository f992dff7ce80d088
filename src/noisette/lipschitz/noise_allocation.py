"""How the noise of one release is shared out among parameters whose sensitivities differ.

Every allocation gives the same mechanism: in units of the noise, one example moves all parameters together by at most
one over the noise multiplier. They differ in how much noise falls where.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Protocol

from torch import Tensor

from noisette._internal import checks


@dataclass(frozen=True)
class Part:
    """Parameters whose numbers get noise of one deviation, their joint sensitivity, and their part of the budget."""

    names: tuple[str, ...]
    bound: float
    share: float


class Allocation(Protocol):
    """Shares the budget of noise out among parameters."""

    def parts(self, sensitivities: Mapping[str, float], parameters: Mapping[str, Tensor]) -> Sequence[Part]:
        """Every parameter in one part; the shares add up to one.

        Raises:
            ValueError: the allocation does not fit the parameters.
        """
        ...


@dataclass(frozen=True)
class GlobalAllocation:
    """The same deviation for every number of every parameter.

    Source: Bethune et al. 2024, the "global" strategy.
    """

    def parts(self, sensitivities: Mapping[str, float], parameters: Mapping[str, Tensor]) -> Sequence[Part]:
        return [Part(tuple(sensitivities), math.hypot(*sensitivities.values()), 1.0)]


@dataclass(frozen=True)
class PerLayerAllocation:
    """For every parameter a deviation in proportion to its own sensitivity.

    Args:
        weights: by name of parameter, the deviation in units of its sensitivity, relative to that of others; 1 for
            those left out.

    Source: Bethune et al. 2024, the "per-layer" strategy. Their noise multiplier is of each layer alone: ours, of the
    whole release, is theirs over the square root of the number of parameters.
    """

    weights: Mapping[str, float] = field(default_factory=dict)

    def parts(self, sensitivities: Mapping[str, float], parameters: Mapping[str, Tensor]) -> Sequence[Part]:
        if unknown := sorted(self.weights.keys() - sensitivities.keys()):
            raise ValueError(
                f"weights for {', '.join(unknown)}, but the trainable parameters are {list(sensitivities)}"
            )
        checks.positive(**{f"weights[{name!r}]": weight for name, weight in self.weights.items()})
        asked = {name: self.weights.get(name, 1.0) ** -2 for name in sensitivities}
        return [Part((name,), bound, asked[name] / sum(asked.values())) for name, bound in sensitivities.items()]


@dataclass(frozen=True)
class OptimalAllocation:
    """The least noise energy, summed over all numbers of all parameters, that gives the noise multiplier.

    Minimises sum p s^2 over the deviations s subject to sum (sensitivity / s)^2 = 1 / sigma^2, for p numbers in a
    parameter: s^2 is in proportion to sensitivity / sqrt(p).
    """

    def parts(self, sensitivities: Mapping[str, float], parameters: Mapping[str, Tensor]) -> Sequence[Part]:
        asked = {name: bound * math.sqrt(parameters[name].numel()) for name, bound in sensitivities.items()}
        return [Part((name,), bound, asked[name] / sum(asked.values())) for name, bound in sensitivities.items()]
