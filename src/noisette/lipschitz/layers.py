"""Layers with known Lipschitz constants."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from functools import cache

import torch
from torch import Tensor, nn

from noisette import errors as checks
from noisette.lipschitz.projections import Constrained, FrobeniusBall, Orthogonal, project
from noisette.lipschitz.propagation import NormBound, Projection, Sensitivities, Stretching, pair

__all__ = ["Abs", "BallBias", "GroupSort2", "L2NormPool2d", "LayerCentering", "PatchConv2d", "Patches"]
__all__ += ["SpectralConv2d", "SpectralLinear"]

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


class BallBias(Constrained):
    """Adds ``bias`` to the channels, divided by the square root of the number of positions that share it.

    With this division a bias of norm r, at most ``radius``, increases the norm of an example by at most r, and the norm
    of its gradient is at most that of the gradient with respect to the output. Biases make bounds grow with depth; most
    Lipschitz networks have none. ``dim`` is the channel axis: 1 for (b, c) and (b, c, h, w), -1 for sequences (b, t,
    c).

    Source: the gradient of a shared bias sums over n positions, so its norm is at most sqrt(n) times that of the
    gradient with respect to the output.

    Raises:
        ValueError: ``features`` or ``radius`` is too small, ``dim`` is the batch axis, or the input has other channels.

    >>> BallBias(4, radius=0.5).bound_forward(NormBound(1.0, (4, 7, 7))).norm <= 1.5
    True
    """

    def __init__(self, features: int, radius: float, dim: int = 1) -> None:
        checks.count(features=features)
        refuse_batch_axis([dim])
        super().__init__(FrobeniusBall(radius))
        self.radius, self.dim = radius, dim
        self.bias = nn.Parameter(torch.zeros(features))
        project(self)

    def forward(self, x: Tensor) -> Tensor:
        shape = tuple(x.shape[1:])
        axis = self._axis(shape)
        positions = math.prod(shape) // len(self.bias)
        return x + self.bias.view(-1, *[1] * (len(shape) - 1 - axis)) * positions**-0.5

    def matrices(self) -> Tensor:
        return self.bias.view(1, 1, -1)

    def _axis(self, shape: Shape) -> int:
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


class _SpectralMap(Constrained):
    """A linear map by ``weight``, whose certified norm is its Lipschitz constant."""

    weight: nn.Parameter

    def output_shape(self, shape: Shape) -> Shape:
        """Shape of one example's output; ValueError if the map cannot take an example of this shape."""
        raise NotImplementedError

    def bound_forward(self, x: NormBound) -> NormBound:
        return NormBound(self.norm * x.norm, self.output_shape(x.shape))

    def bound_backward(self, x: NormBound, g: float) -> tuple[float, Sensitivities]:
        return self.norm * g, {self.weight: g * x.norm}


class SpectralLinear(_SpectralMap):
    """A 1-Lipschitz linear map of the last axis, without bias; its weight is initialised orthogonal.

    Inputs are (b, in_features) or (b, positions, in_features), with any number of position axes.

    Guarantee: for one example whose input has a norm of at most X, over all positions, and whose gradient with respect
    to the output has a norm of at most g, the norm of the gradient of ``weight`` is at most g X.
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

    def extra_repr(self) -> str:
        return f"{self.in_features}, {self.out_features}, projection={self.projection}"


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

    def extra_repr(self) -> str:
        return f"dim={self.dim}"


class Abs(Stretching):
    """The absolute value of every element.

    >>> Abs()(torch.tensor([[3.0, -1.0]])).tolist()
    [[3.0, 1.0]]
    """

    def forward(self, x: Tensor) -> Tensor:
        return x.abs()


class LayerCentering(Stretching):
    """Subtracts from each example its own mean over ``dims``, which is an orthogonal projection.

    ``dims`` is 1 for the channels at each position of a map, (2, 3) for the positions of each channel.

    Guarantee: the batch axis is refused, because with a mean over the batch one example would change all gradients.

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

    def extra_repr(self) -> str:
        return f"dims={self.dims}"


@dataclass(frozen=True)
class Windows:
    """The arguments of a convolution, each for height and width."""

    kernel_size: Pair
    stride: Pair
    padding: Pair
    dilation: Pair

    def output(self, size: Pair) -> Pair:
        """Height and width of the output for an image of this size; ValueError if it is smaller than a window."""
        axes = zip(size, self.kernel_size, self.stride, self.padding, self.dilation, strict=True)
        height, width = (
            (side + 2 * pad - step * (taps - 1) - 1) // stride + 1 for side, taps, stride, pad, step in axes
        )
        if height < 1 or width < 1:
            raise ValueError(f"an image of {size[0]} x {size[1]} pixels is smaller than a window of the convolution")
        return height, width

    def max_overlap(self, size: Pair) -> int:
        """The largest number of windows that contain the same pixel of an image of this size."""
        axes = zip(size, self.output(size), self.kernel_size, self.stride, self.padding, self.dilation, strict=True)
        height, width = (_max_overlap(*axis) for axis in axes)
        return height * width


def windows(kernel_size: int | Pair, stride: int | Pair, padding: int | Pair, dilation: int | Pair) -> Windows:
    """Windows from the arguments of a torch convolution; ValueError or TypeError if one is outside its domain."""
    found = Windows(pair(kernel_size), pair(stride), pair(padding), pair(dilation))
    for k in (0, 1):
        checks.count(kernel_size=found.kernel_size[k], stride=found.stride[k], dilation=found.dilation[k])
    if not all(isinstance(pad, int) and pad >= 0 for pad in found.padding):
        raise ValueError(f"expected a padding of zero or more whole pixels, got padding={padding!r}")
    return found


@cache
def _max_overlap(side: int, outputs: int, taps: int, stride: int, padding: int, dilation: int) -> int:
    """The largest number of windows over one pixel, along one axis; at least 1."""
    windows_at = Counter(at * stride + tap * dilation - padding for at in range(outputs) for tap in range(taps))
    return max((count for pixel, count in windows_at.items() if 0 <= pixel < side), default=1)


class SpectralConv2d(_SpectralMap):
    """A 1-Lipschitz convolution without bias, padded with zeros.

    ``weight``, reshaped to one row per output channel, has a spectral norm of at most one; so has the part of each
    group of channels. The kernel is ``weight`` divided by the square root of the largest number of windows that contain
    one pixel, which is counted exactly for the size of each input. Sizes are numbers, or pairs for height and width.

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
        kernel_size: int | Pair,
        stride: int | Pair = 1,
        padding: int | Pair = 0,
        dilation: int | Pair = 1,
        groups: int = 1,
        projection: Projection = ORTHOGONAL,
    ) -> None:
        super().__init__(projection)
        self.windows = windows(kernel_size, stride, padding, dilation)
        checks.count(in_channels=in_channels, out_channels=out_channels, groups=groups)
        if in_channels % groups or out_channels % groups:
            raise ValueError(
                f"{groups} groups do not divide {in_channels} input and {out_channels} output channels; choose a "
                "common divisor"
            )
        self.groups = groups
        kernel = torch.empty(out_channels, in_channels // groups, *self.windows.kernel_size)
        for group in kernel.chunk(groups):
            nn.init.orthogonal_(group)
        self.weight = nn.Parameter(kernel)
        project(self)

    def forward(self, x: Tensor) -> Tensor:
        w, overlap = self.windows, self.windows.max_overlap((x.shape[-2], x.shape[-1]))
        kernel = self.weight if overlap == 1 else self.weight * overlap**-0.5
        return F.conv2d(x, kernel, None, w.stride, w.padding, w.dilation, self.groups)

    def matrices(self) -> Tensor:
        return self.weight.view(self.groups, len(self.weight) // self.groups, -1)

    def output_shape(self, shape: Shape) -> Shape:
        channels = self.weight.shape[1] * self.groups
        if len(shape) != 3 or shape[0] != channels:
            raise ValueError(
                f"the convolution takes {channels} input channels (channels, height, width), got shape {shape}"
            )
        return (len(self.weight), *self.windows.output((shape[1], shape[2])))

    def extra_repr(self) -> str:
        sizes = ", ".join(f"{name}={value}" for name, value in vars(self.windows).items())
        channels = f"{self.weight.shape[1] * self.groups}, {len(self.weight)}"
        return f"{channels}, {sizes}, groups={self.groups}, projection={self.projection}"


class PatchConv2d(SpectralConv2d):
    """A convolution over patches that do not overlap: the stride is the kernel size, so each pixel is in one window.

    Maps (b, c, h, w) become (b, out_channels, h // patch, w // patch). With at least as many output channels as a patch
    has elements, it preserves the norm of every image whose sides are multiples of the patch.

    Guarantee: as for :class:`SpectralConv2d`.

    >>> image = torch.randn(1, 1, 8, 8)
    >>> torch.allclose(PatchConv2d(1, 16, patch=4)(image).norm(), image.norm())
    True
    """

    def __init__(self, in_channels: int, out_channels: int, patch: int, projection: Projection = ORTHOGONAL) -> None:
        super().__init__(in_channels, out_channels, patch, stride=patch, projection=projection)


class Patches(Stretching):
    """The pixels of each window of an image as channels: (b, c, h, w) to (b, c size^2, output height, output width).

    Followed by a :class:`SphereInput` and a convolution with windows of one pixel
    (``SpectralConv2d(c * size**2, channels, 1)``), it is a first convolution with patches that are scaled together, for
    each example. Its bound is then that of the patches of the example, not the worst case of an image with all its
    energy where most windows overlap. Arguments are as for :class:`SpectralConv2d`.

    >>> Patches(7, stride=3)(torch.zeros(2, 1, 28, 28)).shape
    torch.Size([2, 49, 8, 8])
    """

    def __init__(self, size: int | Pair, stride: int | Pair = 1, padding: int | Pair = 0) -> None:
        super().__init__()
        self.windows = windows(size, stride, padding, 1)

    def forward(self, x: Tensor) -> Tensor:
        w = self.windows
        columns = F.unfold(x, w.kernel_size, padding=w.padding, stride=w.stride)
        return columns.unflatten(-1, w.output((x.shape[-2], x.shape[-1])))

    def output_shape(self, shape: Shape) -> Shape:
        channels, height, width = _maps(shape)
        return (channels * math.prod(self.windows.kernel_size), *self.windows.output((height, width)))

    def constant(self, shape: Shape) -> float:
        _, height, width = _maps(shape)
        return self.windows.max_overlap((height, width)) ** 0.5

    def extra_repr(self) -> str:
        return f"{self.windows.kernel_size}, stride={self.windows.stride}, padding={self.windows.padding}"


def _maps(shape: Shape) -> tuple[int, int, int]:
    if len(shape) != 3:
        raise ValueError(f"Patches takes maps (channels, height, width), got an example of shape {shape}")
    return shape[0], shape[1], shape[2]


_SMOOTHING = 1e-6  # the norm is smoothed at this scale around zero


class L2NormPool2d(Stretching):
    """The Euclidean norm of each window of ``k`` x ``k`` pixels, per channel: (b, c, h, w) to (b, c, h // k, w // k).

    It preserves the norm of the map and, backward, that of the gradient. The norm is smoothed around zero, where it has
    no gradient; this makes it smaller by at most 1e-6, and keeps the norm of its gradient at most one.

    >>> L2NormPool2d(2)(torch.tensor([[[[3.0, 0.0], [0.0, 4.0]]]])).round(decimals=4).tolist()
    [[[[5.0]]]]
    """

    def __init__(self, k: int) -> None:
        super().__init__()
        checks.count(k=k)
        self.k = k

    def forward(self, x: Tensor) -> Tensor:
        return torch.sqrt(F.avg_pool2d(x.square(), self.k, divisor_override=1) + _SMOOTHING**2) - _SMOOTHING

    def output_shape(self, shape: Shape) -> Shape:
        if len(shape) != 3 or min(shape[1:]) < self.k:
            k = self.k
            raise ValueError(f"windows of {k} x {k} need maps (channels, height, width) of that size, got {shape}")
        return shape[0], shape[1] // self.k, shape[2] // self.k

    def extra_repr(self) -> str:
        return f"{self.k}"
