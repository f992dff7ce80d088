"""Scales and shifts by a raw parameter: x + p, x - p, x * p, x / p, in either order and with any broadcasting."""

from __future__ import annotations

import torch
from torch import Tensor

from noisette.rules._registry import examples_first, rule
from noisette.rules.gradients import Dense, ExampleGradients, PerExampleRow


def reduced(b: int, dy: Tensor, operand: Tensor) -> ExampleGradients:
    """What reaches ``operand`` of a gradient in the output's shape: summed over every axis that was broadcast.

    The example axis stays. Where the operand itself has that axis (a parameter expanded to the batch), example i
    reaches its row i alone.
    """
    aligned = (1,) * (dy.dim() - operand.dim()) + tuple(operand.shape)
    if aligned[0] > 1:
        return _own_rows(b, dy, operand, aligned)
    broadcast = [axis + 1 for axis in range(1, dy.dim()) if aligned[axis] == 1 and dy.shape[axis] > 1]
    dy = examples_first(b, dy)
    summed = dy.sum([1, *broadcast]) if dy.shape[1] > 1 or broadcast else dy
    return Dense(summed.reshape(b, *operand.shape))


def _own_rows(b: int, dy: Tensor, operand: Tensor, aligned: tuple[int, ...]) -> ExampleGradients:
    if dy.shape[0] != b or operand.shape[0] != b:
        raise ValueError(f"a weight of shape {tuple(operand.shape)} meets the {b} examples on its first axis")
    broadcast = [axis for axis in range(1, dy.dim()) if aligned[axis] == 1 and dy.shape[axis] > 1]
    rows = dy.sum(broadcast, keepdim=True) if broadcast else dy
    return PerExampleRow(rows.reshape(operand.shape), torch.arange(b, device=dy.device), b)


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
def add_other(b: int, dy: Tensor, input: Tensor, other: Tensor, *, alpha: float = 1) -> ExampleGradients:
    """X + alpha p."""
    return reduced(b, alpha * dy if alpha != 1 else dy, other)


@rule(*_ADD, operand="input")
def add_input(b: int, dy: Tensor, input: Tensor, other: Tensor, *, alpha: float = 1) -> ExampleGradients:
    """P + alpha x."""
    return reduced(b, dy, input)


@rule(*_SUB, operand="other")
def sub_other(b: int, dy: Tensor, input: Tensor, other: Tensor, *, alpha: float = 1) -> ExampleGradients:
    """X - alpha p."""
    return reduced(b, -alpha * dy, other)


@rule(*_SUB, operand="input")
def sub_input(b: int, dy: Tensor, input: Tensor, other: Tensor, *, alpha: float = 1) -> ExampleGradients:
    """P - alpha x."""
    return reduced(b, dy, input)


@rule(*_MUL, operand="other")
def mul_other(b: int, dy: Tensor, input: Tensor, other: Tensor) -> ExampleGradients:
    """X * p."""
    return reduced(b, dy * input, other)


@rule(*_MUL, operand="input")
def mul_input(b: int, dy: Tensor, input: Tensor, other: Tensor) -> ExampleGradients:
    """P * x."""
    return reduced(b, dy * other, input)


@rule(*_DIV, operand="other")
def div_other(b: int, dy: Tensor, input: Tensor, other: Tensor) -> ExampleGradients:
    """X / p."""
    return reduced(b, -dy * input / (other * other), other)


@rule(*_DIV, operand="input")
def div_input(b: int, dy: Tensor, input: Tensor, other: Tensor) -> ExampleGradients:
    """P / x."""
    return reduced(b, dy / other, input)
