"""Activations that keep the norm of what passes: sorting, and the absolute value.

Source: Anil et al. 2019, "Sorting Out Lipschitz Function Approximation"; Bethune et al. 2024, section 4.
"""

from __future__ import annotations

import torch
from torch import Tensor, nn

from noisette.lipschitz.protocols import NormBound, Sensitivities
from noisette.nn.lipschitz.axes import of_example, refuse_batch_axis


class GroupSort2(nn.Module):
    """Sorts pairs of neighbouring channels, the smaller first.

    Args:
        dim: axis of the channels: 1 for (b, c) and for maps (b, c, h, w), -1 for sequences (b, t, c).

    Raises:
        ValueError: ``dim`` is the batch axis, or (when bounds are asked for, or called) channels do not pair up.

    >>> GroupSort2()(torch.tensor([[3.0, 1.0, -2.0, 5.0]])).tolist()
    [[1.0, 3.0, -2.0, 5.0]]
    """

    def __init__(self, dim: int = 1) -> None:
        super().__init__()
        refuse_batch_axis([dim])
        self.dim = dim

    def forward(self, x: Tensor) -> Tensor:
        axis = 1 + self._axis(tuple(x.shape[1:]))
        first, second = x.unflatten(axis, (-1, 2)).unbind(axis + 1)
        ordered = torch.stack((torch.minimum(first, second), torch.maximum(first, second)), axis + 1)
        return ordered.flatten(axis, axis + 1)

    def _axis(self, shape: tuple[int, ...]) -> int:
        axis = of_example(self.dim, shape)
        if shape[axis] % 2:
            raise ValueError(f"GroupSort2 sorts pairs, but axis {self.dim} of an example of shape {shape} is odd")
        return axis

    def bound_forward(self, x: NormBound) -> NormBound:
        self._axis(x.shape)
        return x

    def bound_backward(self, x: NormBound, g: float) -> tuple[float, Sensitivities]:
        return g, {}

    def extra_repr(self) -> str:
        return f"dim={self.dim}"


class FullSort(nn.Module):
    """Sorts all channels, the smallest first.

    Args:
        dim: axis of the channels, as for :class:`GroupSort2`.

    Raises:
        ValueError: ``dim`` is the batch axis, or (when bounds are asked for) there is no such axis.

    >>> FullSort()(torch.tensor([[3.0, 1.0, -2.0]])).tolist()
    [[-2.0, 1.0, 3.0]]
    """

    def __init__(self, dim: int = 1) -> None:
        super().__init__()
        refuse_batch_axis([dim])
        self.dim = dim

    def forward(self, x: Tensor) -> Tensor:
        return x.sort(1 + of_example(self.dim, tuple(x.shape[1:]))).values

    def bound_forward(self, x: NormBound) -> NormBound:
        of_example(self.dim, x.shape)
        return x

    def bound_backward(self, x: NormBound, g: float) -> tuple[float, Sensitivities]:
        return g, {}

    def extra_repr(self) -> str:
        return f"dim={self.dim}"


class Abs(nn.Module):
    """The absolute value of every number.

    >>> Abs()(torch.tensor([[3.0, -1.0]])).tolist()
    [[3.0, 1.0]]
    """

    def forward(self, x: Tensor) -> Tensor:
        return x.abs()

    def bound_forward(self, x: NormBound) -> NormBound:
        return x

    def bound_backward(self, x: NormBound, g: float) -> tuple[float, Sensitivities]:
        return g, {}
