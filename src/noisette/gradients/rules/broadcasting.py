"""Operations on each element whose operands broadcast, left to autograd with a copy of the operand per example."""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor

from noisette.gradients.rules.by_autograd import by_expansion
from noisette.gradients.rules.examples import Examples
from noisette.gradients.rules.forms import ExampleGradients
from noisette.gradients.rules.registry import rewrite, rule

Binary = Callable[[Tensor, Tensor], Tensor]


def _register(operation: Binary, *spellings: Binary) -> None:
    """The rules of both operands."""

    @rule(operation, *spellings, operand="input")
    def binary_input(examples: Examples, dy: Tensor, input: Tensor, other: Tensor) -> ExampleGradients:
        return by_expansion(examples, dy, input, lambda copies: operation(copies, other))

    @rule(operation, *spellings, operand="other")
    def binary_other(examples: Examples, dy: Tensor, input: Tensor, other: Tensor) -> ExampleGradients:
        return by_expansion(examples, dy, other, lambda copies: operation(input, copies))


_register(torch.maximum, torch.Tensor.maximum)
_register(torch.minimum, torch.Tensor.minimum)
_register(torch.fmax, torch.Tensor.fmax)
_register(torch.fmin, torch.Tensor.fmin)
_register(torch.logaddexp, torch.Tensor.logaddexp)
_register(torch.logaddexp2, torch.Tensor.logaddexp2)
_register(torch.atan2, torch.arctan2, torch.Tensor.atan2, torch.Tensor.arctan2)

_POW = (torch.pow, torch.Tensor.pow, torch.Tensor.__pow__)
_CLAMP = (torch.clamp, torch.clip, torch.Tensor.clamp, torch.Tensor.clip)
_LERP = (torch.lerp, torch.Tensor.lerp)


@rule(*_POW, operand="input")
def pow_input(examples: Examples, dy: Tensor, input: Tensor, exponent: Tensor) -> ExampleGradients:
    """P to the power of x."""
    return by_expansion(examples, dy, input, lambda copies: torch.pow(copies, exponent))


@rule(*_POW, operand="exponent")
def pow_exponent(examples: Examples, dy: Tensor, input: Tensor, exponent: Tensor) -> ExampleGradients:
    """X to the power of p."""
    return by_expansion(examples, dy, exponent, lambda copies: torch.pow(input, copies))


@rule(torch.where, operand="input")
def where_input(examples: Examples, dy: Tensor, condition: Tensor, input: Tensor, other: Tensor) -> ExampleGradients:
    """P where the condition holds."""
    return by_expansion(examples, dy, input, lambda copies: torch.where(condition, copies, other))


@rule(torch.where, operand="other")
def where_other(examples: Examples, dy: Tensor, condition: Tensor, input: Tensor, other: Tensor) -> ExampleGradients:
    """P where the condition does not hold."""
    return by_expansion(examples, dy, other, lambda copies: torch.where(condition, input, copies))


@rewrite(torch.Tensor.where)
def where(input: Tensor, condition: Tensor, other: Tensor) -> Tensor:
    """The choice with its condition first."""
    return torch.where(condition, input, other)


@rewrite(torch.masked_fill, torch.Tensor.masked_fill)
def masked_fill(input: Tensor, mask: Tensor, value: Tensor | float) -> Tensor:
    """A choice between the value and the input."""
    return torch.where(mask, value, input)


@rule(*_CLAMP, operand="min")
def clamp_min(
    examples: Examples, dy: Tensor, input: Tensor, min: Tensor, max: Tensor | None = None
) -> ExampleGradients:
    """P where x lies below it."""
    return by_expansion(examples, dy, min, lambda copies: torch.clamp(input, copies, max))


@rule(*_CLAMP, operand="max")
def clamp_max(
    examples: Examples, dy: Tensor, input: Tensor, min: Tensor | None = None, max: Tensor | None = None
) -> ExampleGradients:
    """P where x lies above it."""
    assert max is not None
    return by_expansion(examples, dy, max, lambda copies: torch.clamp(input, min, copies))


@rule(*_LERP, operand="input")
def lerp_input(examples: Examples, dy: Tensor, input: Tensor, end: Tensor, weight: Tensor | float) -> ExampleGradients:
    """P + w (x - p)."""
    return by_expansion(examples, dy, input, lambda copies: torch.lerp(copies, end, weight))


@rule(*_LERP, operand="end")
def lerp_end(examples: Examples, dy: Tensor, input: Tensor, end: Tensor, weight: Tensor | float) -> ExampleGradients:
    """X + w (p - x)."""
    return by_expansion(examples, dy, end, lambda copies: torch.lerp(input, copies, weight))


@rule(*_LERP, operand="weight")
def lerp_weight(examples: Examples, dy: Tensor, input: Tensor, end: Tensor, weight: Tensor) -> ExampleGradients:
    """X + p (z - x)."""
    return by_expansion(examples, dy, weight, lambda copies: torch.lerp(input, end, copies))


@rewrite(torch.addcmul, torch.Tensor.addcmul)
def addcmul(input: Tensor, tensor1: Tensor, tensor2: Tensor, *, value: float = 1) -> Tensor:
    """A sum with a product."""
    return torch.add(input, torch.mul(tensor1, tensor2), alpha=value)


@rewrite(torch.addcdiv, torch.Tensor.addcdiv)
def addcdiv(input: Tensor, tensor1: Tensor, tensor2: Tensor, *, value: float = 1) -> Tensor:
    """A sum with a quotient."""
    return torch.add(input, torch.div(tensor1, tensor2), alpha=value)
