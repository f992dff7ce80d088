"""The two factors of a convolution kernel's gradients: images, and the gradients of the output.

Axes: b example, c channel of the images, o channel of the gradients, then axes of the image, positions or offsets.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from typing import Self

import torch
from torch import Tensor

F = torch.nn.functional


@dataclass(frozen=True)
class Geometry:
    """Kernel size, stride, padding and dilation of each axis, and the number of groups."""

    kernel: tuple[int, ...]
    stride: tuple[int, ...]
    padding: tuple[int, ...]
    dilation: tuple[int, ...]
    groups: int

    @property
    def offsets(self) -> int:
        return math.prod(self.kernel)


@dataclass(frozen=True)
class KernelFactors:
    """Images, and gradients of the convolution's output on them."""

    x: Tensor  # (b, c, *image)
    dy: Tensor  # (b, o, *positions)
    geometry: Geometry
    weight: torch.Size

    @property
    def shape(self) -> tuple[int, ...]:
        """Of all gradients together: (b, o, c / groups, *kernel)."""
        b, c = self.x.shape[:2]
        return (b, self.dy.shape[1], c // self.geometry.groups, *self.geometry.kernel)

    @property
    def factors_size(self) -> int:
        """Number of elements of the factors."""
        return self.x.numel() + self.dy.numel()

    @property
    def size_of_an_example(self) -> int:
        """Number of elements of one example's factors."""
        return self.x.shape[1:].numel() + self.dy.shape[1:].numel()

    @property
    def positions(self) -> int:
        return self.dy.shape[2:].numel()

    @property
    def unfolded_size(self) -> int:
        """Number of elements of one example's unfolded image."""
        return self.x.shape[1] * self.geometry.offsets * self.positions

    def select(self, examples: Tensor | slice) -> Self:
        return replace(self, x=self.x[examples], dy=self.dy[examples])

    def split(self, size: int) -> list[Self]:
        """The same for this many examples at a time."""
        pairs = zip(self.x.split(size), self.dy.split(size), strict=True)
        return [replace(self, x=x, dy=dy) for x, dy in pairs]

    def padded(self) -> Tensor:
        """The images with zeros around them."""
        padding = self.geometry.padding
        return F.pad(self.x, [n for n in reversed(padding) for _ in range(2)]) if any(padding) else self.x

    def unfolded(self) -> Tensor:
        """Patches of the images, axes (example and group, channel and offset, position).

        ``as_strided`` reads pixel stride p + dilation u for output position p and kernel offset u without a copy of the
        image: a step of p moves ``stride`` pixels, a step of u moves ``dilation`` pixels.
        """
        g, padded = self.geometry, self.padded()
        b, c = padded.shape[:2]
        strides = padded.stride()[2:]
        offsets = [d * s for d, s in zip(g.dilation, strides, strict=True)]
        steps = [d * s for d, s in zip(g.stride, strides, strict=True)]
        windows = padded.as_strided(
            (b, c, *g.kernel, *self.dy.shape[2:]), (*padded.stride()[:2], *offsets, *steps), padded.storage_offset()
        )
        return windows.reshape(b * g.groups, c // g.groups * g.offsets, self.positions)


def backend_gradient(x: Tensor, dy: Tensor, g: Geometry) -> Tensor:
    """The backend's own weight gradient (o, c / groups, *kernel), summed over the batch."""
    weight = x.new_empty(dy.shape[1], x.shape[1] // g.groups, *g.kernel)
    return torch.ops.aten.convolution_backward(
        dy, x, weight, None, g.stride, g.padding, g.dilation, False, [0] * len(g.kernel), g.groups, [False, True, False]
    )[1]
