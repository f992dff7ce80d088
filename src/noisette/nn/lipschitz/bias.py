"""A bias of bounded norm."""

from __future__ import annotations

import math

import torch
from torch import Tensor, nn

from noisette import errors as checks
from noisette.lipschitz.project import project
from noisette.lipschitz.projections import FrobeniusBall
from noisette.lipschitz.protocols import NormBound, Sensitivities
from noisette.nn.lipschitz.axes import example_axis, refuse_batch_axis
from noisette.nn.lipschitz.constrained import ConstrainedModule


class BallBias(ConstrainedModule):
    """Adds ``bias`` to the channels, divided by the square root of the number of positions that share it.

    With this division a bias of norm r increases the norm of an example by at most r, and the norm of its gradient is
    at most that of the gradient with respect to the output. Biases make bounds grow with depth; most Lipschitz networks
    have none.

    Args:
        features: number of channels.
        radius: bound on the norm of the bias.
        dim: the channel axis: 1 for (b, c) and (b, c, h, w), -1 for sequences (b, t, c).

    Source: the gradient of a shared bias sums over n positions, so its norm is at most sqrt(n) times that of the
    gradient with respect to the output.

    Raises:
        ValueError: ``features`` or ``radius`` is too small, ``dim`` is the batch axis, or (when bounds are computed)
            the input has another number of channels.

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
        axis = example_axis(self.dim, shape)
        if shape[axis] != len(self.bias):
            raise ValueError(
                f"expected {len(self.bias)} channels on axis {self.dim}, the features of the bias, got shape {shape}"
            )
        return axis

    def bound_forward(self, x: NormBound) -> NormBound:
        self._axis(x.shape)
        return NormBound(x.norm + self.norm, x.shape)

    def bound_backward(self, x: NormBound, g: float) -> tuple[float, Sensitivities]:
        return g, {self.bias: g}

    def extra_repr(self) -> str:
        return f"{len(self.bias)}, radius={self.radius:g}, dim={self.dim}"
