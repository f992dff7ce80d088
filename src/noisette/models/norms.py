"""The norms that networks can be built with: functions of the outputs to normalise."""

from __future__ import annotations

from collections.abc import Callable

from torch import nn

Norm = Callable[[int, int], nn.Module]  # (channels, axes of positions after the channels: 2 for images, else 0)


def batch_norm(channels: int, axes: int) -> nn.Module:
    """Batch norm, which mixes examples; :func:`noisette.nn.convert_batch_norm` replaces it."""
    return nn.BatchNorm2d(channels) if axes else nn.BatchNorm1d(channels)


def layer_norm(channels: int, axes: int) -> nn.Module:
    """Norm over all values of one example, with a scale and a shift for each channel."""
    return nn.GroupNorm(1, channels) if axes else nn.LayerNorm(channels)
