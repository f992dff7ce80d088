"""Linear layers and products of tensors: outer products at each position, also of factors in bfloat16."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from noisette.core.forms import (
    AS_COMPUTED,
    Dense,
    ExampleGradients,
    Examples,
    Outer,
    compact,
    examples_at_once,
    gram_product,
    rewrite,
    rule,
    scale_rows,
    sums_of_squares,
    writing_out_pays,
)

F = torch.nn.functional

# Outer products of factors in bfloat16, held as they are: half the memory, and matrix units multiply them exactly.
#
# The product of two numbers in bfloat16 is exact in single precision, in which the products are added up. A weight
# times a factor has more digits; it is split into three terms in bfloat16, which together hold all 24 of them, so that
# a sum is as exact as in single precision. Two terms would be wrong by 2^-17 of a factor, and where the positions of an
# example cancel, no share of its norm bounds that.
_TERMS = 3


@dataclass(frozen=True)
class BrainOuter:
    """G_i = sum over t of left[i, t] right[i, t]^T, as :class:`Outer`, of factors in bfloat16."""

    left: Tensor  # (b, t, o)
    right: Tensor  # (b, t, i)

    def squared_norms(self) -> Tensor:
        (b, t, o), i = self.left.shape, self.right.shape[2]
        if t > 1 and t * t <= o * i:
            return gram_product(*(_products(side, side.transpose(1, 2)) for side in (self.left, self.right)))
        size = examples_at_once(max(o * i, t * (o + i)), b * t * (o + i))
        pairs = zip(self.left.split(size), self.right.split(size), strict=True)
        if t == 1:
            return torch.cat([Outer(left.float(), right.float()).squared_norms() for left, right in pairs])
        return torch.cat([sums_of_squares(BrainOuter(left, right).explicit()) for left, right in pairs])

    def explicit(self) -> Tensor:
        return _products(self.left.transpose(1, 2), self.right)

    def weighted_sum(self, weights: Tensor) -> Tensor:
        left, right = scale_rows(self.left.float(), weights).flatten(0, 1).t(), self.right.flatten(0, 1)
        total = right.new_zeros(len(left), right.shape[1], dtype=torch.float32)
        for term in split(left):
            total += _products(term[None], right[None])[0]
        return total

    def select(self, examples: Tensor | slice) -> BrainOuter:
        return BrainOuter(self.left[examples], self.right[examples])


@compact.register
def _(form: BrainOuter) -> ExampleGradients:
    (_, t, o), i = form.left.shape, form.right.shape[2]
    return Dense(form.explicit()) if writing_out_pays(t, o * i, t * (o + i) // 2) else form


def split(numbers: Tensor) -> list[Tensor]:
    """Terms in bfloat16 that add up to these numbers in single precision, the largest first."""
    terms: list[Tensor] = []
    for _ in range(_TERMS):
        terms.append(numbers.bfloat16())
        numbers = numbers - terms[-1]  # exact: both have the same leading digits
    return terms


def _products(left: Tensor, right: Tensor) -> Tensor:
    """Products of matrices (b, ...) in bfloat16, exact but for adding up in single precision."""
    if left.is_cuda:
        return torch.bmm(left, right, out_dtype=torch.float32)
    return torch.bmm(left.float(), right.float())


# Operands that are broadcast


def unbroadcast(examples: Examples, dy: Tensor, operand: Tensor) -> Dense:
    """Per-example gradients of an operand from ``dy``, those of the operand after broadcasting to the output's shape.

    ``dy`` is summed over every axis that was broadcast but that of the examples.
    """
    first = examples.first(dy)
    aligned = (1,) * (dy.dim() - operand.dim()) + tuple(operand.shape)
    broadcast = [axis + 1 for axis in range(1, dy.dim()) if aligned[axis] == 1 and dy.shape[axis] != 1]
    summed = first.sum([1, *broadcast]) if first.shape[1] != 1 or broadcast else first
    return Dense(summed.reshape(examples.count, *operand.shape))


def unbroadcast_channels(examples: Examples, dy: Tensor, parameter: Tensor) -> Dense:
    """Per-example gradients (b, c) of a per-channel parameter from ``dy`` with axes (example, channel, ...)."""
    gradients = unbroadcast(examples, dy, parameter.view(-1, *[1] * (dy.dim() - 2))).explicit()
    return Dense(gradients.reshape(examples.count, *parameter.shape))


@rule(torch.add, operand="other")
def add_other(examples: Examples, dy: Tensor, input: Tensor, other: Tensor) -> ExampleGradients:
    """The rule of p in x + p."""
    return unbroadcast(examples, dy, other)


# The rules


@rule(F.linear, operand="weight")
def linear_weight(
    examples: Examples, dy: Tensor, input: Tensor, weight: Tensor, bias: Tensor | None = None
) -> ExampleGradients:
    """G = sum_t dy_t x_t^T; of a weight (i,) G = sum_t dy_t x_t."""
    if dy.dtype is torch.bfloat16:  # not cast
        return BrainOuter(examples.sequences(dy), examples.sequences(input))
    if weight.dim() == 1:
        return _of_vector(examples, dy, input)
    if dy.dim() == 2 and dy.shape[0] == examples.count:  # one position each, as in a multilayer perceptron
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
    return Dense(dy) if dy.dim() == 2 and dy.shape[0] == examples.count else unbroadcast(examples, dy, bias)


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


@rewrite(F.bilinear)
def bilinear(input1: Tensor, input2: Tensor, weight: Tensor, bias: Tensor | None = None) -> Tensor:
    """A linear layer of the products of two inputs."""
    products = (input1.unsqueeze(-1) * input2.unsqueeze(-2)).flatten(-2)
    return F.linear(products, weight.flatten(1), bias)


@rewrite(torch.column_stack)
def columns(tensors: Sequence[Tensor]) -> Tensor:
    """Vectors become columns."""
    return torch.cat([t.reshape(-1, 1) if t.dim() < 2 else t for t in tensors], 1)
