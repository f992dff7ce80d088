"""1-Lipschitz pooling over windows that do not overlap.

Source: Bethune et al. 2024, section 4 (norm-preserving networks).
"""

from __future__ import annotations

import torch
from torch import Tensor, nn

from noisette import errors as checks
from noisette.nn.lipschitz.one_lipschitz import OneLipschitz

F = nn.functional
_SMOOTHING = 1e-6  # the norm is smoothed at this scale around zero


class _WindowPool(OneLipschitz):
    """Pools windows of ``k`` x ``k`` pixels, per channel."""

    def __init__(self, k: int) -> None:
        super().__init__()
        checks.count(k=k)
        self.k = k

    def output_shape(self, shape: tuple[int, ...]) -> tuple[int, ...]:
        return _pooled(shape, self.k)

    def extra_repr(self) -> str:
        return f"{self.k}"


class L2NormPool2d(_WindowPool):
    """The Euclidean norm of each window of ``k`` x ``k`` pixels, per channel: (b, c, h, w) to (b, c, h // k, w // k).

    It preserves the norm of the map and, backward, that of the gradient. The norm is smoothed around zero, where it has
    no gradient; this makes it smaller by at most 1e-6.

    Raises:
        ValueError: the window is not a whole number of pixels, or (when bounds are computed) larger than the map.

    >>> L2NormPool2d(2)(torch.tensor([[[[3.0, 0.0], [0.0, 4.0]]]])).round(decimals=4).tolist()
    [[[[5.0]]]]
    """

    def forward(self, x: Tensor) -> Tensor:
        return _smooth_sqrt(F.avg_pool2d(x.square(), self.k, divisor_override=1))


class GlobalL2NormPool2d(OneLipschitz):
    """The Euclidean norm of each channel over all its positions: (b, c, h, w) to (b, c).

    >>> GlobalL2NormPool2d()(torch.tensor([[[[3.0, 0.0], [0.0, 4.0]]]])).round(decimals=4).tolist()
    [[5.0]]
    """

    def forward(self, x: Tensor) -> Tensor:
        return _smooth_sqrt(x.square().sum((2, 3)))

    def output_shape(self, shape: tuple[int, ...]) -> tuple[int, ...]:
        return _pooled(shape, 1)[:1]


class ScaledAvgPool2d(_WindowPool):
    """``k`` times the mean of each window of ``k`` x ``k`` pixels, the largest multiple that is 1-Lipschitz.

    Maps (b, c, h, w) become (b, c, h // k, w // k).

    Raises:
        ValueError: as for :class:`L2NormPool2d`.

    >>> ScaledAvgPool2d(2)(torch.ones(1, 1, 2, 2)).tolist()
    [[[[2.0]]]]
    """

    def forward(self, x: Tensor) -> Tensor:
        return F.avg_pool2d(x, self.k, divisor_override=self.k)


def _smooth_sqrt(squares: Tensor) -> Tensor:
    """A norm from its square, never larger than the true norm and with a gradient of norm at most one, also at zero."""
    return torch.sqrt(squares + _SMOOTHING**2) - _SMOOTHING


def _pooled(shape: tuple[int, ...], k: int) -> tuple[int, ...]:
    if len(shape) != 3 or min(shape[1:]) < k:
        raise ValueError(f"windows of {k} x {k} need maps (channels, height, width) of that size, got shape {shape}")
    return shape[0], shape[1] // k, shape[2] // k
