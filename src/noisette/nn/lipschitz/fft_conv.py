"""A convolution whose own norm is certified, at every frequency, instead of that of its matrix of patches."""

from __future__ import annotations

import math

from torch import Tensor, nn

from noisette.lipschitz.project import project
from noisette.lipschitz.projections import FrequencyBall
from noisette.lipschitz.protocols import NormBound, Sensitivities
from noisette.nn.lipschitz.constrained import ConstrainedModule
from noisette.nn.lipschitz.conv import by_group, convolved, orthogonal_kernel, output_shape, told
from noisette.nn.lipschitz.window import Pair, windows


class FftConv2d(ConstrainedModule):
    """A convolution without bias, padded with zeros, whose kernel is divided by its norm where that exceeds one.

    The norm of the convolution itself is known nearly exactly, so it may use all of it where :class:`SpectralConv2d`
    stays below. Each projection takes a decomposition per frequency: meant for few layers of few channels.

    Args:
        in_channels: of the maps (b, in_channels, h, w).
        out_channels: of the output.
        kernel_size: of a window.
        size: height and width of the largest images it will see.
        stride: as in :class:`SpectralConv2d`, and so are those that follow.
        padding: pixels of zeros at each side.
        dilation: pixels between the taps of a window.
        groups: parts of the channels that do not meet.

    Guarantee: as for :class:`SpectralConv2d`, but one example adds up to g X sqrt(s) to the gradient, where s is the
    largest number of windows that look at one pixel: the kernel is not divided by it.
    Source: a convolution padded with zeros is a part of a circular one on a larger image, which its frequencies
    diagonalise.

    Raises:
        ValueError: a figure is too small, or (when bounds are asked for, or called) an image is larger than ``size``.

    >>> layer = FftConv2d(1, 1, 3, size=(8, 8), padding=1)
    >>> [round(delta, 4) for delta in layer.bound_backward(NormBound(2.0, (1, 8, 8)), 1.0)[1].values()]
    [6.0]
    """

    def __init__(
        self,
        in_channels: int,
        out_channels: int,
        kernel_size: int | Pair,
        size: Pair,
        stride: int | Pair = 1,
        padding: int | Pair = 0,
        dilation: int | Pair = 1,
        groups: int = 1,
    ) -> None:
        shape = windows(kernel_size, stride, padding, dilation)
        kernel = orthogonal_kernel(in_channels, out_channels, shape, groups)
        grid = size[0] + shape.reach[0], size[1] + shape.reach[1]
        super().__init__(FrequencyBall((kernel.shape[1], *shape.kernel_size), grid, shape.dilation))
        self.windows = shape
        self.size = size
        self.groups = groups
        self.weight = nn.Parameter(kernel)
        project(self)

    def forward(self, x: Tensor) -> Tensor:
        self._require_small_enough((x.shape[-2], x.shape[-1]))
        return convolved(x, self.weight, self.windows, self.groups)

    def matrices(self) -> Tensor:
        return by_group(self.weight, self.groups)

    def bound_forward(self, x: NormBound) -> NormBound:
        shape = output_shape(x.shape, self.weight, self.windows, self.groups)
        self._require_small_enough((x.shape[1], x.shape[2]))
        return NormBound(self.norm * x.norm, shape)

    def bound_backward(self, x: NormBound, g: float) -> tuple[float, Sensitivities]:
        looks = self.windows.most_looks((x.shape[1], x.shape[2]))
        return self.norm * g, {self.weight: g * x.norm * math.sqrt(looks)}

    def _require_small_enough(self, size: Pair) -> None:
        if size[0] > self.size[0] or size[1] > self.size[1]:
            raise ValueError(
                f"this FftConv2d is certified for images of {self.size[0]} x {self.size[1]} pixels, got {size[0]} x "
                f"{size[1]}; make it with a larger size"
            )

    def extra_repr(self) -> str:
        return f"{told(self.weight, self.windows, self.groups)}, size={self.size}"
