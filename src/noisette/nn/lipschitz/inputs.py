"""Where a bound begins: every example is brought into a ball, or onto its sphere, whatever it was.

Source: Bethune et al. 2024, section 2 (bounded inputs).
"""

from __future__ import annotations

import math

import torch
from torch import Tensor, nn

from noisette._internal import checks
from noisette.lipschitz.protocols import NormBound, Sensitivities
from noisette.nn.lipschitz.axes import per_example_norms

_NO_DIRECTION = 1e-30  # shorter than this, in units of the radius, the numbers of an example are too coarse to scale


class BoundedInput(nn.Module):
    """Scales each example down to a Euclidean norm of ``x0`` at most, over all its numbers; a model begins with it.

    An example with a number that is not finite becomes zeros.

    Guarantee: ``x0`` must be a public constant. A largest norm, mean or deviation taken from the private examples tells
    of them.

    >>> BoundedInput(x0=5.0)(torch.tensor([[6.0, 8.0], [0.3, 0.4], [math.nan, 1.0]])).tolist()
    [[3.0, 4.0], [0.30000001192092896, 0.4000000059604645], [0.0, 0.0]]
    """

    def __init__(self, x0: float) -> None:
        super().__init__()
        checks.positive(x0=x0)
        self.x0 = x0

    def forward(self, x: Tensor) -> Tensor:
        return _in_ball(x, self.x0)

    def bound_forward(self, x: NormBound) -> NormBound:
        return NormBound(min(x.norm, self.x0), x.shape)

    def bound_backward(self, x: NormBound, g: float) -> tuple[float, Sensitivities]:
        return g, {}

    def extra_repr(self) -> str:
        return f"x0={self.x0:g}"


class SphereInput(nn.Module):
    """Scales each example to a Euclidean norm of ``x0``, over all its numbers; one of zeros stays as it is.

    Bounds are tighter than behind :class:`BoundedInput`, because each example is as long as the bound says. Near zero
    the map has no Lipschitz constant, so nothing in front of it can train, and robust radii are those of its output.

    Guarantee: as for :class:`BoundedInput`.

    >>> SphereInput(x0=5.0)(torch.tensor([[6.0, 8.0], [0.0, 0.1], [0.0, 0.0]])).tolist()
    [[3.0, 4.0], [0.0, 5.0], [0.0, 0.0]]
    """

    def __init__(self, x0: float) -> None:
        super().__init__()
        checks.positive(x0=x0)
        self.x0 = x0

    def forward(self, x: Tensor) -> Tensor:
        lengths = per_example_norms(x) / self.x0
        return _divided(x, lengths, lengths > _NO_DIRECTION)

    def bound_forward(self, x: NormBound) -> NormBound:
        return NormBound(self.x0, x.shape)

    def bound_backward(self, x: NormBound, g: float) -> tuple[float, Sensitivities]:
        return math.inf, {}

    def extra_repr(self) -> str:
        return f"x0={self.x0:g}"


class NormCap(nn.Module):
    """Scales each example down to a norm of at most ``cap`` inside a network, for example behind a bias.

    >>> NormCap(1.0).bound_forward(NormBound(3.0, (10,))).norm
    1.0
    """

    def __init__(self, cap: float) -> None:
        super().__init__()
        checks.positive(cap=cap)
        self.cap = cap

    def forward(self, x: Tensor) -> Tensor:
        return _in_ball(x, self.cap)

    def bound_forward(self, x: NormBound) -> NormBound:
        return NormBound(min(x.norm, self.cap), x.shape)

    def bound_backward(self, x: NormBound, g: float) -> tuple[float, Sensitivities]:
        return g, {}

    def extra_repr(self) -> str:
        return f"{self.cap:g}"


def _in_ball(x: Tensor, radius: float) -> Tensor:
    """The nearest point of the ball, a map that stretches no difference."""
    lengths = per_example_norms(x) / radius
    return _divided(x, lengths.clamp(min=1), lengths.isfinite())


def _divided(x: Tensor, lengths: Tensor, keep: Tensor) -> Tensor:
    """Examples over their lengths, (b,), and zeros where they are not kept or not finite."""
    keep = keep & lengths.isfinite()
    rows = (len(x), *[1] * (x.dim() - 1))
    # Divided, not multiplied: one over a large number loses digits. A length beyond the type gives zeros.
    quotients = x / torch.where(keep, lengths, 1.0).to(x.dtype).view(rows)
    return torch.where(keep.view(rows), quotients, 0.0)
