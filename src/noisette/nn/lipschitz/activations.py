"""Activations that preserve the norm of their input: sorting, and the absolute value.

Source: Anil et al. 2019, "Sorting Out Lipschitz Function Approximation"; Bethune et al. 2024, section 4.
"""

from __future__ import annotations

import torch
from torch import Tensor

from noisette.nn.lipschitz.axes import example_axis, refuse_batch_axis
from noisette.nn.lipschitz.one_lipschitz import OneLipschitz


class _ChannelSort(OneLipschitz):
    """Sorts along the channel axis ``dim``."""

    def __init__(self, dim: int = 1) -> None:
        super().__init__()
        refuse_batch_axis([dim])
        self.dim = dim

    def output_shape(self, shape: tuple[int, ...]) -> tuple[int, ...]:
        example_axis(self.dim, shape)
        return shape

    def extra_repr(self) -> str:
        return f"dim={self.dim}"


class GroupSort2(_ChannelSort):
    """Sorts pairs of neighbouring channels, the smaller first.

    Args:
        dim: the channel axis: 1 for (b, c) and for maps (b, c, h, w), -1 for sequences (b, t, c).

    Raises:
        ValueError: ``dim`` is the batch axis, or (in a call, or when bounds are computed) channels are odd in number.

    >>> GroupSort2()(torch.tensor([[3.0, 1.0, -2.0, 5.0]])).tolist()
    [[1.0, 3.0, -2.0, 5.0]]
    """

    def forward(self, x: Tensor) -> Tensor:
        shape = self.output_shape(tuple(x.shape[1:]))
        axis = 1 + example_axis(self.dim, shape)
        first, second = x.unflatten(axis, (-1, 2)).unbind(axis + 1)
        ordered = torch.stack((torch.minimum(first, second), torch.maximum(first, second)), axis + 1)
        return ordered.flatten(axis, axis + 1)

    def output_shape(self, shape: tuple[int, ...]) -> tuple[int, ...]:
        if shape[example_axis(self.dim, shape)] % 2:
            raise ValueError(f"GroupSort2 sorts pairs, but axis {self.dim} of an example of shape {shape} is odd")
        return shape


class FullSort(_ChannelSort):
    """Sorts all channels, the smallest first.

    Args:
        dim: the channel axis, as for :class:`GroupSort2`.

    Raises:
        ValueError: ``dim`` is the batch axis, or (in a call, or when bounds are computed) there is no such axis.

    >>> FullSort()(torch.tensor([[3.0, 1.0, -2.0]])).tolist()
    [[-2.0, 1.0, 3.0]]
    """

    def forward(self, x: Tensor) -> Tensor:
        return x.sort(1 + example_axis(self.dim, tuple(x.shape[1:]))).values


class Abs(OneLipschitz):
    """The absolute value of every element.

    >>> Abs()(torch.tensor([[3.0, -1.0]])).tolist()
    [[3.0, 1.0]]
    """

    def forward(self, x: Tensor) -> Tensor:
        return x.abs()
