"""Pooling over windows that touch but do not overlap, scaled so that nothing is stretched.

Source: Bethune et al. 2024, section 4 (norm-preserving networks).
"""

from __future__ import annotations

import torch
from torch import Tensor, nn

from noisette._internal import checks
from noisette.lipschitz.protocols import NormBound, Sensitivities

F = nn.functional
_ROUNDING_OFF = 1e-6  # the norm's edge at zero is rounded off at this scale


class L2NormPool2d(nn.Module):
    """The Euclidean norm of each window of ``k`` x ``k`` pixels, per channel: (b, c, h, w) to (b, c, h // k, w // k).

    It keeps the norm of the map and, going back, that of the gradient. At zero, where a norm has no gradient, its edge
    is rounded off: norms come out smaller by 1e-6 at most.

    Raises:
        ValueError: the window is not a whole number of pixels, or (when bounds are asked for) larger than the map.

    >>> L2NormPool2d(2)(torch.tensor([[[[3.0, 0.0], [0.0, 4.0]]]])).round(decimals=4).tolist()
    [[[[5.0]]]]
    """

    def __init__(self, k: int) -> None:
        super().__init__()
        checks.count(k=k)
        self.k = k

    def forward(self, x: Tensor) -> Tensor:
        return _length(F.avg_pool2d(x.square(), self.k, divisor_override=1))

    def bound_forward(self, x: NormBound) -> NormBound:
        return NormBound(x.norm, _pooled(x.shape, self.k))

    def bound_backward(self, x: NormBound, g: float) -> tuple[float, Sensitivities]:
        return g, {}

    def extra_repr(self) -> str:
        return f"{self.k}"


class GlobalL2NormPool2d(nn.Module):
    """The Euclidean norm of each channel over all its positions: (b, c, h, w) to (b, c).

    >>> GlobalL2NormPool2d()(torch.tensor([[[[3.0, 0.0], [0.0, 4.0]]]])).round(decimals=4).tolist()
    [[5.0]]
    """

    def forward(self, x: Tensor) -> Tensor:
        return _length(x.square().sum((2, 3)))

    def bound_forward(self, x: NormBound) -> NormBound:
        return NormBound(x.norm, _pooled(x.shape, 1)[:1])

    def bound_backward(self, x: NormBound, g: float) -> tuple[float, Sensitivities]:
        return g, {}


class ScaledAvgPool2d(nn.Module):
    """``k`` times the mean of each window of ``k`` x ``k`` pixels, the most that stretches nothing.

    Maps (b, c, h, w) become (b, c, h // k, w // k).

    Raises:
        ValueError: as for :class:`L2NormPool2d`.

    >>> ScaledAvgPool2d(2)(torch.ones(1, 1, 2, 2)).tolist()
    [[[[2.0]]]]
    """

    def __init__(self, k: int) -> None:
        super().__init__()
        checks.count(k=k)
        self.k = k

    def forward(self, x: Tensor) -> Tensor:
        return F.avg_pool2d(x, self.k, divisor_override=self.k)

    def bound_forward(self, x: NormBound) -> NormBound:
        return NormBound(x.norm, _pooled(x.shape, self.k))

    def bound_backward(self, x: NormBound, g: float) -> tuple[float, Sensitivities]:
        return g, {}

    def extra_repr(self) -> str:
        return f"{self.k}"


def _length(squares: Tensor) -> Tensor:
    """A root whose value is never above the norm's and whose slope never leads above one, down to zero."""
    return torch.sqrt(squares + _ROUNDING_OFF**2) - _ROUNDING_OFF


def _pooled(shape: tuple[int, ...], k: int) -> tuple[int, ...]:
    if len(shape) != 3 or min(shape[1:]) < k:
        raise ValueError(f"windows of {k} x {k} need maps (channels, height, width) of that size, got shape {shape}")
    return shape[0], shape[1] // k, shape[2] // k
