"""A bias of bounded length."""

from __future__ import annotations

import math

import torch
from torch import Tensor, nn

from noisette._internal import checks
from noisette.lipschitz.project import project
from noisette.lipschitz.projections import FrobeniusBall
from noisette.lipschitz.protocols import NormBound, Sensitivities
from noisette.nn.lipschitz.axes import of_example, refuse_batch_axis
from noisette.nn.lipschitz.constrained import ConstrainedModule


class BallBias(ConstrainedModule):
    """Adds one number to each channel: ``bias`` over the square root of the number of positions that share it.

    So divided, a bias of norm r makes an example longer by r at most, and one example adds no more to its gradient than
    the gradient that arrives. Biases make bounds grow with depth: most Lipschitz networks do without.

    Args:
        features: channels.
        radius: of the ball that the bias stays in.
        dim: axis of the channels: 1 for (b, c) and (b, c, h, w), -1 for sequences (b, t, c).

    Source: the gradient sums one number per position, so it is longer by the square root of their number at most.

    Raises:
        ValueError: a figure is too small, ``dim`` is the batch axis, or (when bounds are asked for) there are not as
            many channels.

    >>> BallBias(4, radius=0.5).bound_forward(NormBound(1.0, (4, 7, 7))).norm <= 1.5
    True
    """

    def __init__(self, features: int, radius: float, dim: int = 1) -> None:
        checks.count(features=features)
        refuse_batch_axis([dim])
        super().__init__(FrobeniusBall(radius))
        self.radius = radius
        self.dim = dim
        self.bias = nn.Parameter(torch.zeros(features))
        project(self)

    def forward(self, x: Tensor) -> Tensor:
        shape = tuple(x.shape[1:])
        axis = self._axis(shape)
        positions = math.prod(shape) // len(self.bias)
        ones = [1] * (len(shape) - 1 - axis)
        return x + self.bias.view(-1, *ones) * positions**-0.5

    def matrices(self) -> Tensor:
        return self.bias.view(1, 1, -1)

    def _axis(self, shape: tuple[int, ...]) -> int:
        axis = of_example(self.dim, shape)
        if shape[axis] != len(self.bias):
            raise ValueError(f"a bias of {len(self.bias)} features meets {shape[axis]} channels of shape {shape}")
        return axis

    def bound_forward(self, x: NormBound) -> NormBound:
        self._axis(x.shape)
        return NormBound(x.norm + self.norm, x.shape)

    def bound_backward(self, x: NormBound, g: float) -> tuple[float, Sensitivities]:
        return g, {self.bias: g}

    def extra_repr(self) -> str:
        return f"{len(self.bias)}, radius={self.radius:g}, dim={self.dim}"
