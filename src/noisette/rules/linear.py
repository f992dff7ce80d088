"""Linear layers and matrix products, with any number of axes between the example and the features."""

from __future__ import annotations

import torch
from torch import Tensor

from noisette.rules._registry import examples_first, rule
from noisette.rules.elementwise import reduced
from noisette.rules.gradients import ExampleGradients, Outer


def sequences(b: int, tensor: Tensor) -> Tensor:
    """Axes (example, position, feature); every axis between the first and the last becomes positions."""
    return examples_first(b, tensor).reshape(b, -1, tensor.shape[-1])


@rule(torch.nn.functional.linear, operand="weight")
def linear_weight(b: int, dy: Tensor, input: Tensor, weight: Tensor, bias: Tensor | None = None) -> ExampleGradients:
    """G = sum_t dy_t x_t^T."""
    return Outer(sequences(b, dy), sequences(b, input))


@rule(torch.nn.functional.linear, operand="bias")
def linear_bias(b: int, dy: Tensor, input: Tensor, weight: Tensor, bias: Tensor) -> ExampleGradients:
    """G = sum_t dy_t."""
    return reduced(b, dy, bias)


@rule(
    torch.matmul,
    torch.mm,
    torch.Tensor.matmul,
    torch.Tensor.mm,
    torch.Tensor.__matmul__,
    operand="other",
)
def matmul_right(b: int, dy: Tensor, input: Tensor, other: Tensor) -> ExampleGradients:
    """x @ W: G = sum_t x_t dy_t^T."""
    if other.dim() == 1:
        return reduced(b, dy.unsqueeze(-1) * input, other)
    if other.dim() != 2:
        raise ValueError(f"a matrix product with a weight of {other.dim()} axes; 1 or 2 have a rule")
    return Outer(sequences(b, input), sequences(b, dy))


@rule(torch.addmm, torch.Tensor.addmm, operand="mat2")
def addmm_weight(
    b: int, dy: Tensor, input: Tensor, mat1: Tensor, mat2: Tensor, *, beta: float = 1, alpha: float = 1
) -> ExampleGradients:
    """Bias + alpha x @ W: G = alpha sum_t x_t dy_t^T."""
    return Outer(sequences(b, mat1), alpha * sequences(b, dy) if alpha != 1 else sequences(b, dy))


@rule(torch.addmm, torch.Tensor.addmm, operand="input")
def addmm_bias(
    b: int, dy: Tensor, input: Tensor, mat1: Tensor, mat2: Tensor, *, beta: float = 1, alpha: float = 1
) -> ExampleGradients:
    """G = beta sum_t dy_t."""
    return reduced(b, beta * dy if beta != 1 else dy, input)
