"""``einsum`` with any equation, and other products that can be written as one."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from string import ascii_lowercase as LETTERS
from typing import Any

import torch
from torch import Tensor

from noisette.core.forms import ExampleGradients, Examples
from noisette.core.registry import rewrite, rule_per_operand
from noisette.rules.arithmetic import unbroadcast
from noisette.rules.contraction import factor_gradients

F = torch.nn.functional


def _named_factor(
    examples: Examples, dy: Tensor, equation: str, factors: Mapping[str, Tensor], operand: str
) -> ExampleGradients:
    """Gradients of the factor of this name."""
    tensors = [factor if name == operand else factor.conj() for name, factor in factors.items()]
    return factor_gradients(examples, dy, equation, tensors, list(factors).index(operand))


@rewrite(torch.einsum)
def einsum_of_list(equation: str, *operands: Any) -> Any:
    """The same with the operands as separate arguments."""
    return torch.einsum(equation, *operands[0]) if type(operands[0]) in (list, tuple) else NotImplemented


_FACTORS = ("first", "second", "third", "fourth")


@rule_per_operand(torch.einsum, operands=_FACTORS, names=("equation", *_FACTORS))
def einsum(operand: str, examples: Examples, dy: Tensor, arguments: Mapping[str, Any]) -> ExampleGradients:
    """G = dy times the other operands, summed over every letter that the operand does not have."""
    factors = {name: arguments[name] for name in _FACTORS if name in arguments}
    return _named_factor(examples, dy, arguments["equation"], factors, operand)


Axes = int | Sequence[Sequence[int]]


@rule_per_operand(torch.tensordot, operands=("a", "b"))
def tensordot(
    operand: str, examples: Examples, dy: Tensor, a: Tensor, b: Tensor, dims: Axes = 2, out: Tensor | None = None
) -> ExampleGradients:
    """G = dy times the other operand, summed over every axis that the operand does not have."""
    return _named_factor(examples, dy, _tensordot_equation(a, b, dims), {"a": a, "b": b}, operand)


def _tensordot_equation(a: Tensor, b: Tensor, dims: Axes) -> str:
    """The ``einsum`` equation of ``tensordot``: "abc,bcd->ad" for three and three axes and ``dims=2``."""
    of_a, of_b = (range(a.dim() - dims, a.dim()), range(dims)) if isinstance(dims, int) else dims
    left, right = list(LETTERS[: a.dim()]), list(LETTERS[a.dim() : a.dim() + b.dim()])
    for i, j in zip(of_a, of_b, strict=True):
        right[j] = left[i]
    free = [letter for letter in left + right if (letter in left) != (letter in right)]
    return f"{''.join(left)},{''.join(right)}->{''.join(free)}"


@rule_per_operand(torch.inner, Tensor.inner, operands=("input", "other"))
def inner(operand: str, examples: Examples, dy: Tensor, input: Tensor, other: Tensor) -> ExampleGradients:
    """G = dy times the other factor, summed over the axes of that factor but the last."""
    equation = _tensordot_equation(input, other, ([-1], [-1]))
    return _named_factor(examples, dy, equation, {"input": input, "other": other}, operand)


@rule_per_operand(F.bilinear, operands=("input1", "input2", "weight", "bias"))
def bilinear(
    operand: str,
    examples: Examples,
    dy: Tensor,
    input1: Tensor,
    input2: Tensor,
    weight: Tensor,
    bias: Tensor | None = None,
) -> ExampleGradients:
    """y_o = x^T W_o z + bias_o, so that G_o of the weight is sum_t dy_to x_t z_t^T and G of the bias is sum_t dy_t."""
    if operand == "bias":
        assert bias is not None
        return unbroadcast(examples, dy, bias)
    factors = {"input1": input1, "input2": input2, "weight": weight}
    return _named_factor(examples, dy, "...i,...j,oij->...o", factors, operand)
