"""Linear layers and matrix products, with any number of axes between the example and the features."""

from __future__ import annotations

import torch
from torch import Tensor

from noisette.rules._examples import Examples
from noisette.rules._registry import rule
from noisette.rules.elementwise import reduced
from noisette.rules.gradients import ExampleGradients, Outer


@rule(torch.nn.functional.linear, operand="weight")
def linear_weight(
    examples: Examples, dy: Tensor, input: Tensor, weight: Tensor, bias: Tensor | None = None
) -> ExampleGradients:
    """G = sum_t dy_t x_t^T."""
    return Outer(examples.sequences(dy), examples.sequences(input))


@rule(torch.nn.functional.linear, operand="bias")
def linear_bias(examples: Examples, dy: Tensor, input: Tensor, weight: Tensor, bias: Tensor) -> ExampleGradients:
    """G = sum_t dy_t."""
    return reduced(examples, dy, bias)


@rule(
    torch.matmul,
    torch.mm,
    torch.Tensor.matmul,
    torch.Tensor.mm,
    torch.Tensor.__matmul__,
    operand="other",
)
def matmul_right(examples: Examples, dy: Tensor, input: Tensor, other: Tensor) -> ExampleGradients:
    """x @ W: G = sum_t x_t dy_t^T."""
    if other.dim() == 1:
        return reduced(examples, dy.unsqueeze(-1) * input, other)
    if other.dim() != 2:
        raise ValueError(f"a matrix product with a weight of {other.dim()} axes; 1 or 2 have a rule")
    return Outer(examples.sequences(input), examples.sequences(dy))


@rule(torch.addmm, torch.Tensor.addmm, operand="mat2")
def addmm_weight(
    examples: Examples, dy: Tensor, input: Tensor, mat1: Tensor, mat2: Tensor, *, beta: float = 1, alpha: float = 1
) -> ExampleGradients:
    """Bias + alpha x @ W: G = alpha sum_t x_t dy_t^T."""
    return Outer(examples.sequences(mat1), alpha * examples.sequences(dy) if alpha != 1 else examples.sequences(dy))


@rule(torch.addmm, torch.Tensor.addmm, operand="input")
def addmm_bias(
    examples: Examples, dy: Tensor, input: Tensor, mat1: Tensor, mat2: Tensor, *, beta: float = 1, alpha: float = 1
) -> ExampleGradients:
    """G = beta sum_t dy_t."""
    return reduced(examples, beta * dy if beta != 1 else dy, input)
