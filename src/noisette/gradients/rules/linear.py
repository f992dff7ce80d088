"""Linear layers and matrix products, with any number of axes between the example and the features."""

from __future__ import annotations

import torch
from torch import Tensor

from noisette.gradients.rules.contraction import contracted
from noisette.gradients.rules.elementwise import reduced
from noisette.gradients.rules.examples import Examples
from noisette.gradients.rules.forms import ExampleGradients, Outer
from noisette.gradients.rules.registry import rewrite, rule


@rule(torch.nn.functional.linear, operand="weight")
def linear_weight(
    examples: Examples, dy: Tensor, input: Tensor, weight: Tensor, bias: Tensor | None = None
) -> ExampleGradients:
    """G = sum_t dy_t x_t^T."""
    if weight.dim() != 2 or examples.axis == dy.dim() - 1:
        return contracted(examples, dy, _LINEAR[weight.dim()], [input, weight], 1)
    return Outer(examples.sequences(dy), examples.sequences(input))


@rule(torch.nn.functional.linear, operand="input")
def linear_input(
    examples: Examples, dy: Tensor, input: Tensor, weight: Tensor, bias: Tensor | None = None
) -> ExampleGradients:
    """G_t = dy_t W, where the data is in the place of W."""
    return contracted(examples, dy, _LINEAR[weight.dim()], [input, weight], 0)


@rule(torch.nn.functional.linear, operand="bias")
def linear_bias(examples: Examples, dy: Tensor, input: Tensor, weight: Tensor, bias: Tensor) -> ExampleGradients:
    """G = sum_t dy_t."""
    return reduced(examples, dy, bias)


_LINEAR = {1: "...i,i->...", 2: "...i,oi->...o"}  # by the axes of the weight

_PRODUCTS = (
    torch.matmul,
    torch.linalg.matmul,
    torch.mm,
    torch.mv,
    torch.bmm,
    torch.Tensor.matmul,
    torch.Tensor.mm,
    torch.Tensor.mv,
    torch.Tensor.bmm,
    torch.Tensor.__matmul__,
)


@rule(*_PRODUCTS, operand="other")
def matmul_right(examples: Examples, dy: Tensor, input: Tensor, other: Tensor) -> ExampleGradients:
    """x @ W: G = sum_t x_t dy_t^T."""
    if other.dim() == 2 and examples.axis < dy.dim() - 1:
        return Outer(examples.sequences(input), examples.sequences(dy))
    return contracted(examples, dy, _product(input, other), [input, other], 1)


@rule(*_PRODUCTS, operand="input")
def matmul_left(examples: Examples, dy: Tensor, input: Tensor, other: Tensor) -> ExampleGradients:
    """W @ x: G = sum_t dy_t x_t^T."""
    return contracted(examples, dy, _product(input, other), [input, other], 0)


def _product(left: Tensor, right: Tensor) -> str:
    """The equation of a matrix product; a factor of one axis lacks rows or columns."""
    rows, columns = "r" * (left.dim() > 1), "c" * (right.dim() > 1)
    first, second = (f"...{rows}i" if rows else "i", f"...i{columns}" if columns else "i")
    return f"{first},{second}->...{rows}{columns}"


@rewrite(torch.Tensor.__rmatmul__)
def matmul_reflected(input: Tensor, other: Tensor) -> Tensor:
    """The product with its factors in their own order."""
    return torch.matmul(other, input)


@rule(torch.addmm, torch.Tensor.addmm, operand="mat2")
def addmm_right(
    examples: Examples, dy: Tensor, input: Tensor, mat1: Tensor, mat2: Tensor, *, beta: float = 1, alpha: float = 1
) -> ExampleGradients:
    """Bias + alpha x @ W: G = alpha sum_t x_t dy_t^T."""
    return matmul_right(examples, _scaled(dy, alpha), mat1, mat2)


@rule(torch.addmm, torch.Tensor.addmm, operand="mat1")
def addmm_left(
    examples: Examples, dy: Tensor, input: Tensor, mat1: Tensor, mat2: Tensor, *, beta: float = 1, alpha: float = 1
) -> ExampleGradients:
    """Bias + alpha W @ x: G = alpha sum_t dy_t x_t^T."""
    return matmul_left(examples, _scaled(dy, alpha), mat1, mat2)


@rule(torch.addmm, torch.Tensor.addmm, operand="input")
def addmm_input(
    examples: Examples, dy: Tensor, input: Tensor, mat1: Tensor, mat2: Tensor, *, beta: float = 1, alpha: float = 1
) -> ExampleGradients:
    """G = beta sum_t dy_t."""
    return reduced(examples, _scaled(dy, beta), input)


@rule(torch.baddbmm, torch.Tensor.baddbmm, operand="batch2")
def baddbmm_right(
    examples: Examples, dy: Tensor, input: Tensor, batch1: Tensor, batch2: Tensor, *, beta: float = 1, alpha: float = 1
) -> ExampleGradients:
    """Bias + alpha x @ W for each matrix of a stack: G = alpha sum_t x_t dy_t^T."""
    return matmul_right(examples, _scaled(dy, alpha), batch1, batch2)


@rule(torch.baddbmm, torch.Tensor.baddbmm, operand="batch1")
def baddbmm_left(
    examples: Examples, dy: Tensor, input: Tensor, batch1: Tensor, batch2: Tensor, *, beta: float = 1, alpha: float = 1
) -> ExampleGradients:
    """Bias + alpha W @ x for each matrix of a stack: G = alpha sum_t dy_t x_t^T."""
    return matmul_left(examples, _scaled(dy, alpha), batch1, batch2)


@rule(torch.baddbmm, torch.Tensor.baddbmm, operand="input")
def baddbmm_input(
    examples: Examples, dy: Tensor, input: Tensor, batch1: Tensor, batch2: Tensor, *, beta: float = 1, alpha: float = 1
) -> ExampleGradients:
    """G = beta sum_t dy_t."""
    return reduced(examples, _scaled(dy, beta), input)


def _scaled(dy: Tensor, factor: float) -> Tensor:
    return factor * dy if factor != 1 else dy
