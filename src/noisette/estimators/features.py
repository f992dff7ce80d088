"""The fixed part of the models: what one row becomes before anything is learnt. No row plays a part in another's."""

from __future__ import annotations

import torch
from torch import Tensor, nn

_LEAST_NORM = 1e-6


class Knots(nn.Module):
    """Each number in [0, 1], and the heights of triangles above it: (b, n) to (b, n + n * knots).

    The tops of the triangles are evenly spaced, the last one at 1; at 0 all heights are zero. A linear layer behind it
    is a sum of piecewise linear functions, one of each number. Triangles are half as high as numbers, so that they
    refine a line; what is zero stays zero, so an indicator takes part only where it is one.

    Args:
        knots: number of triangles; without any, numbers stay as they are.

    >>> Knots(2)(torch.tensor([[0.25, 1.0]]))
    tensor([[0.2500, 1.0000, 0.2500, 0.0000, 0.0000, 0.5000]])
    """

    def __init__(self, knots: int) -> None:
        super().__init__()
        self.tops: Tensor
        self.register_buffer("tops", torch.arange(1, knots + 1, dtype=torch.get_default_dtype()))

    def forward(self, x: Tensor) -> Tensor:
        heights = 1 - (x.unsqueeze(2) * len(self.tops) - self.tops).abs()
        return torch.cat([x, heights.clamp(min=0).flatten(1) / 2], dim=1)


class UnitNorm(nn.Module):
    """Each row is divided by its Euclidean norm, so that no row has a larger gradient for its size alone.

    >>> UnitNorm()(torch.tensor([[3.0, 4.0], [0.0, 0.0]]))
    tensor([[0.6000, 0.8000],
            [0.0000, 0.0000]])
    """

    def forward(self, x: Tensor) -> Tensor:
        return x / x.norm(dim=1, keepdim=True).clamp(min=_LEAST_NORM)


def fixed_part(knots: int) -> nn.Sequential:
    """Knots, and rows of norm one: of each row by itself, and without anything to learn."""
    return nn.Sequential(Knots(knots), UnitNorm())


def trained_part(features: int, outputs: int, *, knots: int, hidden_layer_sizes: tuple[int, ...]) -> nn.Sequential:
    """Hidden layers of tanh units, and a linear layer whose weights begin at zero, behind :func:`fixed_part`.

    Args:
        features: numbers of a row.
        outputs: scores of a row.
        knots: triangles for each number, 0 or more.
        hidden_layer_sizes: units of each hidden layer; with none the model is linear in these features.
    """
    layers: list[nn.Module] = []
    width = features * (1 + knots)
    for units in hidden_layer_sizes:
        layers += [nn.Linear(width, units), nn.Tanh()]
        width = units
    last = nn.Linear(width, outputs)
    nn.init.zeros_(last.weight)
    nn.init.zeros_(last.bias)
    return nn.Sequential(*layers, last)
