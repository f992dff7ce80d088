"""Scales and shifts by a raw parameter: x + p, x - p, x * p, x / p, in any order, in place, with any broadcasting."""

from __future__ import annotations

import torch
from torch import Tensor

from noisette.gradients.rules.examples import Examples
from noisette.gradients.rules.forms import Dense, ExampleGradients, PerExampleRow
from noisette.gradients.rules.registry import rewrite, rule


def reduced(examples: Examples, dy: Tensor, operand: Tensor) -> ExampleGradients:
    """What reaches ``operand`` of a gradient in the output's shape: summed over every axis that was broadcast.

    The example axis stays. Where the operand itself has that axis (a parameter expanded to the batch), example i
    reaches its row i alone.
    """
    axis, aligned = examples.axis, (1,) * (dy.dim() - operand.dim()) + tuple(operand.shape)
    if examples.count == 1:
        return Dense(dy.sum_to_size(aligned).reshape(1, *operand.shape))
    if axis < dy.dim() and aligned[axis] > 1:
        return _own_rows(examples, dy, operand, aligned)
    others = [k for k in range(dy.dim()) if k != axis]  # they follow the example and position axes
    broadcast = [at + 2 for at, k in enumerate(others) if aligned[k] == 1 and dy.shape[k] > 1]
    first = examples.first(dy)
    summed = first.sum([1, *broadcast]) if first.shape[1] > 1 or broadcast else first
    return Dense(summed.reshape(examples.count, *operand.shape))


def _own_rows(examples: Examples, dy: Tensor, operand: Tensor, aligned: tuple[int, ...]) -> ExampleGradients:
    b, axis = examples.count, examples.axis
    if dy.shape[axis] != b or aligned[axis] != b:
        raise ValueError(
            f"a weight of shape {tuple(operand.shape)} meets the {b} examples on axis {axis} of the output"
        )
    rows = dy.sum_to_size(aligned).reshape(operand.shape)
    owned = axis - (dy.dim() - operand.dim())
    return PerExampleRow(rows.movedim(owned, 0), torch.arange(b, device=dy.device), b, owned)


_ADD = (
    torch.add,
    torch.Tensor.add,
    torch.Tensor.__add__,
    torch.Tensor.__radd__,
    torch.Tensor.__iadd__,
    torch.Tensor.add_,
)
_SUB = (
    torch.sub,
    torch.subtract,
    torch.Tensor.sub,
    torch.Tensor.subtract,
    torch.Tensor.__sub__,
    torch.Tensor.__isub__,
    torch.Tensor.sub_,
    torch.Tensor.subtract_,
)
_MUL = (
    torch.mul,
    torch.multiply,
    torch.Tensor.mul,
    torch.Tensor.multiply,
    torch.Tensor.__mul__,
    torch.Tensor.__rmul__,
)
_DIV = (
    torch.div,
    torch.divide,
    torch.true_divide,
    torch.Tensor.div,
    torch.Tensor.divide,
    torch.Tensor.true_divide,
    torch.Tensor.__truediv__,
)


@rule(*_ADD, operand="other")
def add_other(examples: Examples, dy: Tensor, input: Tensor, other: Tensor, *, alpha: float = 1) -> ExampleGradients:
    """X + alpha p."""
    return reduced(examples, alpha * dy if alpha != 1 else dy, other)


@rule(*_ADD, operand="input")
def add_input(examples: Examples, dy: Tensor, input: Tensor, other: Tensor, *, alpha: float = 1) -> ExampleGradients:
    """P + alpha x."""
    return reduced(examples, dy, input)


@rule(*_SUB, operand="other")
def sub_other(examples: Examples, dy: Tensor, input: Tensor, other: Tensor, *, alpha: float = 1) -> ExampleGradients:
    """X - alpha p."""
    return reduced(examples, -alpha * dy, other)


@rule(*_SUB, operand="input")
def sub_input(examples: Examples, dy: Tensor, input: Tensor, other: Tensor, *, alpha: float = 1) -> ExampleGradients:
    """P - alpha x."""
    return reduced(examples, dy, input)


@rule(*_MUL, operand="other")
def mul_other(examples: Examples, dy: Tensor, input: Tensor, other: Tensor) -> ExampleGradients:
    """X * p."""
    return reduced(examples, dy * input, other)


@rule(*_MUL, operand="input")
def mul_input(examples: Examples, dy: Tensor, input: Tensor, other: Tensor) -> ExampleGradients:
    """P * x."""
    return reduced(examples, dy * other, input)


@rule(*_DIV, operand="other")
def div_other(
    examples: Examples, dy: Tensor, input: Tensor, other: Tensor, *, rounding_mode: str | None = None
) -> ExampleGradients:
    """X / p."""
    _require_unrounded(rounding_mode)
    return reduced(examples, -dy * input / (other * other), other)


@rule(*_DIV, operand="input")
def div_input(
    examples: Examples, dy: Tensor, input: Tensor, other: Tensor, *, rounding_mode: str | None = None
) -> ExampleGradients:
    """P / x."""
    _require_unrounded(rounding_mode)
    return reduced(examples, dy / other, input)


def _require_unrounded(rounding_mode: str | None) -> None:
    if rounding_mode is not None:
        raise ValueError(f"a quotient rounded by {rounding_mode!r} has no gradient; divide without rounding")


@rewrite(torch.rsub, torch.Tensor.__rsub__)
def sub_reflected(input: Tensor, other: Tensor, *, alpha: float = 1) -> Tensor:
    """The difference with its operands in their own order."""
    return torch.sub(other, input, alpha=alpha)


@rewrite(torch.Tensor.__rtruediv__)
def div_reflected(input: Tensor, other: Tensor) -> Tensor:
    """The quotient with its operands in their own order."""
    return torch.div(other, input)


@rewrite(torch.Tensor.mul_, torch.Tensor.multiply_, torch.Tensor.__imul__)
def mul_in_place(input: Tensor, other: Tensor) -> Tensor:
    """A product of a copy, because the rule needs what is overwritten."""
    return input.copy_(torch.mul(input.clone(), other))


@rewrite(
    torch.Tensor.div_,
    torch.Tensor.divide_,
    torch.Tensor.true_divide_,
    torch.Tensor.__itruediv__,
)
def div_in_place(input: Tensor, other: Tensor, *, rounding_mode: str | None = None) -> Tensor:
    """A quotient of a copy, because the rule needs what is overwritten."""
    return input.copy_(torch.div(input.clone(), other, rounding_mode=rounding_mode))


@rule(torch.Tensor.copy_, operand="src")
def copy_src(
    examples: Examples, dy: Tensor, input: Tensor, src: Tensor, non_blocking: bool = False
) -> ExampleGradients:
    """P written over x."""
    return reduced(examples, dy, src)


@rule(torch.Tensor.copy_, operand="input")
def copy_input(
    examples: Examples, dy: Tensor, input: Tensor, src: Tensor, non_blocking: bool = False
) -> ExampleGradients:
    """X written over p has no rule: the way back from p to its parameters is overwritten too."""
    raise ValueError("data is written over it; multiply, divide or copy out of place")
