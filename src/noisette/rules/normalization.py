"""Scale and shift of normalization over the features of one example; batch norm only with fixed statistics."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import torch
from torch import Tensor

from noisette.core.forms import Dense, ExampleGradients, Examples, Operation, rule_per_operand
from noisette.rules.autotune import operations_are_few
from noisette.rules.broadcasting import unbroadcast, unbroadcast_channels

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
    ``reduce`` sums gradients in the shape of the input to those of the weight. A graph is not split: what normalizes
    the whole input is there already, in the forward pass, and a compiler makes one kernel of product and sum.
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
    operation: Operation,
    reduce: Reduce,
    normalize: Operation,
    operands: Sequence[str] = ("weight", "bias"),
    check: Callable[[Mapping[str, Any]], None] | None = None,
) -> None:
    """The rules of scale and shift: G_c = sum over positions of dy_c x_hat_c, and G_c = sum over positions of dy_c.

    Args:
        operation: the normalization.
        reduce: sums gradients in the shape of the input to those of the scale or shift.
        normalize: takes the arguments of the operation; called for parts of the batch, without scale and shift.
        operands: the scale, and the shift if the operation has one.
        check: refuses arguments with which examples are not independent.
    """

    def affine(operand: str, examples: Examples, dy: Tensor, arguments: Mapping[str, Any]) -> ExampleGradients:
        if check is not None:
            check(arguments)
        if operand == "bias":
            return reduce(examples, dy, arguments["bias"])
        settings = {**arguments, **dict.fromkeys(operands)}
        input, weight = arguments["input"], arguments["weight"]
        return scale_gradients(examples, dy, input, weight, lambda x: normalize(**settings | {"input": x}), reduce)

    affine.__name__ = operation.__name__
    rule_per_operand(operation, operands=operands, names=tuple(inspect.signature(operation).parameters))(affine)


def _check_instance_norm(arguments: Mapping[str, Any]) -> None:
    if arguments.get("use_input_stats", True) and arguments.get("running_mean") is not None:
        raise ValueError(
            "running statistics are computed from private data, without noise; "
            "build the module with track_running_stats=False, or call .eval() on it"
        )


def _check_batch_norm(arguments: Mapping[str, Any]) -> None:
    if arguments.get("training", False):
        raise ValueError("the statistics of the batch mix examples; use GroupNorm, or call .eval() on it")


_register(F.layer_norm, unbroadcast, F.layer_norm)
_register(F.rms_norm, unbroadcast, F.rms_norm, operands=("weight",))
# torch.group_norm, because F.group_norm refuses one example with one element in each group, which a part may be.
_register(F.group_norm, unbroadcast_channels, torch.group_norm)
_register(F.instance_norm, unbroadcast_channels, F.instance_norm, check=_check_instance_norm)
_register(F.batch_norm, unbroadcast_channels, F.batch_norm, check=_check_batch_norm)
