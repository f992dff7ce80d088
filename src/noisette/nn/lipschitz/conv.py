"""Convolutions of a Lipschitz network, whose kernels are constrained as matrices of patches by channels."""

from __future__ import annotations

import torch
from torch import Tensor, nn

from noisette._internal import checks
from noisette.lipschitz.project import project
from noisette.lipschitz.protocols import NormBound, Projection, Sensitivities
from noisette.nn.lipschitz.constrained import ORTHOGONAL, ConstrainedModule
from noisette.nn.lipschitz.window import Pair, Windows, windows


class SpectralConv2d(ConstrainedModule):
    """A convolution without bias, padded with zeros, that stretches no vector.

    ``weight``, reshaped to one row per output channel, has a spectral norm of one at most. What convolves is ``weight``
    over the square root of how many windows look at one pixel, counted exactly for the size of each input.

    Args:
        in_channels: of the maps (b, in_channels, h, w).
        out_channels: of the output.
        kernel_size: of a window; this and the next three are numbers, or pairs for height and width.
        stride: pixels between windows.
        padding: pixels of zeros at each side.
        dilation: pixels between the taps of a window.
        groups: parts of the channels that do not meet; each has a matrix of its own.
        projection: of these matrices.

    Guarantee: as for :class:`SpectralLinear`: patches of all windows together are longer than the image by that square
    root at most.
    Source: Bethune et al. 2024, appendix (reshaped kernel orthogonalisation), with the largest number of looks in place
    of their mean, which is too small at the middle of an image.

    Raises:
        ValueError: a figure is too small, or (when bounds are asked for, or called) the image is.

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
        self.groups = groups
        self.weight = nn.Parameter(orthogonal_kernel(in_channels, out_channels, self.windows, groups))
        project(self)

    def forward(self, x: Tensor) -> Tensor:
        looks = self.windows.most_looks((x.shape[-2], x.shape[-1]))
        return convolved(x, self.weight if looks == 1 else self.weight * looks**-0.5, self.windows, self.groups)

    def matrices(self) -> Tensor:
        return by_group(self.weight, self.groups)

    def bound_forward(self, x: NormBound) -> NormBound:
        return NormBound(self.norm * x.norm, output_shape(x.shape, self.weight, self.windows, self.groups))

    def bound_backward(self, x: NormBound, g: float) -> tuple[float, Sensitivities]:
        return self.norm * g, {self.weight: g * x.norm}

    def extra_repr(self) -> str:
        return f"{told(self.weight, self.windows, self.groups)}, projection={self.projection}"


class PatchConv2d(SpectralConv2d):
    """A convolution over patches that lie side by side: stride and kernel are one, so each pixel is looked at once.

    With at least as many channels out as a patch has numbers, it keeps the norm of every image whose sides are
    multiples of the patch. Maps (b, c, h, w) become (b, out_channels, h // patch, w // patch).

    Guarantee: as for :class:`SpectralConv2d`.

    >>> image = torch.randn(1, 1, 8, 8)
    >>> torch.allclose(PatchConv2d(1, 16, patch=4)(image).norm(), image.norm())
    True
    """

    def __init__(self, in_channels: int, out_channels: int, patch: int, projection: Projection = ORTHOGONAL) -> None:
        super().__init__(in_channels, out_channels, patch, stride=patch, projection=projection)


def orthogonal_kernel(in_channels: int, out_channels: int, windows: Windows, groups: int) -> Tensor:
    """A kernel whose matrix is orthogonal, for each group.

    Raises:
        ValueError: a number is below one, or groups do not divide the channels.
    """
    checks.count(in_channels=in_channels, out_channels=out_channels, groups=groups)
    if in_channels % groups or out_channels % groups:
        raise ValueError(
            f"{groups} groups do not divide {in_channels} channels in and {out_channels} out evenly; choose a divisor"
        )
    kernel = torch.empty(out_channels, in_channels // groups, *windows.kernel_size)
    for group in kernel.chunk(groups):
        nn.init.orthogonal_(group)
    return kernel


def by_group(kernel: Tensor, groups: int) -> Tensor:
    """The matrix of each group, (groups, outputs, patch), as a view."""
    return kernel.view(groups, len(kernel) // groups, -1)


def convolved(x: Tensor, kernel: Tensor, windows: Windows, groups: int) -> Tensor:
    """The plain convolution."""
    return nn.functional.conv2d(x, kernel, None, windows.stride, windows.padding, windows.dilation, groups)


def output_shape(shape: tuple[int, ...], kernel: Tensor, windows: Windows, groups: int) -> tuple[int, int, int]:
    """Shape of one example behind the convolution.

    Raises:
        ValueError: it takes no example of this shape.
    """
    channels = kernel.shape[1] * groups
    if len(shape) != 3 or shape[0] != channels:
        raise ValueError(f"the convolution takes {channels} maps (channels, height, width), got shape {shape}")
    return len(kernel), *windows.output((shape[1], shape[2]))


def told(kernel: Tensor, windows: Windows, groups: int) -> str:
    """What a convolution was made with."""
    text = ", ".join(f"{name}={value}" for name, value in vars(windows).items())
    return f"{kernel.shape[1] * groups}, {len(kernel)}, {text}, groups={groups}"
