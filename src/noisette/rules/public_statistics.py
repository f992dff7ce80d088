"""Normalization by statistics of public data that depend on the weights of the preceding layer.

Mean and variance of the layer's outputs over a public batch are functions of its weights alone, if its public inputs
are held fixed. Their values and derivatives are computed beforehand, without any private example. Here they enter the
per-example gradients of those weights.

Axes: b example, c channel, r elements of one channel in a weight.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor
from torch.overrides import handle_torch_function, has_torch_function

from noisette.core.forms import Dense, DerivedWeight, ExampleGradients, Examples, derivation, rule
from noisette.rules.broadcasting import unbroadcast_channels
from noisette.rules.normalization import scale_gradients
from noisette.rules.shared_slope import Channels, SharedSlope


@dataclass(frozen=True)
class Statistic:
    """A statistic of each output channel of a layer over a public batch, and its derivative by the layer's weight.

    Args:
        value: shape (c,).
        slope: the derivative of each value by the weight of its channel, (c, r).
        channels: which elements of the weight belong to which channel.
    """

    value: Tensor
    slope: Tensor
    channels: Channels


def public_mean(weight: Tensor, bias: Tensor | None, at: Statistic) -> Tensor:
    """The mean of each channel (c,), differentiable by the layer's weight and bias at their current values."""
    operands = (weight, bias)
    if has_torch_function(operands):
        return handle_torch_function(public_mean, operands, weight, bias, at)
    mean = _linearized(weight, at)
    return mean if bias is None else mean + (bias - bias.detach())


def public_variance(weight: Tensor, at: Statistic) -> Tensor:
    """The variance of each channel (c,), differentiable by the layer's weight at its current value."""
    if has_torch_function((weight,)):
        return handle_torch_function(public_variance, (weight,), weight, at)
    return _linearized(weight, at)


def _linearized(weight: Tensor, at: Statistic) -> Tensor:
    """The value, with the slope as its derivative: the change of the weight is zero and has a gradient."""
    change = at.channels.rows((weight - weight.detach()).unsqueeze(0))[0]
    return at.value + (at.slope * change).sum(1)


def _operand_gradients(gradients: Tensor, weight: Tensor, *bias_and_statistic: Any) -> list[Any]:
    """Gradients of the weight, and of the bias if there is one, from gradients (b, c) of the mean or variance."""
    *biases, at = bias_and_statistic
    of_weight = (weight, SharedSlope(gradients, at.slope, at.channels))
    return [of_weight, *((bias, Dense(gradients)) for bias in biases if bias is not None)]


@derivation(public_mean, public_variance)
def statistics_operands(weight: DerivedWeight, form: ExampleGradients) -> list[tuple[Tensor, ExampleGradients]]:
    """From gradients (b, c) of a statistic to those of its operands that train."""
    found = _operand_gradients(form.explicit(), *weight.args)
    return [(of, gradient) for of, gradient in found if of.requires_grad]


def normalise_channels(input: Tensor, weights: Sequence[Tensor], eps: float) -> Tensor:
    """The output scale (input - mean) / sqrt(variance + eps) + shift, with one of each for each channel on axis 1.

    Args:
        input: (b, c, ...).
        weights: mean and variance, followed by scale and shift if there are any; (c,) each.
        eps: added to the variance.
    """
    operands = (input, *weights)
    if has_torch_function(operands):
        return handle_torch_function(normalise_channels, operands, input, weights, eps)
    mean, scale = weights[0], _scale(weights, eps)
    shift = -mean * scale if len(weights) == 2 else weights[3] - mean * scale
    places = [1] * (input.dim() - 2)
    return torch.addcmul(shift.view(-1, *places), input, scale.view(-1, *places))


def _scale(weights: Sequence[Tensor], eps: float) -> Tensor:
    """The factor (c,) of each channel."""
    scale = (weights[1] + eps).rsqrt()
    return scale if len(weights) == 2 else scale * weights[2]


@rule(normalise_channels, operand="weights")
def normalised_weights(
    examples: Examples, dy: Tensor, input: Tensor, weights: Sequence[Tensor], eps: float
) -> list[ExampleGradients]:
    """All are multiples of two sums over positions: of dy_c, and of dy_c (x_c - mean_c)."""
    mean, scale, power = weights[0], _scale(weights, eps), 1 / (weights[1] + eps)
    centre = mean.view(-1, *[1] * (input.dim() - 2))
    total = unbroadcast_channels(examples, dy, mean).explicit()
    across = scale_gradients(examples, dy, input, mean, lambda x: x - centre, unbroadcast_channels).explicit()
    all_gradients = [-scale * total, -0.5 * scale * power * across, power.sqrt() * across, total]
    return [Dense(gradients) for gradients in all_gradients[: len(weights)]]
