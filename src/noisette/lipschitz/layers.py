"""Layers with known Lipschitz constants."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Sequence
from functools import cache

import torch
from torch import Tensor, nn

from noisette import errors as checks
from noisette.lipschitz.projections import Constrained, Orthogonal, project
from noisette.lipschitz.propagation import NormBound, Projection, Stretching  # noqa: F401 - in doctests

__all__ = ["GroupSort2", "LayerCentering", "PatchConv2d", "SpectralConv2d", "SpectralLinear"]

F = nn.functional
Shape = tuple[int, ...]
Pair = tuple[int, int]
ORTHOGONAL = Orthogonal()


def refuse_batch_axis(dims: Iterable[int]) -> None:
    """Raise ValueError if an axis is 0, along which an operation would mix examples."""
    if 0 in dims:
        raise ValueError(
            "axis 0 holds the examples of a batch, which must not mix; give an axis of one example, from 1"
        )


def example_axis(dim: int, shape: Shape) -> int:
    """The index of a batch's axis ``dim`` in the shape of one example; ValueError if there is no such axis."""
    axis = dim - 1 if dim > 0 else dim + len(shape)
    if not 0 <= axis < len(shape):
        raise ValueError(f"an example of shape {shape} has no axis {dim}")
    return axis


def per_example_norms(x: Tensor) -> Tensor:
    """The Euclidean norm of each example over all its elements, in double precision, shape (b,)."""
    return torch.linalg.vector_norm(x.flatten(1) if x.dim() > 1 else x.unsqueeze(1), dim=1, dtype=torch.float64)


class SpectralLinear(Constrained):
    """A 1-Lipschitz linear map of the last axis, without bias; its weight is initialised orthogonal.

    Inputs are (b, in_features) or (b, positions, in_features), with any number of position axes.

    Guarantee: for one example whose input has a norm of at most X, over all positions, and whose gradient at the output
    has a norm of at most g, the norm of the gradient of ``weight`` is at most g X.
    Source: Bethune et al. 2024, section 3. The gradient is G'X, and ||G'X||_F <= ||G||_F ||X||.

    >>> layer = SpectralLinear(4, 2)
    >>> (layer.weight @ layer.weight.T).detach().abs().round(decimals=4).tolist()
    [[1.0, 0.0], [0.0, 1.0]]
    >>> [round(delta, 4) for delta in layer.bound_backward(NormBound(3.0, (4,)), 2.0)[1].values()]
    [6.0]
    """

    def __init__(self, in_features: int, out_features: int, projection: Projection = ORTHOGONAL) -> None:
        checks.count(in_features=in_features, out_features=out_features)
        super().__init__(projection)
        self.in_features, self.out_features = in_features, out_features
        self.weight = nn.Parameter(nn.init.orthogonal_(torch.empty(out_features, in_features)))
        project(self)

    def forward(self, x: Tensor) -> Tensor:
        return F.linear(x, self.weight)

    def matrices(self) -> Tensor:
        return self.weight.unsqueeze(0)

    def output_shape(self, shape: Shape) -> Shape:
        if not shape or shape[-1] != self.in_features:
            raise ValueError(f"SpectralLinear takes {self.in_features} features on its last axis, got shape {shape}")
        return (*shape[:-1], self.out_features)


class GroupSort2(Stretching):
    """Sorts pairs of neighbouring channels, the smaller first; they are even in number.

    ``dim`` is the channel axis: 1 for (b, c) and for maps (b, c, h, w), -1 for sequences (b, t, c).

    >>> GroupSort2()(torch.tensor([[3.0, 1.0, -2.0, 5.0]])).tolist()
    [[1.0, 3.0, -2.0, 5.0]]
    """

    def __init__(self, dim: int = 1) -> None:
        super().__init__()
        refuse_batch_axis([dim])
        self.dim = dim

    def forward(self, x: Tensor) -> Tensor:
        shape = self.output_shape(tuple(x.shape[1:]))
        axis = 1 + example_axis(self.dim, shape)
        first, second = x.unflatten(axis, (-1, 2)).unbind(axis + 1)
        ordered = torch.stack((torch.minimum(first, second), torch.maximum(first, second)), axis + 1)
        return ordered.flatten(axis, axis + 1)

    def output_shape(self, shape: Shape) -> Shape:
        if shape[example_axis(self.dim, shape)] % 2:
            raise ValueError(f"GroupSort2 sorts pairs, but axis {self.dim} of an example of shape {shape} is odd")
        return shape


class LayerCentering(Stretching):
    """Subtracts from each example its own mean over ``dims``, which is an orthogonal projection.

    ``dims`` is 1 for the channels at each position of a map, (2, 3) for the positions of each channel, never 0.

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
        return x - x.mean([1 + example_axis(dim, tuple(x.shape[1:])) for dim in self.dims], keepdim=True)

    def output_shape(self, shape: Shape) -> Shape:
        for dim in self.dims:
            example_axis(dim, shape)
        return shape


@cache
def _max_overlap(side: int, outputs: int, taps: int, stride: int, padding: int) -> int:
    """The largest number of windows over one pixel, along one axis; at least 1."""
    windows_at = Counter(at * stride + tap - padding for at in range(outputs) for tap in range(taps))
    return max((count for pixel, count in windows_at.items() if 0 <= pixel < side), default=1)


class SpectralConv2d(Constrained):
    """A 1-Lipschitz convolution without bias, padded with zeros.

    ``weight``, reshaped to one row per output channel, has a spectral norm of at most one. The kernel is ``weight``
    divided by the square root of the largest number of windows that contain one pixel, which is counted exactly for the
    size of each input.

    Guarantee: as for :class:`SpectralLinear`, because the norm of all patches together is at most that square root
    times the norm of the image.
    Source: Bethune et al. 2024, appendix (reshaped kernel orthogonalisation), with the largest number of windows per
    pixel instead of the mean number, which is too small in the middle of an image.

    >>> layer = SpectralConv2d(2, 4, 3, padding=1)
    >>> layer(torch.zeros(5, 2, 8, 8)).shape, layer.bound_forward(NormBound(3.0, (2, 8, 8))).shape
    (torch.Size([5, 4, 8, 8]), (4, 8, 8))
    """

    def __init__(
        self,
        in_channels: int,
        out_channels: int,
        kernel_size: int,
        stride: int = 1,
        padding: int = 0,
        projection: Projection = ORTHOGONAL,
    ) -> None:
        super().__init__(projection)
        self.kernel_size, self.stride, self.padding = kernel_size, stride, padding
        checks.count(in_channels=in_channels, out_channels=out_channels, kernel_size=kernel_size, stride=stride)
        checks.whole(padding=padding)
        kernel = torch.empty(out_channels, in_channels, kernel_size, kernel_size)
        self.weight = nn.Parameter(nn.init.orthogonal_(kernel))
        project(self)

    def forward(self, x: Tensor) -> Tensor:
        overlap = self.max_overlap((x.shape[-2], x.shape[-1]))
        kernel = self.weight if overlap == 1 else self.weight * overlap**-0.5
        return F.conv2d(x, kernel, None, self.stride, self.padding)

    def matrices(self) -> Tensor:
        return self.weight.view(1, len(self.weight), -1)

    def max_overlap(self, size: Pair) -> int:
        """The largest number of windows that contain the same pixel of an image of this size."""
        axes = zip(size, self._outputs(size), strict=True)
        height, width = (_max_overlap(*axis, self.kernel_size, self.stride, self.padding) for axis in axes)
        return height * width

    def output_shape(self, shape: Shape) -> Shape:
        channels = self.weight.shape[1]
        if len(shape) != 3 or shape[0] != channels:
            raise ValueError(
                f"the convolution takes {channels} input channels (channels, height, width), got shape {shape}"
            )
        return (len(self.weight), *self._outputs((shape[1], shape[2])))

    def _outputs(self, size: Pair) -> Pair:
        height, width = ((side + 2 * self.padding - self.kernel_size) // self.stride + 1 for side in size)
        if height < 1 or width < 1:
            raise ValueError(f"an image of {size[0]} x {size[1]} pixels is smaller than a window of the convolution")
        return height, width


class PatchConv2d(SpectralConv2d):
    """A convolution over patches that do not overlap: the stride is the kernel size, so each pixel is in one window.

    Maps (b, c, h, w) become (b, out_channels, h // patch, w // patch). With at least as many output channels as a patch
    has elements, it preserves the norm of every image whose sides are multiples of the patch.

    >>> image = torch.randn(1, 1, 8, 8)
    >>> torch.allclose(PatchConv2d(1, 16, patch=4)(image).norm(), image.norm())
    True
    """

    def __init__(self, in_channels: int, out_channels: int, patch: int, projection: Projection = ORTHOGONAL) -> None:
        super().__init__(in_channels, out_channels, patch, stride=patch, projection=projection)
