"""Elementwise operations on operands that broadcast, most by autograd with a copy of the operand per example."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import torch
from torch import Tensor

from noisette.gradients.rules.arithmetic import unbroadcast_channels
from noisette.gradients.rules.by_autograd import by_expansion
from noisette.gradients.rules.examples import Examples
from noisette.gradients.rules.forms import ExampleGradients
from noisette.gradients.rules.per_operand import rule_per_operand
from noisette.gradients.rules.registry import rewrite, rule

Binary = Callable[[Tensor, Tensor], Tensor]


def _expanded(
    examples: Examples, dy: Tensor, operation: Callable[..., Tensor], arguments: Mapping[str, Any], operand: str
) -> ExampleGradients:
    """Gradients of one argument of an elementwise operation, by its name."""
    values = list(arguments.values())
    place = list(arguments).index(operand)
    return by_expansion(
        examples, dy, values[place], lambda copies: operation(*values[:place], copies, *values[place + 1 :])
    )


def _register(operation: Binary, *spellings: Binary) -> None:
    """The rules of both operands."""

    @rule_per_operand(operation, *spellings, operands=("input", "other"))
    def binary(operand: str, examples: Examples, dy: Tensor, input: Tensor, other: Tensor) -> ExampleGradients:
        return _expanded(examples, dy, operation, {"input": input, "other": other}, operand)


_register(torch.maximum, Tensor.maximum)
_register(torch.minimum, Tensor.minimum)
_register(torch.fmax, Tensor.fmax)
_register(torch.fmin, Tensor.fmin)
_register(torch.logaddexp, Tensor.logaddexp)
_register(torch.logaddexp2, Tensor.logaddexp2)
_register(torch.atan2, torch.arctan2, Tensor.atan2, Tensor.arctan2)


@rule_per_operand(torch.pow, Tensor.pow, Tensor.__pow__, operands=("input", "exponent"))
def pow(operand: str, examples: Examples, dy: Tensor, input: Tensor, exponent: Tensor) -> ExampleGradients:
    """The rules of p in p ** x and in x ** p."""
    return _expanded(examples, dy, torch.pow, {"input": input, "exponent": exponent}, operand)


@rule_per_operand(torch.where, operands=("input", "other"))
def where(
    operand: str, examples: Examples, dy: Tensor, condition: Tensor, input: Tensor, other: Tensor
) -> ExampleGradients:
    """The rules of p in where(condition, p, x) and in where(condition, x, p)."""
    arguments = {"condition": condition, "input": input, "other": other}
    return _expanded(examples, dy, torch.where, arguments, operand)


@rewrite(Tensor.where)
def where_method(input: Tensor, condition: Tensor, other: Tensor) -> Tensor:
    """The function, which takes the condition first."""
    return torch.where(condition, input, other)


@rewrite(torch.masked_fill, Tensor.masked_fill)
def masked_fill(input: Tensor, mask: Tensor, value: Tensor | float) -> Tensor:
    """A choice between the value and the input."""
    return torch.where(mask, value, input)


@rule_per_operand(torch.clamp, torch.clip, Tensor.clamp, Tensor.clip, operands=("min", "max"))
def clamp(
    operand: str, examples: Examples, dy: Tensor, input: Tensor, min: Tensor | None = None, max: Tensor | None = None
) -> ExampleGradients:
    """The rules of p in clamp(x, min=p) and in clamp(x, max=p)."""
    return _expanded(examples, dy, torch.clamp, {"input": input, "min": min, "max": max}, operand)


@rule_per_operand(torch.lerp, Tensor.lerp, operands=("input", "end", "weight"))
def lerp(
    operand: str, examples: Examples, dy: Tensor, input: Tensor, end: Tensor, weight: Tensor | float
) -> ExampleGradients:
    """The rules of p in p + w (x - p), in x + w (p - x) and in x + p (z - x)."""
    return _expanded(examples, dy, torch.lerp, {"input": input, "end": end, "weight": weight}, operand)


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
