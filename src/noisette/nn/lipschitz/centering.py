"""Centring: what a norm layer does for training, without dividing and without looking at other examples."""

from __future__ import annotations

from collections.abc import Sequence

from torch import Tensor, nn

from noisette.lipschitz.protocols import NormBound, Sensitivities
from noisette.nn.lipschitz.axes import of_example, refuse_batch_axis


class LayerCentering(nn.Module):
    """Takes from each number of an example the mean over ``dims`` of that example, an orthogonal projection.

    Args:
        dims: axes of the mean: 1 for the channels of each position of a map, (2, 3) for the positions of each channel.

    Guarantee: the batch axis is refused. Centred over it, one example would move the gradients of all others.

    Raises:
        ValueError: an axis is the batch axis, or (when bounds are asked for, or called) an example has no such axis.

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
        return x - x.mean(self._axes(tuple(x.shape[1:])), keepdim=True)

    def _axes(self, shape: tuple[int, ...]) -> list[int]:
        return [1 + of_example(dim, shape) for dim in self.dims]

    def bound_forward(self, x: NormBound) -> NormBound:
        self._axes(x.shape)
        return x

    def bound_backward(self, x: NormBound, g: float) -> tuple[float, Sensitivities]:
        return g, {}

    def extra_repr(self) -> str:
        return f"dims={self.dims}"
