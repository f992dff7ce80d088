"""1-Lipschitz convolutions, whose kernels are constrained as matrices of output channels by patches."""

from __future__ import annotations

import torch
from torch import Tensor, nn

from noisette import errors as checks
from noisette.lipschitz.project import project
from noisette.lipschitz.protocols import NormBound, Projection, Sensitivities
from noisette.nn.lipschitz.constrained import ORTHOGONAL, ConstrainedModule
from noisette.nn.lipschitz.window import Pair, windows


class SpectralConv2d(ConstrainedModule):
    """A 1-Lipschitz convolution without bias, padded with zeros.

    ``weight``, reshaped to one row per output channel, has a spectral norm of at most one. The kernel of the
    convolution is ``weight`` divided by the square root of the largest number of windows that contain one pixel, which
    is counted exactly for the size of each input.

    Args:
        in_channels: channels of the input (b, in_channels, h, w).
        out_channels: channels of the output.
        kernel_size: size of a window; this and the next three are numbers, or pairs for height and width.
        stride: pixels between windows.
        padding: pixels of zeros on each side.
        dilation: pixels between the elements of a window.
        groups: number of groups of channels that are convolved separately, each with its own matrix.
        projection: the projection of these matrices.

    Guarantee: as for :class:`SpectralLinear`, because the norm of all patches together is at most that square root
    times the norm of the image.
    Source: Bethune et al. 2024, appendix (reshaped kernel orthogonalisation), with the largest number of windows per
    pixel instead of the mean number, which is too small in the middle of an image.

    Raises:
        ValueError: an argument is too small, or (in a call, or when bounds are computed) the image is.

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
        overlap = self.windows.max_overlap((x.shape[-2], x.shape[-1]))
        kernel = self.weight if overlap == 1 else self.weight * overlap**-0.5
        w = self.windows
        return nn.functional.conv2d(x, kernel, None, w.stride, w.padding, w.dilation, self.groups)

    def matrices(self) -> Tensor:
        return self.weight.view(self.groups, len(self.weight) // self.groups, -1)

    def bound_forward(self, x: NormBound) -> NormBound:
        channels = self.weight.shape[1] * self.groups
        if len(x.shape) != 3 or x.shape[0] != channels:
            raise ValueError(
                f"the convolution takes {channels} input channels (channels, height, width), got shape {x.shape}"
            )
        return NormBound(self.norm * x.norm, (len(self.weight), *self.windows.output((x.shape[1], x.shape[2]))))

    def bound_backward(self, x: NormBound, g: float) -> tuple[float, Sensitivities]:
        return self.norm * g, {self.weight: g * x.norm}

    def extra_repr(self) -> str:
        sizes = ", ".join(f"{name}={value}" for name, value in vars(self.windows).items())
        channels = f"{self.weight.shape[1] * self.groups}, {len(self.weight)}"
        return f"{channels}, {sizes}, groups={self.groups}, projection={self.projection}"


class PatchConv2d(SpectralConv2d):
    """A convolution over patches that do not overlap: the stride is the kernel size, so each pixel is in one window.

    With at least as many output channels as a patch has elements, it preserves the norm of every image whose sides are
    multiples of the patch. Maps (b, c, h, w) become (b, out_channels, h // patch, w // patch).

    Guarantee: as for :class:`SpectralConv2d`.

    >>> image = torch.randn(1, 1, 8, 8)
    >>> torch.allclose(PatchConv2d(1, 16, patch=4)(image).norm(), image.norm())
    True
    """

    def __init__(self, in_channels: int, out_channels: int, patch: int, projection: Projection = ORTHOGONAL) -> None:
        super().__init__(in_channels, out_channels, patch, stride=patch, projection=projection)
