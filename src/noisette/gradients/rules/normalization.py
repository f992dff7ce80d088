"""Scale and shift of normalisation that looks at one example at a time; batch norm only with fixed statistics."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace

import torch
from torch import Tensor

from noisette.gradients.rules.elementwise import reduced
from noisette.gradients.rules.examples import Examples
from noisette.gradients.rules.forms import Dense, ExampleGradients
from noisette.gradients.rules.registry import rule

F = torch.nn.functional
Reduce = Callable[[Examples, Tensor, Tensor], ExampleGradients]

# Numbers of a normalised input that are summed up before they leave the processor's cache.
_CACHED = 2**19


def of_scale(
    examples: Examples,
    dy: Tensor,
    input: Tensor,
    weight: Tensor,
    normalise: Callable[[Tensor], Tensor],
    reduce: Reduce,
) -> ExampleGradients:
    """What reaches the scale of a normalised input, a few examples at a time, so that no copy of the input is made."""
    folded, left_over = divmod(len(dy), examples.count)
    if examples.axis or examples.inner or left_over:
        return reduce(examples, normalise(input).mul_(dy), weight)
    rows = folded * max(1, _CACHED * examples.count // max(1, dy.numel()))
    parts = [
        reduce(replace(examples, count=len(g) // folded), normalise(x).mul_(g), weight).explicit()
        for x, g in zip(input.split(rows), dy.split(rows), strict=True)
    ]
    return Dense(torch.cat(parts))


def _channels(parameter: Tensor, dy: Tensor) -> Tensor:
    """A per-channel parameter with axes that line up with (example, channel, ...)."""
    return parameter.view(-1, *[1] * (dy.dim() - 2))


@rule(F.layer_norm, operand="weight")
def layer_norm_weight(
    examples: Examples,
    dy: Tensor,
    input: Tensor,
    normalized_shape: Sequence[int],
    weight: Tensor,
    bias: Tensor | None = None,
    eps: float = 1e-5,
) -> ExampleGradients:
    """G = sum_t dy_t x_hat_t."""
    return of_scale(examples, dy, input, weight, lambda x: F.layer_norm(x, normalized_shape, eps=eps), reduced)


@rule(F.layer_norm, operand="bias")
def layer_norm_bias(
    examples: Examples,
    dy: Tensor,
    input: Tensor,
    normalized_shape: Sequence[int],
    weight: Tensor | None,
    bias: Tensor,
    eps: float = 1e-5,
) -> ExampleGradients:
    """G = sum_t dy_t."""
    return reduced(examples, dy, bias)


@rule(F.rms_norm, operand="weight")
def rms_norm_weight(
    examples: Examples,
    dy: Tensor,
    input: Tensor,
    normalized_shape: Sequence[int],
    weight: Tensor,
    eps: float | None = None,
) -> ExampleGradients:
    """G = sum_t dy_t x_hat_t."""
    return of_scale(examples, dy, input, weight, lambda x: F.rms_norm(x, normalized_shape, eps=eps), reduced)


@rule(F.group_norm, operand="weight")
def group_norm_weight(
    examples: Examples,
    dy: Tensor,
    input: Tensor,
    num_groups: int,
    weight: Tensor,
    bias: Tensor | None = None,
    eps: float = 1e-5,
) -> ExampleGradients:
    """G_c = sum over positions of dy_c x_hat_c."""
    return of_scale(examples, dy, input, weight, lambda x: torch.group_norm(x, num_groups, eps=eps), reduced_channels)


@rule(F.group_norm, operand="bias")
def group_norm_bias(
    examples: Examples,
    dy: Tensor,
    input: Tensor,
    num_groups: int,
    weight: Tensor | None,
    bias: Tensor,
    eps: float = 1e-5,
) -> ExampleGradients:
    """G_c = sum over positions of dy_c."""
    return reduced_channels(examples, dy, bias)


@rule(F.instance_norm, operand="weight")
def instance_norm_weight(
    examples: Examples,
    dy: Tensor,
    input: Tensor,
    running_mean: Tensor | None = None,
    running_var: Tensor | None = None,
    weight: Tensor | None = None,
    bias: Tensor | None = None,
    use_input_stats: bool = True,
    momentum: float = 0.1,
    eps: float = 1e-5,
) -> ExampleGradients:
    """G_c = sum over positions of dy_c x_hat_c."""
    assert weight is not None
    _require_statistics_kept(running_mean, use_input_stats)

    def normalise(x: Tensor) -> Tensor:
        return F.instance_norm(x, running_mean, running_var, use_input_stats=use_input_stats, eps=eps)

    return of_scale(examples, dy, input, weight, normalise, reduced_channels)


@rule(F.instance_norm, operand="bias")
def instance_norm_bias(
    examples: Examples,
    dy: Tensor,
    input: Tensor,
    running_mean: Tensor | None = None,
    running_var: Tensor | None = None,
    weight: Tensor | None = None,
    bias: Tensor | None = None,
    use_input_stats: bool = True,
    momentum: float = 0.1,
    eps: float = 1e-5,
) -> ExampleGradients:
    """G_c = sum over positions of dy_c."""
    assert bias is not None
    _require_statistics_kept(running_mean, use_input_stats)
    return reduced_channels(examples, dy, bias)


def _require_statistics_kept(running_mean: Tensor | None, use_input_stats: bool) -> None:
    if use_input_stats and running_mean is not None:
        raise ValueError(
            "running statistics are computed from private data, which no noise covers; "
            "set track_running_stats=False, or call .eval() on the module"
        )


@rule(F.batch_norm, operand="weight")
def batch_norm_weight(
    examples: Examples,
    dy: Tensor,
    input: Tensor,
    running_mean: Tensor | None,
    running_var: Tensor | None,
    weight: Tensor,
    bias: Tensor | None = None,
    training: bool = False,
    momentum: float = 0.1,
    eps: float = 1e-5,
) -> ExampleGradients:
    """With fixed statistics: G_c = sum over positions of dy_c x_hat_c."""
    if training:
        raise ValueError("the statistics of the batch mix examples; use GroupNorm, or call .eval() on the module")

    def normalise(x: Tensor) -> Tensor:
        return F.batch_norm(x, running_mean, running_var, eps=eps)

    return of_scale(examples, dy, input, weight, normalise, reduced_channels)


@rule(F.batch_norm, operand="bias")
def batch_norm_bias(
    examples: Examples,
    dy: Tensor,
    input: Tensor,
    running_mean: Tensor | None,
    running_var: Tensor | None,
    weight: Tensor | None,
    bias: Tensor,
    training: bool = False,
    momentum: float = 0.1,
    eps: float = 1e-5,
) -> ExampleGradients:
    """With fixed statistics: G_c = sum over positions of dy_c."""
    if training:
        raise ValueError("the statistics of the batch mix examples; use GroupNorm, or call .eval() on the module")
    return reduced_channels(examples, dy, bias)


def reduced_channels(examples: Examples, dy: Tensor, parameter: Tensor) -> ExampleGradients:
    """What reaches a per-channel parameter of a gradient with axes (example, channel, ...)."""
    gradients = reduced(examples, dy, _channels(parameter, dy)).explicit()
    return Dense(gradients.reshape(examples.count, *parameter.shape))
