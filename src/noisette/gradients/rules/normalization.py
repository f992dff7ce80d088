"""Scale and shift of normalization over the features of one example; batch norm only with fixed statistics."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace

import torch
from torch import Tensor

from noisette.gradients.rules.arithmetic import unbroadcast, unbroadcast_channels
from noisette.gradients.rules.examples import Examples
from noisette.gradients.rules.forms import Dense, ExampleGradients
from noisette.gradients.rules.per_operand import rule_per_operand
from noisette.gradients.rules.registry import rule

F = torch.nn.functional
Reduce = Callable[[Examples, Tensor, Tensor], ExampleGradients]

# Elements of a normalized input that are summed before they leave the processor's cache.
_CACHED = 2**19


def scale_gradients(
    examples: Examples,
    dy: Tensor,
    input: Tensor,
    weight: Tensor,
    normalize: Callable[[Tensor], Tensor],
    reduce: Reduce,
) -> ExampleGradients:
    """Gradients of the scale of a normalized input, G = sum over positions of dy times the normalized input.

    The batch is split, so that the normalized input is never held as a whole: ``normalize`` takes a part of it, and
    ``reduce`` sums gradients in the shape of the input to those of the weight.
    """
    folded, left_over = divmod(len(dy), examples.count)
    if examples.axis or examples.inner or left_over:
        return reduce(examples, normalize(input).mul_(dy), weight)
    rows = folded * max(1, _CACHED * examples.count // max(1, dy.numel()))
    parts = [
        reduce(replace(examples, count=len(g) // folded), normalize(x).mul_(g), weight).explicit()
        for x, g in zip(input.split(rows), dy.split(rows), strict=True)
    ]
    return Dense(torch.cat(parts))


def _affine_gradients(
    operand: str,
    examples: Examples,
    dy: Tensor,
    input: Tensor,
    weight: Tensor | None,
    bias: Tensor | None,
    normalize: Callable[[Tensor], Tensor],
    reduce: Reduce,
) -> ExampleGradients:
    """Gradients of the scale ``weight`` or of the shift ``bias``; other arguments as of :func:`scale_gradients`."""
    if operand == "bias":
        assert bias is not None
        return reduce(examples, dy, bias)
    assert weight is not None
    return scale_gradients(examples, dy, input, weight, normalize, reduce)


@rule_per_operand(F.layer_norm, operands=("weight", "bias"))
def layer_norm(
    operand: str,
    examples: Examples,
    dy: Tensor,
    input: Tensor,
    normalized_shape: Sequence[int],
    weight: Tensor | None = None,
    bias: Tensor | None = None,
    eps: float = 1e-5,
) -> ExampleGradients:
    """Scale: G = sum_t dy_t x_hat_t. Shift: G = sum_t dy_t."""
    return _affine_gradients(
        operand, examples, dy, input, weight, bias, lambda x: F.layer_norm(x, normalized_shape, eps=eps), unbroadcast
    )


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
    return scale_gradients(examples, dy, input, weight, lambda x: F.rms_norm(x, normalized_shape, eps=eps), unbroadcast)


@rule_per_operand(F.group_norm, operands=("weight", "bias"))
def group_norm(
    operand: str,
    examples: Examples,
    dy: Tensor,
    input: Tensor,
    num_groups: int,
    weight: Tensor | None = None,
    bias: Tensor | None = None,
    eps: float = 1e-5,
) -> ExampleGradients:
    """Scale: G_c = sum over positions of dy_c x_hat_c. Shift: G_c = sum over positions of dy_c."""

    def normalize(x: Tensor) -> Tensor:
        return torch.group_norm(x, num_groups, eps=eps)

    return _affine_gradients(operand, examples, dy, input, weight, bias, normalize, unbroadcast_channels)


@rule_per_operand(F.instance_norm, operands=("weight", "bias"))
def instance_norm(
    operand: str,
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
    """As :func:`group_norm`, with one channel per group or with fixed statistics."""
    if use_input_stats and running_mean is not None:
        raise ValueError(
            "running statistics are computed from private data, without noise; "
            "set track_running_stats=False, or call .eval() on the module"
        )

    def normalize(x: Tensor) -> Tensor:
        return F.instance_norm(x, running_mean, running_var, use_input_stats=use_input_stats, eps=eps)

    return _affine_gradients(operand, examples, dy, input, weight, bias, normalize, unbroadcast_channels)


@rule_per_operand(F.batch_norm, operands=("weight", "bias"))
def batch_norm(
    operand: str,
    examples: Examples,
    dy: Tensor,
    input: Tensor,
    running_mean: Tensor | None,
    running_var: Tensor | None,
    weight: Tensor | None = None,
    bias: Tensor | None = None,
    training: bool = False,
    momentum: float = 0.1,
    eps: float = 1e-5,
) -> ExampleGradients:
    """As :func:`group_norm`, with fixed statistics of each channel."""
    if training:
        raise ValueError("the statistics of the batch mix examples; use GroupNorm, or call .eval() on the module")

    def normalize(x: Tensor) -> Tensor:
        return F.batch_norm(x, running_mean, running_var, eps=eps)

    return _affine_gradients(operand, examples, dy, input, weight, bias, normalize, unbroadcast_channels)
