"""Elementwise operations on operands that broadcast, most by autograd with a copy of the operand per example."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence

import torch
from torch import Tensor

from noisette.core.forms import ExampleGradients, Examples
from noisette.core.registry import rewrite, rule, rule_per_operand
from noisette.rules.arithmetic import unbroadcast_channels
from noisette.rules.by_autograd import by_expansion


def _register(
    operation: Callable[..., Tensor],
    *spellings: Callable[..., Tensor],
    names: tuple[str, ...] = ("input", "other"),
    operands: Sequence[str] = ("input", "other"),
) -> None:
    """The rules of these operands of an elementwise operation, whose arguments have these names."""

    def expanded(operand: str, examples: Examples, dy: Tensor, arguments: Mapping[str, Tensor]) -> ExampleGradients:
        values = [arguments.get(name) for name in names]
        k = names.index(operand)
        return by_expansion(
            examples, dy, arguments[operand], lambda copies: operation(*values[:k], copies, *values[k + 1 :])
        )

    expanded.__name__ = operation.__name__
    rule_per_operand(operation, *spellings, operands=operands, names=names)(expanded)


_register(torch.maximum, Tensor.maximum)
_register(torch.minimum, Tensor.minimum)
_register(torch.fmax, Tensor.fmax)
_register(torch.fmin, Tensor.fmin)
_register(torch.logaddexp, Tensor.logaddexp)
_register(torch.logaddexp2, Tensor.logaddexp2)
_register(torch.atan2, torch.arctan2, Tensor.atan2, Tensor.arctan2)
_BASE = ("input", "exponent")
_register(torch.pow, Tensor.pow, Tensor.__pow__, names=_BASE, operands=_BASE)
_register(torch.where, names=("condition", "input", "other"))
_CLAMPS = (torch.clip, Tensor.clamp, Tensor.clip)
_register(torch.clamp, *_CLAMPS, names=("input", "min", "max"), operands=("min", "max"))
_LERP = ("input", "end", "weight")  # input + weight (end - input)
_register(torch.lerp, Tensor.lerp, names=_LERP, operands=_LERP)


@rewrite(Tensor.where)
def where_method(input: Tensor, condition: Tensor, other: Tensor) -> Tensor:
    """The function, which takes the condition first."""
    return torch.where(condition, input, other)


@rewrite(torch.masked_fill, Tensor.masked_fill)
def masked_fill(input: Tensor, mask: Tensor, value: Tensor | float) -> Tensor:
    """A choice between the value and the input."""
    return torch.where(mask, value, input)


@rule(torch.prelu, Tensor.prelu, operand="weight")
def prelu_weight(examples: Examples, dy: Tensor, input: Tensor, weight: Tensor) -> ExampleGradients:
    """G_c = sum over positions of dy_c min(x_c, 0), with channels on axis 1."""
    return unbroadcast_channels(examples, dy * input.clamp(max=0), weight)


@rewrite(torch.addcmul, Tensor.addcmul)
def addcmul(input: Tensor, tensor1: Tensor, tensor2: Tensor, *, value: float = 1) -> Tensor:
    """A sum with a product."""
    return torch.add(input, torch.mul(tensor1, tensor2), alpha=value)


@rewrite(torch.addcdiv, Tensor.addcdiv)
def addcdiv(input: Tensor, tensor1: Tensor, tensor2: Tensor, *, value: float = 1) -> Tensor:
    """A sum with a quotient."""
    return torch.add(input, torch.div(tensor1, tensor2), alpha=value)
