"""``einsum`` with any equation, and other products that can be written as one."""

from __future__ import annotations

from collections.abc import Sequence
from string import ascii_lowercase as LETTERS
from typing import Any

import torch
from torch import Tensor

from noisette.gradients.rules.contraction import contracted
from noisette.gradients.rules.elementwise import reduced
from noisette.gradients.rules.examples import Examples
from noisette.gradients.rules.forms import ExampleGradients
from noisette.gradients.rules.registry import rewrite, rule

F = torch.nn.functional


@rewrite(torch.einsum)
def einsum(equation: str, *operands: Any) -> Any:
    """The operands one by one, not in a list."""
    return torch.einsum(equation, *operands[0]) if type(operands[0]) in (list, tuple) else NotImplemented


@rule(torch.einsum, operand="first")
def einsum_first(
    examples: Examples,
    dy: Tensor,
    equation: str,
    first: Tensor,
    second: Tensor | None = None,
    third: Tensor | None = None,
    fourth: Tensor | None = None,
) -> ExampleGradients:
    """G = dy times the other operands, summed over every letter that the operand does not have."""
    return contracted(examples, dy, equation, _present(first, second, third, fourth), 0)


@rule(torch.einsum, operand="second")
def einsum_second(
    examples: Examples,
    dy: Tensor,
    equation: str,
    first: Tensor,
    second: Tensor,
    third: Tensor | None = None,
    fourth: Tensor | None = None,
) -> ExampleGradients:
    """G = dy times the other operands, summed over every letter that the operand does not have."""
    return contracted(examples, dy, equation, _present(first, second, third, fourth), 1)


@rule(torch.einsum, operand="third")
def einsum_third(
    examples: Examples,
    dy: Tensor,
    equation: str,
    first: Tensor,
    second: Tensor,
    third: Tensor,
    fourth: Tensor | None = None,
) -> ExampleGradients:
    """G = dy times the other operands, summed over every letter that the operand does not have."""
    return contracted(examples, dy, equation, _present(first, second, third, fourth), 2)


@rule(torch.einsum, operand="fourth")
def einsum_fourth(
    examples: Examples, dy: Tensor, equation: str, first: Tensor, second: Tensor, third: Tensor, fourth: Tensor
) -> ExampleGradients:
    """G = dy times the other operands, summed over every letter that the operand does not have."""
    return contracted(examples, dy, equation, _present(first, second, third, fourth), 3)


def _present(*operands: Tensor | None) -> list[Tensor]:
    return [operand for operand in operands if operand is not None]


Axes = int | Sequence[Sequence[int]]


@rule(torch.tensordot, operand="a")
def tensordot_a(
    examples: Examples, dy: Tensor, a: Tensor, b: Tensor, dims: Axes = 2, out: Tensor | None = None
) -> ExampleGradients:
    """G = dy times b, summed over every axis that a does not have."""
    return contracted(examples, dy, _tensordot(a, b, dims), [a, b], 0)


@rule(torch.tensordot, operand="b")
def tensordot_b(
    examples: Examples, dy: Tensor, a: Tensor, b: Tensor, dims: Axes = 2, out: Tensor | None = None
) -> ExampleGradients:
    """G = dy times a, summed over every axis that b does not have."""
    return contracted(examples, dy, _tensordot(a, b, dims), [a, b], 1)


def _tensordot(a: Tensor, b: Tensor, dims: Axes) -> str:
    """The equation of ``tensordot``."""
    of_a, of_b = (range(a.dim() - dims, a.dim()), range(dims)) if isinstance(dims, int) else dims
    left, right = list(LETTERS[: a.dim()]), list(LETTERS[a.dim() : a.dim() + b.dim()])
    for i, j in zip(of_a, of_b, strict=True):
        right[j] = left[i]
    free = [letter for letter in left + right if (letter in left) != (letter in right)]
    return f"{''.join(left)},{''.join(right)}->{''.join(free)}"


@rule(torch.inner, Tensor.inner, operand="input")
def inner_input(examples: Examples, dy: Tensor, input: Tensor, other: Tensor) -> ExampleGradients:
    """G = dy times the other factor, summed over its rows."""
    return contracted(examples, dy, _tensordot(input, other, ([-1], [-1])), [input, other], 0)


@rule(torch.inner, Tensor.inner, operand="other")
def inner_other(examples: Examples, dy: Tensor, input: Tensor, other: Tensor) -> ExampleGradients:
    """G = dy times the input, summed over its rows."""
    return contracted(examples, dy, _tensordot(input, other, ([-1], [-1])), [input, other], 1)


_BILINEAR = "...i,...j,oij->...o"


@rule(F.bilinear, operand="weight")
def bilinear_weight(
    examples: Examples, dy: Tensor, input1: Tensor, input2: Tensor, weight: Tensor, bias: Tensor | None = None
) -> ExampleGradients:
    """G_o = sum_t dy_to x_t z_t^T."""
    return contracted(examples, dy, _BILINEAR, [input1, input2, weight], 2)


@rule(F.bilinear, operand="input1")
def bilinear_input1(
    examples: Examples, dy: Tensor, input1: Tensor, input2: Tensor, weight: Tensor, bias: Tensor | None = None
) -> ExampleGradients:
    """G = sum_o dy_o W_o z."""
    return contracted(examples, dy, _BILINEAR, [input1, input2, weight], 0)


@rule(F.bilinear, operand="input2")
def bilinear_input2(
    examples: Examples, dy: Tensor, input1: Tensor, input2: Tensor, weight: Tensor, bias: Tensor | None = None
) -> ExampleGradients:
    """G = sum_o dy_o W_o^T x."""
    return contracted(examples, dy, _BILINEAR, [input1, input2, weight], 1)


@rule(F.bilinear, operand="bias")
def bilinear_bias(
    examples: Examples, dy: Tensor, input1: Tensor, input2: Tensor, weight: Tensor, bias: Tensor
) -> ExampleGradients:
    """G = sum_t dy_t."""
    return reduced(examples, dy, bias)
