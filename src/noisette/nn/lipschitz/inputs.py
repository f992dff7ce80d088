"""Layers that bound the norm of each example, whatever its values: the start of every norm bound.

Source: Bethune et al. 2024, section 2 (bounded inputs).
"""

from __future__ import annotations

import math

import torch
from torch import Tensor, nn

from noisette import errors as checks
from noisette.lipschitz.protocols import NormBound, Sensitivities
from noisette.nn.lipschitz.axes import per_example_norms

_NO_DIRECTION = 1e-30  # in units of the radius: a shorter example is too close to underflow to be scaled up


class _Input(nn.Module):
    """Scales each example to a norm that depends on ``x0``."""

    def __init__(self, x0: float) -> None:
        super().__init__()
        checks.positive(x0=x0)
        self.x0 = x0

    def extra_repr(self) -> str:
        return f"x0={self.x0:g}"


class BoundedInput(_Input):
    """Scales each example down to a Euclidean norm of at most ``x0``, over all its elements.

    It is the first layer of a model. An example with an element that is not finite becomes zeros.

    Guarantee: ``x0`` must be a public constant. A maximum, mean or standard deviation of the private examples would
    disclose information about them.

    >>> BoundedInput(x0=5.0)(torch.tensor([[6.0, 8.0], [0.3, 0.4], [math.nan, 1.0]])).tolist()
    [[3.0, 4.0], [0.30000001192092896, 0.4000000059604645], [0.0, 0.0]]
    """

    def forward(self, x: Tensor) -> Tensor:
        return _project_to_ball(x, self.x0)

    def bound_forward(self, x: NormBound) -> NormBound:
        return NormBound(min(x.norm, self.x0), x.shape)

    def bound_backward(self, x: NormBound, g: float) -> tuple[float, Sensitivities]:
        return g, {}


class SphereInput(_Input):
    """Scales each example to a Euclidean norm of ``x0``, over all its elements; an example of zeros does not change.

    Bounds are tighter than behind :class:`BoundedInput`, because the norm of every example equals its bound. The map
    has no Lipschitz constant near zero, so no layer in front of it can train.

    Guarantee: as for :class:`BoundedInput`.

    >>> SphereInput(x0=5.0)(torch.tensor([[6.0, 8.0], [0.0, 0.1], [0.0, 0.0]])).tolist()
    [[3.0, 4.0], [0.0, 5.0], [0.0, 0.0]]
    """

    def forward(self, x: Tensor) -> Tensor:
        norms = per_example_norms(x) / self.x0
        return _divide(x, norms, norms > _NO_DIRECTION)

    def bound_forward(self, x: NormBound) -> NormBound:
        return NormBound(self.x0, x.shape)

    def bound_backward(self, x: NormBound, g: float) -> tuple[float, Sensitivities]:
        return math.inf, {}


class NormCap(nn.Module):
    """Scales each example down to a norm of at most ``cap`` inside a network, for instance behind a bias.

    >>> NormCap(1.0).bound_forward(NormBound(3.0, (10,))).norm
    1.0
    """

    def __init__(self, cap: float) -> None:
        super().__init__()
        checks.positive(cap=cap)
        self.cap = cap

    def forward(self, x: Tensor) -> Tensor:
        return _project_to_ball(x, self.cap)

    def bound_forward(self, x: NormBound) -> NormBound:
        return NormBound(min(x.norm, self.cap), x.shape)

    def bound_backward(self, x: NormBound, g: float) -> tuple[float, Sensitivities]:
        return g, {}

    def extra_repr(self) -> str:
        return f"{self.cap:g}"


def _project_to_ball(x: Tensor, radius: float) -> Tensor:
    """The nearest point of the ball, which is a 1-Lipschitz map; zeros for examples that are not finite."""
    norms = per_example_norms(x) / radius
    return _divide(x, norms.clamp(min=1), norms.isfinite())


def _divide(x: Tensor, divisors: Tensor, keep: Tensor) -> Tensor:
    """Each example divided by its own divisor, shape (b,); zeros where ``keep`` is false or the divisor not finite."""
    keep = keep & divisors.isfinite()
    rows = (len(x), *[1] * (x.dim() - 1))
    # A division, because the reciprocal of a large number loses digits. A divisor beyond the range of x.dtype becomes
    # infinite and gives zeros.
    quotients = x / torch.where(keep, divisors, 1.0).to(x.dtype).view(rows)
    return torch.where(keep.view(rows), quotients, 0.0)
