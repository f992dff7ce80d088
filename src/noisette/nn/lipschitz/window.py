"""The windows of a convolution: how many fit an image, and how many of them contain the same pixel."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass
from functools import cache

from noisette import errors as checks

Pair = tuple[int, int]


@dataclass(frozen=True)
class Windows:
    """The arguments of a convolution, each for height and width."""

    kernel_size: Pair
    stride: Pair
    padding: Pair
    dilation: Pair

    def output(self, size: Pair) -> Pair:
        """Height and width of the output for an image of this size.

        Raises:
            ValueError: the image is smaller than a window.
        """
        height, width = (
            (side + 2 * pad - step * (taps - 1) - 1) // stride + 1
            for side, taps, stride, pad, step in zip(
                size, self.kernel_size, self.stride, self.padding, self.dilation, strict=True
            )
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
    """Windows from the arguments of a torch convolution.

    Raises:
        ValueError: an argument is too small, or the padding is given as a string.
        TypeError: another argument is not a whole number.
    """
    found = Windows(_pair(kernel_size), _pair(stride), _pair(padding), _pair(dilation))
    for k in (0, 1):
        checks.count(kernel_size=found.kernel_size[k], stride=found.stride[k], dilation=found.dilation[k])
    if not all(isinstance(pad, int) and pad >= 0 for pad in found.padding):
        raise ValueError(f"expected a padding of zero or more whole pixels, got padding={padding!r}")
    return found


def _pair(value: int | Pair) -> Pair:
    return value if isinstance(value, tuple) else (value, value)


@cache
def _max_overlap(side: int, outputs: int, taps: int, stride: int, padding: int, dilation: int) -> int:
    """The largest number of windows over one pixel, along one axis; at least 1."""
    windows_at = Counter(at * stride + tap * dilation - padding for at in range(outputs) for tap in range(taps))
    return max((count for pixel, count in windows_at.items() if 0 <= pixel < side), default=1)
