"""Sums, differences, products, quotients and copies of two operands that broadcast, in any order and in place."""

from __future__ import annotations

import torch
from torch import Tensor

from noisette.core.forms import Dense, ExampleGradients, Examples, PerExampleRow
from noisette.core.registry import rewrite, rule, rule_per_operand


def unbroadcast(examples: Examples, dy: Tensor, operand: Tensor) -> ExampleGradients:
    """Per-example gradients of an operand from ``dy``, those of the operand after broadcasting to the output's shape.

    ``dy`` is summed over every axis that was broadcast but that of the examples: over t for an output with axes
    (example, t, f) and an operand (f,). Where the operand itself has the example axis (a parameter expanded to the
    batch), example i contributes to row i alone.
    """
    axis, aligned = examples.axis, (1,) * (dy.dim() - operand.dim()) + tuple(operand.shape)
    if examples.count == 1:
        return Dense(dy.sum_to_size(aligned).reshape(1, *operand.shape))
    if axis < dy.dim() and aligned[axis] > 1:
        return _per_example_rows(examples, dy, operand, aligned)
    others = [k for k in range(dy.dim()) if k != axis]  # they follow the example and position axes
    broadcast = [at + 2 for at, k in enumerate(others) if aligned[k] == 1 and dy.shape[k] > 1]
    first = examples.first(dy)
    summed = first.sum([1, *broadcast]) if first.shape[1] > 1 or broadcast else first
    return Dense(summed.reshape(examples.count, *operand.shape))


def unbroadcast_channels(examples: Examples, dy: Tensor, parameter: Tensor) -> Dense:
    """Per-example gradients (b, c) of a per-channel parameter from ``dy`` with axes (example, channel, ...)."""
    gradients = unbroadcast(examples, dy, parameter.view(-1, *[1] * (dy.dim() - 2))).explicit()
    return Dense(gradients.reshape(examples.count, *parameter.shape))


def _per_example_rows(examples: Examples, dy: Tensor, operand: Tensor, aligned: tuple[int, ...]) -> PerExampleRow:
    """Gradients of an operand that has the example axis; ``aligned`` is its shape with the output's number of axes."""
    b, axis = examples.count, examples.axis
    if dy.shape[axis] != b or aligned[axis] != b:
        raise ValueError(
            f"a weight of shape {tuple(operand.shape)} needs one row for each of the {b} examples on axis {axis} "
            "of the output"
        )
    rows = dy.sum_to_size(aligned).reshape(operand.shape)
    axis -= dy.dim() - operand.dim()
    return PerExampleRow(rows.movedim(axis, 0), torch.arange(b, device=dy.device), b, axis)


_ADD = (torch.add, Tensor.add, Tensor.__add__, Tensor.__radd__, Tensor.__iadd__, Tensor.add_)
_SUB_IN_PLACE = (Tensor.__isub__, Tensor.sub_, Tensor.subtract_)
_SUB = (torch.sub, torch.subtract, Tensor.sub, Tensor.subtract, Tensor.__sub__, *_SUB_IN_PLACE)
_MUL = (torch.mul, torch.multiply, Tensor.mul, Tensor.multiply, Tensor.__mul__, Tensor.__rmul__)
_DIV = (torch.div, torch.divide, torch.true_divide, Tensor.div, Tensor.divide, Tensor.true_divide, Tensor.__truediv__)


@rule(*_ADD, operand="other")
def add_other(examples: Examples, dy: Tensor, input: Tensor, other: Tensor, *, alpha: float = 1) -> ExampleGradients:
    """The rule of p in x + alpha p."""
    return unbroadcast(examples, alpha * dy if alpha != 1 else dy, other)


@rule(*_ADD, operand="input")
def add_input(examples: Examples, dy: Tensor, input: Tensor, other: Tensor, *, alpha: float = 1) -> ExampleGradients:
    """The rule of p in p + alpha x."""
    return unbroadcast(examples, dy, input)


@rule(*_SUB, operand="input")
def sub_input(examples: Examples, dy: Tensor, input: Tensor, other: Tensor, *, alpha: float = 1) -> ExampleGradients:
    """The rule of p in p - alpha x."""
    return unbroadcast(examples, dy, input)


@rule(*_SUB, operand="other")
def sub_other(examples: Examples, dy: Tensor, input: Tensor, other: Tensor, *, alpha: float = 1) -> ExampleGradients:
    """The rule of p in x - alpha p."""
    return unbroadcast(examples, -alpha * dy, other)


@rule(*_MUL, operand="other")
def mul_other(examples: Examples, dy: Tensor, input: Tensor, other: Tensor) -> ExampleGradients:
    """The rule of p in x * p."""
    return unbroadcast(examples, dy * input.conj(), other)


@rule(*_MUL, operand="input")
def mul_input(examples: Examples, dy: Tensor, input: Tensor, other: Tensor) -> ExampleGradients:
    """The rule of p in p * x."""
    return unbroadcast(examples, dy * other.conj(), input)


@rule_per_operand(*_DIV, operands=("input", "other"))
def div(
    operand: str, examples: Examples, dy: Tensor, input: Tensor, other: Tensor, *, rounding_mode: str | None = None
) -> ExampleGradients:
    """The rules of p in p / x and in x / p."""
    if rounding_mode is not None:
        raise ValueError(f"a quotient rounded by {rounding_mode!r} has no gradient; divide without rounding")
    if operand == "input":
        return unbroadcast(examples, dy / other, input)
    return unbroadcast(examples, -dy * input / (other * other), other)


@rewrite(torch.rsub, Tensor.__rsub__)
def sub_reflected(input: Tensor, other: Tensor, *, alpha: float = 1) -> Tensor:
    """The difference other - alpha input."""
    return torch.sub(other, input, alpha=alpha)


@rewrite(Tensor.__rtruediv__)
def div_reflected(input: Tensor, other: Tensor) -> Tensor:
    """The quotient other / input."""
    return torch.div(other, input)


@rewrite(Tensor.mul_, Tensor.multiply_, Tensor.__imul__)
def mul_in_place(input: Tensor, other: Tensor) -> Tensor:
    """A product of a copy, because the rule needs the values that are overwritten."""
    return input.copy_(torch.mul(input.clone(), other))


@rewrite(Tensor.div_, Tensor.divide_, Tensor.true_divide_, Tensor.__itruediv__)
def div_in_place(input: Tensor, other: Tensor, *, rounding_mode: str | None = None) -> Tensor:
    """A quotient of a copy, because the rule needs the values that are overwritten."""
    return input.copy_(torch.div(input.clone(), other, rounding_mode=rounding_mode))


@rule_per_operand(Tensor.copy_, operands=("input", "src"))
def copy(
    operand: str, examples: Examples, dy: Tensor, input: Tensor, src: Tensor, non_blocking: bool = False
) -> ExampleGradients:
    """The rule of p in x.copy_(p). There is none in p.copy_(x), which overwrites how p was computed from parameters."""
    if operand == "input":
        raise ValueError("data is written over it; multiply, divide or copy out of place")
    return unbroadcast(examples, dy, src)
