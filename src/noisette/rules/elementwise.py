"""Scales and shifts by a raw parameter: x + p, x - p, x * p, x / p, in either order and with any broadcasting."""

from __future__ import annotations

import torch
from torch import Tensor

from noisette.rules._examples import Examples
from noisette.rules._registry import rule
from noisette.rules.gradients import Dense, ExampleGradients, PerExampleRow


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
_SUB = (torch.sub, torch.Tensor.sub, torch.Tensor.__sub__)
_MUL = (torch.mul, torch.Tensor.mul, torch.Tensor.__mul__, torch.Tensor.__rmul__)
_DIV = (torch.div, torch.Tensor.div, torch.Tensor.__truediv__)


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
def div_other(examples: Examples, dy: Tensor, input: Tensor, other: Tensor) -> ExampleGradients:
    """X / p."""
    return reduced(examples, -dy * input / (other * other), other)


@rule(*_DIV, operand="input")
def div_input(examples: Examples, dy: Tensor, input: Tensor, other: Tensor) -> ExampleGradients:
    """P / x."""
    return reduced(examples, dy / other, input)
