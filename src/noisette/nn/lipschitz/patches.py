"""Overlapping patches of an image as channels, so that they can be scaled before the first layer that trains."""

from __future__ import annotations

from torch import Tensor, nn

from noisette.lipschitz.protocols import NormBound, Sensitivities
from noisette.nn.lipschitz.window import Pair, windows


class Patches(nn.Module):
    """The pixels of each window of an image as channels: (b, c, h, w) to (b, c size^2, output height, output width).

    Followed by a :class:`SphereInput` and a convolution with windows of one pixel
    (``SpectralConv2d(c * size**2, channels, 1)``), it is a first convolution with patches that are scaled together, for
    each example. Its bound is then that of the patches of the example, not the worst case of an image with all its
    energy where most windows overlap.

    Args:
        size: size of a window, a number or a pair for height and width.
        stride: pixels between windows.
        padding: pixels of zeros on each side.

    Raises:
        ValueError: an argument is too small, or (when bounds are computed) the image is.

    >>> import torch
    >>> Patches(7, stride=3)(torch.zeros(2, 1, 28, 28)).shape
    torch.Size([2, 49, 8, 8])
    """

    def __init__(self, size: int | Pair, stride: int | Pair = 1, padding: int | Pair = 0) -> None:
        super().__init__()
        self.windows = windows(size, stride, padding, 1)

    def forward(self, x: Tensor) -> Tensor:
        columns = nn.functional.unfold(
            x, self.windows.kernel_size, padding=self.windows.padding, stride=self.windows.stride
        )
        return columns.unflatten(-1, self.windows.output((x.shape[-2], x.shape[-1])))

    def bound_forward(self, x: NormBound) -> NormBound:
        channels, size = _channels_and_size(x)
        height, width = self.windows.kernel_size
        norm = x.norm * self.windows.max_overlap(size) ** 0.5
        return NormBound(norm, (channels * height * width, *self.windows.output(size)))

    def bound_backward(self, x: NormBound, g: float) -> tuple[float, Sensitivities]:
        return g * self.windows.max_overlap(_channels_and_size(x)[1]) ** 0.5, {}

    def extra_repr(self) -> str:
        return f"{self.windows.kernel_size}, stride={self.windows.stride}, padding={self.windows.padding}"


def _channels_and_size(x: NormBound) -> tuple[int, Pair]:
    if len(x.shape) != 3:
        raise ValueError(f"Patches takes maps (channels, height, width), got an example of shape {x.shape}")
    return x.shape[0], (x.shape[1], x.shape[2])
