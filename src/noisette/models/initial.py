"""Initial weights."""

from __future__ import annotations

from typing import TypeVar

from torch import nn

Layer = TypeVar("Layer", nn.Linear, nn.Conv2d)


def truncated_normal(layer: Layer, std: float, bias: float = 0.0) -> Layer:
    """The layer with normal weights, cut at two deviations, and one value for all biases."""
    nn.init.trunc_normal_(layer.weight, std=std, a=-2 * std, b=2 * std)
    if layer.bias is not None:
        nn.init.constant_(layer.bias, bias)
    return layer
