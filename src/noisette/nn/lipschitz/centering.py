"""Centring: the part of a norm layer that needs neither a division nor other examples."""

from __future__ import annotations

from collections.abc import Sequence

from torch import Tensor

from noisette.nn.lipschitz.axes import example_axis, refuse_batch_axis
from noisette.nn.lipschitz.one_lipschitz import OneLipschitz


class LayerCentering(OneLipschitz):
    """Subtracts from each example its own mean over ``dims``, which is an orthogonal projection.

    Args:
        dims: axes of the mean: 1 for the channels at each position of a map, (2, 3) for the positions of each channel.

    Guarantee: the batch axis is refused, because with a mean over the batch one example would change all gradients.

    Raises:
        ValueError: an axis is the batch axis, or (in a call, or when bounds are computed) an example has no such axis.

    >>> import torch
    >>> LayerCentering(1)(torch.tensor([[1.0, 2.0, 6.0], [0.0, 0.0, 3.0]])).tolist()
    [[-2.0, -1.0, 3.0], [-1.0, -1.0, 2.0]]
    """

    def __init__(self, dims: int | Sequence[int]) -> None:
        super().__init__()
        self.dims = (dims,) if isinstance(dims, int) else tuple(dims)
        refuse_batch_axis(self.dims)
        if not self.dims:
            raise ValueError("LayerCentering needs at least one axis, got none")

    def forward(self, x: Tensor) -> Tensor:
        return x - x.mean(self._batch_axes(tuple(x.shape[1:])), keepdim=True)

    def output_shape(self, shape: tuple[int, ...]) -> tuple[int, ...]:
        self._batch_axes(shape)
        return shape

    def _batch_axes(self, shape: tuple[int, ...]) -> list[int]:
        return [1 + example_axis(dim, shape) for dim in self.dims]

    def extra_repr(self) -> str:
        return f"dims={self.dims}"
