"""Linear layers and matrix products, with any number of axes between the example and the features."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor

from noisette.core.forms import Dense, ExampleGradients, Examples, Outer
from noisette.core.registry import AS_COMPUTED, Operation, rewrite, rule, rule_per_operand
from noisette.rules.arithmetic import unbroadcast
from noisette.rules.brain_floats import BrainOuter
from noisette.rules.contraction import factor_gradients

F = torch.nn.functional
_LINEAR = {1: "...i,i->...", 2: "...i,oi->...o"}  # by the number of axes of the weight


@rule(F.linear, operand="weight")
def linear_weight(
    examples: Examples, dy: Tensor, input: Tensor, weight: Tensor, bias: Tensor | None = None
) -> ExampleGradients:
    """G = sum_t dy_t x_t^T."""
    if dy.dtype is torch.bfloat16:  # not cast
        return BrainOuter(examples.sequences(dy), examples.sequences(input))
    if weight.dim() == 2 and _is_one_row_each(examples, dy):
        return Outer(dy.unsqueeze(1), input.conj().unsqueeze(1))
    if weight.dim() != 2 or examples.axis == dy.dim() - 1:
        return factor_gradients(examples, dy, _LINEAR[weight.dim()], [input.conj(), weight], 1)
    return Outer(examples.sequences(dy), examples.sequences(input.conj()))


def linear_in_brain_floats(examples: Examples, dy: Any, arguments: Mapping[str, Any]) -> bool:
    """Whether the rule of the weight takes the factors in bfloat16, in which the pass has computed them."""
    bf16 = isinstance(dy, Tensor) and dy.dtype is arguments["input"].dtype is torch.bfloat16
    single = arguments["weight"].dim() == 2 and arguments["weight"].dtype is torch.float32
    return bf16 and single and examples.axis < dy.dim() - 1


AS_COMPUTED[linear_weight] = linear_in_brain_floats


@rule(F.linear, operand="input")
def linear_input(
    examples: Examples, dy: Tensor, input: Tensor, weight: Tensor, bias: Tensor | None = None
) -> ExampleGradients:
    """G_t = dy_t W, for a parameter passed as the input and data passed as the weight."""
    return factor_gradients(examples, dy, _LINEAR[weight.dim()], [input, weight.conj()], 0)


@rule(F.linear, operand="bias")
def linear_bias(examples: Examples, dy: Tensor, input: Tensor, weight: Tensor, bias: Tensor) -> ExampleGradients:
    """G = sum_t dy_t."""
    return Dense(dy) if _is_one_row_each(examples, dy) else unbroadcast(examples, dy, bias)


def _is_one_row_each(examples: Examples, dy: Tensor) -> bool:
    """Whether dy is (b, o): one position for each example, as in a multilayer perceptron."""
    return dy.dim() == 2 and examples.axis == 0 and dy.shape[0] == examples.count > 1


_MATMUL = (torch.matmul, torch.linalg.matmul, torch.mm, torch.mv, torch.bmm)
_MATMUL_METHODS = (Tensor.matmul, Tensor.mm, Tensor.mv, Tensor.bmm, Tensor.__matmul__)


@rule_per_operand(*_MATMUL, *_MATMUL_METHODS, operands=("input", "other"))
def matmul(operand: str, examples: Examples, dy: Tensor, input: Tensor, other: Tensor) -> ExampleGradients:
    """x @ W: G = sum_t x_t dy_t^T. W @ x: G = sum_t dy_t x_t^T."""
    return _product_gradients(examples, dy, input, other, 0 if operand == "input" else 1)


def _product_gradients(examples: Examples, dy: Tensor, left: Tensor, right: Tensor, place: int) -> ExampleGradients:
    """Gradients of the left factor (place 0) or of the right factor (place 1) of ``left @ right``."""
    if place == 1 and right.dim() == 2 and examples.axis < dy.dim() - 1:
        return Outer(examples.sequences(left.conj()), examples.sequences(dy))
    rows, columns = "r" * (left.dim() > 1), "c" * (right.dim() > 1)  # a vector has only the axis that is summed
    first, second = (f"...{rows}i" if rows else "i", f"...i{columns}" if columns else "i")
    return factor_gradients(examples, dy, f"{first},{second}->...{rows}{columns}", [left.conj(), right.conj()], place)


@rewrite(Tensor.__rmatmul__)
def matmul_reflected(input: Tensor, other: Tensor) -> Tensor:
    """The product other @ input."""
    return torch.matmul(other, input)


def _register_sum_with_product(left: str, right: str, *operations: Operation) -> None:
    """The operands of beta bias + alpha x @ W; input: G = beta sum_t dy_t, right: G = alpha sum_t x_t dy_t^T."""

    def gradients(operand: str, examples: Examples, dy: Tensor, arguments: Mapping[str, Any]) -> ExampleGradients:
        if operand == "input":
            return unbroadcast(examples, _scaled(dy, arguments.get("beta", 1)), arguments["input"])
        scaled, place = _scaled(dy, arguments.get("alpha", 1)), 0 if operand == left else 1
        return _product_gradients(examples, scaled, arguments[left], arguments[right], place)

    gradients.__name__ = operations[0].__name__
    operands = ("input", left, right)
    rule_per_operand(*operations, operands=operands, names=(*operands, "beta", "alpha"))(gradients)


_register_sum_with_product("mat1", "mat2", torch.addmm, Tensor.addmm)
_register_sum_with_product("batch1", "batch2", torch.baddbmm, Tensor.baddbmm)


def _scaled(dy: Tensor, factor: float) -> Tensor:
    return factor * dy if factor != 1 else dy
