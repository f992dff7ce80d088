"""Outer products of factors in bfloat16, held as they are: half the memory, and matrix units multiply them exactly.

The product of two numbers in bfloat16 is exact in single precision, in which the products are added up. A weight times
a factor has more digits; it is split into three terms in bfloat16, which together hold all 24 of them, so that a sum is
as exact as in single precision. Two terms would be wrong by 2^-17 of a factor, and where the positions of an example
cancel, no share of its norm bounds that.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from noisette.core.forms import (
    Dense,
    ExampleGradients,
    Outer,
    compact,
    examples_at_once,
    gram_product,
    scale_rows,
    sums_of_squares,
    writing_out_pays,
)

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
