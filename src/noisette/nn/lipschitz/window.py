"""The windows of a convolution: how many there are, and how many of them look at one pixel."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass
from functools import cache

from noisette._internal import checks

Pair = tuple[int, int]


@dataclass(frozen=True)
class Windows:
    """Height and width of each figure that a convolution is made with."""

    kernel_size: Pair
    stride: Pair
    padding: Pair
    dilation: Pair

    @property
    def reach(self) -> Pair:
        """Pixels from the first tap of a window to its last."""
        return self.dilation[0] * (self.kernel_size[0] - 1), self.dilation[1] * (self.kernel_size[1] - 1)

    def output(self, size: Pair) -> Pair:
        """Height and width of the output for an image of this size.

        Raises:
            ValueError: the image is smaller than a window.
        """
        height, width = (
            (side + 2 * pad - reach - 1) // step + 1
            for side, pad, reach, step in zip(size, self.padding, self.reach, self.stride, strict=True)
        )
        if height < 1 or width < 1:
            raise ValueError(f"an image of {size[0]} x {size[1]} pixels is smaller than a window of the convolution")
        return height, width

    def most_looks(self, size: Pair) -> int:
        """In how many windows a pixel lies at most: the largest number of times it appears among the patches."""
        figures = zip(size, self.output(size), self.kernel_size, self.stride, self.padding, self.dilation, strict=True)
        height, width = (_most_looks(*axis) for axis in figures)
        return height * width


def windows(kernel_size: int | Pair, stride: int | Pair, padding: int | Pair, dilation: int | Pair) -> Windows:
    """Windows from figures as torch takes them.

    Raises:
        ValueError: a figure is too small, or the padding is in words.
        TypeError: another figure is not a whole number.
    """
    found = Windows(_pair(kernel_size), _pair(stride), _pair(padding), _pair(dilation))
    for k in (0, 1):
        checks.count(kernel_size=found.kernel_size[k], stride=found.stride[k], dilation=found.dilation[k])
    if not all(isinstance(pad, int) and pad >= 0 for pad in found.padding):
        raise ValueError(f"expected a padding of zero or more whole pixels, got padding={padding!r}")
    return found


def _pair(figure: int | Pair) -> Pair:
    return figure if isinstance(figure, tuple) else (figure, figure)


@cache
def _most_looks(side: int, outputs: int, taps: int, stride: int, padding: int, dilation: int) -> int:
    looks = Counter(at * stride + tap * dilation - padding for at in range(outputs) for tap in range(taps))
    return max((count for pixel, count in looks.items() if 0 <= pixel < side), default=1)
