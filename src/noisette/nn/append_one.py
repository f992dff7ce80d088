"""A layer that appends a one to each example, so that a later projection to a sphere preserves its norm."""

from __future__ import annotations

import math

from torch import Tensor, nn

from noisette.lipschitz.protocols import NormBound, Sensitivities

F = nn.functional


class AppendOne(nn.Module):
    """Appends a one to each row: (b, n) to (b, n + 1). It has no parameters.

    Rows that differ only in their norm become equal when they are projected to a sphere. With an appended one they stay
    different, and a linear layer has a bias.

    Raises:
        ValueError: a bound is computed for examples that are not rows.

    >>> import torch
    >>> AppendOne()(torch.tensor([[2.0, 3.0]])).tolist()
    [[2.0, 3.0, 1.0]]
    """

    def forward(self, x: Tensor) -> Tensor:
        return F.pad(x, (0, 1), value=1.0)

    def bound_forward(self, x: NormBound) -> NormBound:
        if len(x.shape) != 1:
            raise ValueError(f"AppendOne takes rows of numbers, got an example of shape {x.shape}")
        return NormBound(math.hypot(x.norm, 1.0), (x.shape[0] + 1,))

    def bound_backward(self, x: NormBound, g: float) -> tuple[float, Sensitivities]:
        return g, {}
