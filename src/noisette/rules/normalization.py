"""Normalization: scale and shift of layer, group, instance and batch norms, and statistics of public data."""

import inspect
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, Self

import torch
from torch import Tensor
from torch.overrides import handle_torch_function, has_torch_function

from noisette.core import forms
from noisette.core.forms import Dense, ExampleGradients, Examples, Operation, Outer, compact, inner_product, rule
from noisette.rules.conv import KernelGradients, operations_are_few
from noisette.rules.linear import unbroadcast, unbroadcast_channels

F = torch.nn.functional
Reduce = Callable[[Examples, Tensor, Tensor], ExampleGradients]

_CACHED = 2**19  # elements of a normalized input that are summed before they leave the processor's cache

# Gradients that are one tensor shared by all examples, times a factor for each example and channel. They arise where
# statistics of public data depend on a weight: the derivative (slope) of a channel's statistic by the weight is the
# same for every example, and the factor is the example's gradient of that statistic.


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
        return self.scales.square() @ forms.sums_of_squares(self.slope)

    def explicit(self) -> Tensor:
        return self.channels.weights(self.scales.unsqueeze(2) * self.slope)

    def weighted_sum(self, weights: Tensor) -> Tensor:
        scales = weights.to(self.scales.dtype) @ self.scales
        return self.channels.weights((scales.unsqueeze(1) * self.slope).unsqueeze(0))[0]

    def select(self, examples: Tensor | slice) -> Self:
        return replace(self, scales=self.scales[examples])


@compact.register
def _(form: forms.Total) -> ExampleGradients:
    """Each part is compacted, because the inner products with a shared slope are known for every form."""
    if any(isinstance(part, SharedSlope) for part in form.parts):
        return forms.Total(tuple(compact(part) for part in form.parts))
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
    return (scaled * (direct.right @ shared.slope.t())).sum((1, 2))


@inner_product(KernelGradients, SharedSlope)
def _with_kernel(direct: KernelGradients, shared: SharedSlope) -> Tensor:
    """A convolution with the slope as its kernel: <G, scale slope> = sum_p scale dy_p (slope * x)_p."""
    g = direct.geometry
    if shared.channels.groups is not None:
        return _with_dense(Dense(direct.explicit()), shared)
    axes = len(g.kernel)
    kernel = shared.slope.reshape(-1, direct.shape[2], *g.kernel)
    images = torch.convolution(direct.x, kernel, None, g.stride, g.padding, g.dilation, False, [0] * axes, g.groups)
    return ((direct.dy * images).flatten(2).sum(2) * shared.scales).sum(1)


def scale_gradients(
    examples: Examples, dy: Tensor, input: Tensor, weight: Tensor, normalize: Callable[[Tensor], Tensor], reduce: Reduce
) -> ExampleGradients:
    """Gradients of the scale of a normalized input, G = sum over positions of dy times the normalized input.

    The batch is split, so that the normalized input is never held as a whole. A graph is not split: what normalizes the
    whole input is there already, in the forward pass, and a compiler makes one kernel of product and sum.
    """
    if operations_are_few():
        return reduce(examples, normalize(input).mul_(dy), weight)
    folded = len(dy) // examples.count
    rows = folded * max(1, _CACHED * examples.count // max(1, dy.numel()))
    parts = [
        reduce(Examples(len(g) // folded), normalize(x).mul_(g), weight).explicit()
        for x, g in zip(input.split(rows), dy.split(rows), strict=True)
    ]
    return Dense(torch.cat(parts))


def _register(
    operation: Operation, reduce: Reduce, normalize: Operation, check: Callable[[Mapping[str, Any]], None] | None = None
) -> None:
    """The rules of scale and shift: G_c = sum over positions of dy_c x_hat_c, and G_c = sum over positions of dy_c.

    ``reduce`` sums gradients in the shape of the input to those of scale or shift. ``normalize`` takes the operation's
    arguments without these, for parts of the batch. ``check`` refuses arguments that make examples dependent.
    """
    names = tuple(inspect.signature(operation).parameters)
    operands = [name for name in ("weight", "bias") if name in names]

    def affine(operand: str, examples: Examples, dy: Tensor, *given: Any, **named: Any) -> ExampleGradients:
        arguments = {**dict(zip(names, given, strict=False)), **named}
        if check is not None:
            check(arguments)
        if operand == "bias":
            return reduce(examples, dy, arguments["bias"])
        settings = {**arguments, **dict.fromkeys(operands)}
        input, weight = arguments["input"], arguments["weight"]
        return scale_gradients(examples, dy, input, weight, lambda x: normalize(**settings | {"input": x}), reduce)

    rule(operation, operand=operands, names=names)(affine)


def _check_instance_norm(arguments: Mapping[str, Any]) -> None:
    if arguments.get("use_input_stats", True) and arguments.get("running_mean") is not None:
        raise ValueError(
            "running statistics are computed from private data, without noise; build the module with "
            "track_running_stats=False, or call .eval() on it"
        )


def _check_batch_norm(arguments: Mapping[str, Any]) -> None:
    if arguments.get("training", False):
        raise ValueError("the statistics of the batch mix examples; use GroupNorm, or call .eval() on it")


_register(F.layer_norm, unbroadcast, F.layer_norm)
_register(F.rms_norm, unbroadcast, F.rms_norm)
# torch.group_norm, because F.group_norm refuses one example with one element in each group, which a part may be.
_register(F.group_norm, unbroadcast_channels, torch.group_norm)
_register(F.instance_norm, unbroadcast_channels, F.instance_norm, check=_check_instance_norm)
_register(F.batch_norm, unbroadcast_channels, F.batch_norm, check=_check_batch_norm)


# Statistics of a public batch that depend on the weights


@dataclass(frozen=True)
class Statistic:
    """A statistic (c,) of each channel of a layer over a public batch, and its derivative by the weight, (c, r)."""

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
    return at.value + (at.slope * at.channels.rows((weight - weight.detach()).unsqueeze(0))[0]).sum(1)


@forms.derivation(public_mean, public_variance)
def statistics_operands(weight: forms.DerivedWeight, form: ExampleGradients) -> list[tuple[Tensor, ExampleGradients]]:
    """From gradients (b, c) of a statistic to those of its operands that train."""
    gradients, (operand, *biases, at) = form.explicit(), weight.args
    found: list[tuple[Tensor, ExampleGradients]] = [(operand, SharedSlope(gradients, at.slope, at.channels))]
    found += [(bias, Dense(gradients)) for bias in biases if bias is not None]
    return [(of, gradient) for of, gradient in found if of.requires_grad]


def normalise_channels(input: Tensor, weights: Sequence[Tensor], eps: float) -> Tensor:
    """The output scale (input - mean) / sqrt(variance + eps) + shift, with one of each for each channel on axis 1.

    ``weights`` are mean and variance, followed by scale and shift if there are any; (c,) each.
    """
    operands = (input, *weights)
    if has_torch_function(operands):
        return handle_torch_function(normalise_channels, operands, input, weights, eps)
    mean, scale = weights[0], _scale(weights, eps)
    shift = -mean * scale if len(weights) == 2 else weights[3] - mean * scale
    places = [1] * (input.dim() - 2)
    return torch.addcmul(shift.view(-1, *places), input, scale.view(-1, *places))


def _scale(weights: Sequence[Tensor], eps: float) -> Tensor:
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
