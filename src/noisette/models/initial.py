"""Initial weights."""

from __future__ import annotations

from torch import nn


def truncated_normal(layer: nn.Linear | nn.Conv2d, deviation: float, bias: float = 0.0) -> nn.Module:
    """The layer with normal weights, cut at two deviations, and one value for all biases."""
    nn.init.trunc_normal_(layer.weight, std=deviation, a=-2 * deviation, b=2 * deviation)
    if layer.bias is not None:
        nn.init.constant_(layer.bias, bias)
    return layer
