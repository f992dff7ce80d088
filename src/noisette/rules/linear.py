"""Linear layers and matrix products, with any number of axes between the example and the features."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor

from noisette.core.forms import AS_COMPUTED, Dense, ExampleGradients, Examples, Outer, rewrite, rule
from noisette.rules.brain_floats import BrainOuter
from noisette.rules.broadcasting import unbroadcast

F = torch.nn.functional


@rule(F.linear, operand="weight")
def linear_weight(
    examples: Examples, dy: Tensor, input: Tensor, weight: Tensor, bias: Tensor | None = None
) -> ExampleGradients:
    """G = sum_t dy_t x_t^T; of a weight (i,) G = sum_t dy_t x_t."""
    if dy.dtype is torch.bfloat16:  # not cast
        return BrainOuter(examples.sequences(dy), examples.sequences(input))
    if weight.dim() == 1:
        return _of_vector(examples, dy, input)
    if _is_one_row_each(examples, dy):
        return Outer(dy.unsqueeze(1), input.conj().unsqueeze(1))
    return Outer(examples.sequences(dy), examples.sequences(input.conj()))


def linear_in_brain_floats(dy: Any, arguments: Mapping[str, Any]) -> bool:
    """Whether the rule of the weight takes the factors in bfloat16, in which the pass has computed them."""
    bf16 = isinstance(dy, Tensor) and dy.dtype is arguments["input"].dtype is torch.bfloat16
    return bf16 and arguments["weight"].dim() == 2 and arguments["weight"].dtype is torch.float32


AS_COMPUTED[linear_weight] = linear_in_brain_floats


@rule(F.linear, operand="bias")
def linear_bias(examples: Examples, dy: Tensor, input: Tensor, weight: Tensor, bias: Tensor) -> ExampleGradients:
    """G = sum_t dy_t."""
    return Dense(dy) if _is_one_row_each(examples, dy) else unbroadcast(examples, dy, bias)


def _is_one_row_each(examples: Examples, dy: Tensor) -> bool:
    """Whether dy is (b, o): one position for each example, as in a multilayer perceptron."""
    return dy.dim() == 2 and dy.shape[0] == examples.count


@rule(torch.matmul, operand="other")
def matmul_other(examples: Examples, dy: Tensor, input: Tensor, other: Tensor) -> ExampleGradients:
    """Of W in x @ W, G = sum_t x_t dy_t^T; of a vector G = sum_t dy_t x_t."""
    if other.dim() == 1:
        return _of_vector(examples, dy, input)
    return Outer(examples.sequences(input.conj()), examples.sequences(dy))


def _of_vector(examples: Examples, dy: Tensor, input: Tensor) -> Dense:
    """G = sum_t dy_t x_t, from dy (b, ...) and the input (b, ..., i)."""
    at_positions = examples.first(dy).reshape(examples.count, 1, -1)
    return Dense(torch.bmm(at_positions, examples.sequences(input.conj())).squeeze(1))


@rewrite(Tensor.__rmatmul__)
def matmul_reflected(input: Tensor, other: Tensor) -> Tensor:
    """The product other @ input."""
    return torch.matmul(other, input)
