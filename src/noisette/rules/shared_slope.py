"""Gradients that are one tensor shared by all examples, times a factor for each example and channel.

They arise where statistics of public data depend on a weight: the derivative (slope) of a channel's statistic by the
weight is the same for every example, and the factor is the example's gradient of that statistic.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from noisette.core.forms import (
    Dense,
    ExampleGradients,
    Outer,
    Total,
    compact,
    inner_product,
    sums_of_squares,
)
from noisette.rules.kernel_gradients import KernelGradients


@dataclass(frozen=True)
class Channels:
    """Which elements of a weight belong to which output channel.

    Linear layers and convolutions have one row per channel. A transposed convolution has its channels on the second
    axis, and this axis is repeated for each of its ``groups``.
    """

    weight: torch.Size
    groups: int | None = None  # of a transposed convolution

    def rows(self, weights: Tensor) -> Tensor:
        """Tensors shaped like the weight, (n, *weight), as (n, channels, elements of one channel)."""
        if self.groups is None:
            return weights.reshape(len(weights), self.weight[0], -1)
        split = weights.reshape(len(weights), self.groups, -1, self.weight[1], self.weight[2:].numel())
        return split.transpose(2, 3).reshape(len(weights), self.groups * self.weight[1], -1)

    def weights(self, rows: Tensor) -> Tensor:
        """The inverse of :meth:`rows`."""
        if self.groups is None:
            return rows.reshape(len(rows), *self.weight)
        split = rows.reshape(len(rows), self.groups, self.weight[1], -1, self.weight[2:].numel())
        return split.transpose(2, 3).reshape(len(rows), *self.weight)


@dataclass(frozen=True)
class SharedSlope:
    """G_i,c = scales[i, c] slope[c] for example i and channel c."""

    scales: Tensor  # (b, channels)
    slope: Tensor  # (channels, elements of one channel)
    channels: Channels

    def squared_norms(self) -> Tensor:
        return self.scales.square() @ sums_of_squares(self.slope)

    def explicit(self) -> Tensor:
        return self.channels.weights(self.scales.unsqueeze(2) * self.slope)

    def weighted_sum(self, weights: Tensor) -> Tensor:
        scales = weights.to(self.scales.dtype) @ self.scales
        return self.channels.weights((scales.unsqueeze(1) * self.slope).unsqueeze(0))[0]

    def select(self, examples: Tensor | slice) -> SharedSlope:
        return SharedSlope(self.scales[examples], self.slope, self.channels)

    @property
    def has_one_row(self) -> bool:
        """All channels have the same slope, stored once."""
        return self.slope.stride(0) == 0


@compact.register
def _(form: Total) -> ExampleGradients:
    """Each part is compacted, because the inner products with a shared slope are known for every form."""
    if any(isinstance(part, SharedSlope) for part in form.parts):
        return Total(tuple(compact(part) for part in form.parts))
    return form


@inner_product(SharedSlope, SharedSlope)
def _with_shared_slope(one: SharedSlope, other: SharedSlope) -> Tensor:
    return (one.scales * other.scales) @ (one.slope * other.slope).sum(1)


@inner_product(Dense, SharedSlope)
def _with_dense(direct: Dense, shared: SharedSlope) -> Tensor:
    rows = shared.channels.rows(direct.gradients).transpose(0, 1)
    across = torch.bmm(rows, shared.slope.unsqueeze(2))  # (channels, b, 1)
    return (across.squeeze(2).t() * shared.scales).sum(1)


@inner_product(Outer, SharedSlope)
def _with_outer(direct: Outer, shared: SharedSlope) -> Tensor:
    scaled = direct.left * shared.scales.unsqueeze(1)  # (b, t, channels)
    if shared.has_one_row:
        return (scaled.sum(2) * (direct.right @ shared.slope[0])).sum(1)
    return (scaled * (direct.right @ shared.slope.t())).sum((1, 2))


@inner_product(KernelGradients, SharedSlope)
def _with_kernel(direct: KernelGradients, shared: SharedSlope) -> Tensor:
    """A convolution with the slope as its kernel: <G, scale slope> = sum_p scale dy_p (slope * x)_p."""
    g = direct.geometry
    if shared.channels.groups is not None:
        return _with_dense(Dense(direct.explicit()), shared)
    one = shared.has_one_row and g.groups == 1
    kernel = (shared.slope[:1] if one else shared.slope).reshape(-1, direct.shape[2], *g.kernel)
    images = torch.convolution(
        direct.x, kernel, None, g.stride, g.padding, g.dilation, False, [0] * len(g.kernel), g.groups
    )
    scaled = (direct.dy * shared.scales[(..., *[None] * len(g.kernel))]).flatten(2)
    return ((scaled.sum(1, keepdim=True) if one else scaled) * images.flatten(2)).sum((1, 2))
