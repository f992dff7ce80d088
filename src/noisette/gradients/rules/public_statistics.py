"""Normalisation by statistics of public data that follow the weights of the layer in front.

Mean and variance of a public batch are functions of that layer's weights alone, once the public inputs of the layer are
held fixed. Their values and slopes are found beforehand, without any private example; here they enter the gradients.

Axes: b example, c channel, r numbers of one channel in a weight.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor
from torch.overrides import handle_torch_function, has_torch_function

from noisette.gradients.rules.by_channel import ByChannel, Channels
from noisette.gradients.rules.examples import Examples
from noisette.gradients.rules.forms import Dense, ExampleGradients
from noisette.gradients.rules.normalization import of_scale, reduced_channels
from noisette.gradients.rules.registry import rule


@dataclass(frozen=True)
class Statistic:
    """A statistic of each output channel of a layer over a public batch, and how it moves with the layer's weights.

    Args:
        value: shape (c,).
        slope: its derivative by the weight of its channel, (c, r).
        channels: which elements of the weight those are.
    """

    value: Tensor
    slope: Tensor
    channels: Channels


def public_mean(weight: Tensor, bias: Tensor | None, at: Statistic) -> Tensor:
    """The mean of each channel as a function of the layer's weight and bias, at their present values."""
    operands = (weight, bias)
    if has_torch_function(operands):
        return handle_torch_function(public_mean, operands, weight, bias, at)
    mean = _moving(weight, at)
    return mean if bias is None else mean + (bias - bias.detach())


def public_variance(weight: Tensor, at: Statistic) -> Tensor:
    """The variance of each channel as a function of the layer's weight, at its present value."""
    if has_torch_function((weight,)):
        return handle_torch_function(public_variance, (weight,), weight, at)
    return _moving(weight, at)


def _moving(weight: Tensor, at: Statistic) -> Tensor:
    moved = at.channels.rows((weight - weight.detach()).unsqueeze(0))[0]
    return at.value + (at.slope * moved).sum(1)


def mean_operands(gradients: Tensor, weight: Tensor, bias: Tensor | None, at: Statistic) -> list[Any]:
    """What reaches weight and bias of gradients (b, c) of the mean."""
    reached: list[Any] = [(weight, ByChannel(gradients, at.slope, at.channels))]
    return reached if bias is None else [*reached, (bias, Dense(gradients))]


def variance_operands(gradients: Tensor, weight: Tensor, at: Statistic) -> list[Any]:
    """What reaches the weight of gradients (b, c) of the variance."""
    return [(weight, ByChannel(gradients, at.slope, at.channels))]


# For an operation that derives statistics: its operands' gradients, given those of what it gave and its arguments.
OPERANDS: dict[Callable[..., Any], Callable[..., list[tuple[Tensor, ExampleGradients]]]] = {
    public_mean: mean_operands,
    public_variance: variance_operands,
}


def normalise_channels(input: Tensor, weights: Sequence[Tensor], eps: float) -> Tensor:
    """Scale times (input - mean) / sqrt(variance + eps), plus shift, with one of each for each channel on axis 1.

    Args:
        input: (b, c, ...).
        weights: mean and variance, and after them scale and shift if there are any; (c,) each.
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
    """What a channel is multiplied with."""
    scale = (weights[1] + eps).rsqrt()
    return scale if len(weights) == 2 else scale * weights[2]


@rule(normalise_channels, operand="weights")
def normalised_weights(
    examples: Examples, dy: Tensor, input: Tensor, weights: Sequence[Tensor], eps: float
) -> list[ExampleGradients]:
    """All from two sums over positions: of dy_c, and of dy_c (x_c - mean_c)."""
    mean, scale, power = weights[0], _scale(weights, eps), 1 / (weights[1] + eps)
    centre = mean.view(-1, *[1] * (input.dim() - 2))
    total = reduced_channels(examples, dy, mean).explicit()
    across = of_scale(examples, dy, input, mean, lambda x: x - centre, reduced_channels).explicit()
    found = [-scale * total, -0.5 * scale * power * across, power.sqrt() * across, total]
    return [Dense(gradients) for gradients in found[: len(weights)]]
