"""Gradients of one factor of an ``einsum``: it is an ``einsum`` too."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from string import ascii_letters

import torch
from torch import Tensor

from noisette.core.forms import Dense, ExampleGradients, Examples, Outer, scale_rows


@dataclass(frozen=True)
class Factor:
    """A tensor and one letter for each of its axes, as in an ``einsum``."""

    tensor: Tensor
    letters: str


@dataclass(frozen=True)
class GroupedOuter:
    """G[h] = sum over t of left[h, t] right[h, t]^T for each group h, with axes permuted to those of the tensor."""

    left: Tensor  # (b, h, t, o)
    right: Tensor  # (b, h, t, i)
    sizes: tuple[int, ...]  # of the axes that were flattened to h, o and i, in this order
    order: tuple[int, ...]  # for each axis of the tensor, which of them it is

    @property
    def _each_group(self) -> Outer:
        """The same with every pair of example and group as an example."""
        return Outer(self.left.flatten(0, 1), self.right.flatten(0, 1))

    def _permuted(self, gradients: Tensor) -> Tensor:
        """Axes (example, *sizes) permuted to (example, *tensor.shape)."""
        return gradients.permute(0, *(1 + k for k in self.order))

    def squared_norms(self) -> Tensor:
        return self._each_group.squared_norms().view(self.left.shape[:2]).sum(1)

    def explicit(self) -> Tensor:
        return self._permuted(self._each_group.explicit().reshape(self.left.shape[0], *self.sizes))

    def weighted_sum(self, weights: Tensor) -> Tensor:
        left, right = (side.transpose(0, 1).flatten(1, 2) for side in (scale_rows(self.left, weights), self.right))
        return self._permuted(torch.bmm(left.transpose(1, 2), right).reshape(1, *self.sizes))[0]

    def select(self, examples: Tensor | slice) -> GroupedOuter:
        return GroupedOuter(self.left[examples], self.right[examples], self.sizes, self.order)


def explicit_letters(equation: str, axes: Sequence[int]) -> tuple[list[str], str]:
    """The letters of each factor and of the output of an ``einsum``, with letters in place of every ellipsis.

    >>> explicit_letters("...i, oi -> ...o", [3, 2])
    (['abi', 'oi'], 'abo')
    """
    written, arrow, out = equation.replace(" ", "").partition("->")
    terms = written.split(",")
    hidden = [n - len(term.replace("...", "")) if "..." in term else 0 for term, n in zip(terms, axes, strict=True)]
    unused = [letter for letter in ascii_letters if letter not in equation]
    dots = "".join(unused[: max(hidden)])  # an ellipsis of fewer axes stands for the last of them
    if not arrow:
        out = "..." + "".join(sorted(letter for letter in set(written) - set(",.") if written.count(letter) == 1))
    full = [term.replace("...", dots[len(dots) - n :]) for term, n in zip(terms, hidden, strict=True)]
    return full, out.replace("...", dots)


def factor_gradients(
    examples: Examples, dy: Tensor, equation: str, tensors: Sequence[Tensor], place: int
) -> ExampleGradients:
    """Gradients of the factor at this place of ``einsum(equation, *tensors)``, given the gradient of its output.

    The first letter of the output is that of the examples. For the weight W of "bti,oi->bto", the gradient is
    "bto,bti->boi" of dy and x. Its letters fall into four kinds: b is the example, t is summed (a position), o comes
    from dy alone and i from x alone, so the form is an ``Outer`` of dy and x. A letter that W shares with both, such as
    h in "bhti,hoi->bhto", makes it a ``GroupedOuter``.

    Raises:
        ValueError: a diagonal of the factor is taken, or it holds the examples.
    """
    terms, out = explicit_letters(equation, [tensor.dim() for tensor in tensors])
    others = [Factor(tensor, letters) for tensor, letters in zip(tensors, terms, strict=True)]
    operand, output, example = others.pop(place), Factor(dy, out), out[0]
    if len(set(operand.letters)) < len(operand.letters):
        raise ValueError(f"{equation} takes a diagonal of a weight; call torch.diagonal on the weight first")
    if example in operand.letters:
        raise ValueError(f"in {equation} a weight holds the {examples.count} examples")
    sizes = _sizes([output, *others, operand])
    full = _without_stretched_axes(operand, sizes).letters
    others = [_without_stretched_axes(other, sizes) for other in others]
    present = set(output.letters).union(*(other.letters for other in others))
    letters = "".join(letter for letter in full if letter in present)
    # A letter of the operand alone, or an axis that is stretched, needs an explicit gradient.
    if len(letters) == len(operand.letters) and (form := _outer_products(example, output, others, letters)):
        return form
    gradients = _sum_of_products([output, *others], example + letters)
    return Dense(_expanded(gradients, letters, operand.letters, operand.tensor.shape))


def _sizes(factors: Sequence[Factor]) -> dict[str, int]:
    """The size of each letter; an axis of one element is stretched to the size that its letter has elsewhere."""
    sizes: dict[str, int] = {}
    for factor in factors:
        for letter, n in zip(factor.letters, factor.tensor.shape, strict=True):
            sizes[letter] = n if sizes.get(letter, 1) == 1 else sizes[letter]
    return sizes


def _without_stretched_axes(factor: Factor, sizes: dict[str, int]) -> Factor:
    """The factor without its axes of one element that are stretched."""
    shape = factor.tensor.shape
    full = [k for k, letter in enumerate(factor.letters) if shape[k] == sizes[letter]]
    return Factor(factor.tensor.reshape([shape[k] for k in full]), "".join(factor.letters[k] for k in full))


def _sum_of_products(factors: Sequence[Factor], letters: str) -> Tensor:
    terms = ",".join(factor.letters for factor in factors)
    return torch.einsum(f"{terms}->{letters}", *(factor.tensor for factor in factors))


def _expanded(gradients: Tensor, present: str, letters: str, shape: Sequence[int]) -> Tensor:
    """Gradients (b, *present letters) expanded to (b, *shape) along the letters on which they do not depend."""
    aligned = [n if letter in present else 1 for letter, n in zip(letters, shape, strict=True)]
    return gradients.reshape(-1, *aligned).expand(-1, *shape)


def _outer_products(example: str, dy: Factor, others: Sequence[Factor], letters: str) -> GroupedOuter | Outer | None:
    """Outer products at each position, if some letters come from ``dy`` alone and some from the other factors alone."""
    of_others = "".join(other.letters for other in others)
    o = "".join(letter for letter in letters if letter not in of_others)
    i = "".join(letter for letter in letters if letter not in dy.letters)
    h = "".join(letter for letter in letters if letter not in o + i)
    t = "".join(letter for letter in dy.letters if letter not in letters + example)
    sizes = _sizes([dy, *others])
    positions, rows = (math.prod(sizes[letter] for letter in group) for group in (t, o))
    if not o or not i or (len(others) > 1 and positions > rows):
        return None  # the product of several factors would need more memory than the gradients
    left = _flattened_product([dy], example, (h, t, o), sizes)
    right = _flattened_product(others, example, (h, t, i), sizes)
    if len(letters) == 2:
        left, right = left.squeeze(1), right.squeeze(1)
        return Outer(left, right) if letters == o + i else Outer(right, left)
    shape = tuple(sizes[letter] for letter in h + o + i)
    return GroupedOuter(left, right, shape, tuple((h + o + i).index(letter) for letter in letters))


def _flattened_product(factors: Sequence[Factor], example: str, groups: Sequence[str], sizes: dict[str, int]) -> Tensor:
    """The product of the factors with axes (example, *groups): the letters of each group are flattened to one axis."""
    letters = "".join(groups)
    has_examples = any(example in factor.letters for factor in factors)
    product = _sum_of_products(factors, example + letters if has_examples else letters)
    shape = [math.prod(sizes[letter] for letter in group) for group in groups]
    return product.reshape(-1 if has_examples else 1, *shape).expand(sizes[example], -1, -1, -1)
