"""A one beside the numbers of an example, so that a sphere keeps what its length said."""

from __future__ import annotations

import math

from torch import Tensor, nn

from noisette.lipschitz.protocols import NormBound, Sensitivities

F = nn.functional


class AppendOne(nn.Module):
    """Rows (b, n) become (b, n + 1), the last number a one; it has no parameters.

    Put on a sphere, rows that differ in nothing but their length would be one and the same. With a one beside their
    numbers they stay apart, and a linear layer has its bias.

    Raises:
        ValueError: when bounds are asked for: examples are no rows.

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
