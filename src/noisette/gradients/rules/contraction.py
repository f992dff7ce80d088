"""Sums of products over named axes, as ``einsum`` writes them: the gradient of one factor is a sum of products too."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from string import ascii_letters

import torch
from torch import Tensor

from noisette.gradients.rules.examples import Examples
from noisette.gradients.rules.forms import Dense, ExampleGradients, Outer, PerExampleRow


@dataclass(frozen=True)
class Factor:
    """A tensor and one letter for each of its axes."""

    tensor: Tensor
    letters: str

    def replaced(self, letter: str, letters: str, sizes: Sequence[int]) -> Factor:
        """The axes of one letter split into several."""
        tensor = self.tensor
        for axis in reversed([k for k, own in enumerate(self.letters) if own == letter]):
            tensor = tensor.unflatten(axis, sizes)
        return Factor(tensor, self.letters.replace(letter, letters))


@dataclass(frozen=True)
class Products:
    """G[h] = sum over positions of left[h] right[h] transposed, with its axes then in the tensor's own order."""

    left: Tensor  # (b, h, t, o)
    right: Tensor  # (b, h, t, i)
    sizes: tuple[int, ...]  # of the axes that h, o and i stand for, in this order
    order: tuple[int, ...]  # which of them each axis of the tensor is

    @property
    def _each(self) -> Outer:
        """Every h as an example of its own."""
        return Outer(self.left.flatten(0, 1), self.right.flatten(0, 1))

    def _ordered(self, gradients: Tensor) -> Tensor:
        """From axes (example, *sizes) to the tensor's own."""
        return gradients.permute(0, *(1 + k for k in self.order))

    def squared_norms(self) -> Tensor:
        return self._each.squared_norms().view(self.left.shape[:2]).sum(1)

    def explicit(self) -> Tensor:
        return self._ordered(self._each.explicit().reshape(self.left.shape[0], *self.sizes))

    def weighted_sum(self, weights: Tensor) -> Tensor:
        scaled = self.left * weights.to(self.left.dtype).view(-1, 1, 1, 1)
        left, right = (side.transpose(0, 1).flatten(1, 2) for side in (scaled, self.right))
        return self._ordered(torch.bmm(left.transpose(1, 2), right).reshape(1, *self.sizes))[0]

    def select(self, examples: Tensor) -> Products:
        return Products(self.left[examples], self.right[examples], self.sizes, self.order)


def spelled(equation: str, axes: Sequence[int]) -> tuple[list[str], str]:
    """The letters of each factor and of the output of an ``einsum``, with every ellipsis spelled out.

    >>> spelled("...i, oi -> ...o", [3, 2])
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


def contracted(
    examples: Examples, dy: Tensor, equation: str, tensors: Sequence[Tensor], place: int
) -> ExampleGradients:
    """Gradients of the tensor at this place of ``einsum(equation, *tensors)``, given the gradient of its output.

    Raises:
        ValueError: a diagonal of the tensor is taken, or it holds the examples folded together with positions.
    """
    terms, out = spelled(equation, [tensor.dim() for tensor in tensors])
    others = [Factor(tensor, letters) for tensor, letters in zip(tensors, terms, strict=True)]
    operand = others.pop(place)
    if len(set(operand.letters)) < len(operand.letters):
        raise ValueError(f"{equation} takes a diagonal of a weight; take it with torch.diagonal before")
    sizes = _sizes([Factor(dy, out), *others, operand])
    # Axes of one element stretch to the size that their letter has elsewhere.
    owned = "".join(
        letter for letter, n in zip(operand.letters, operand.tensor.shape, strict=True) if n == sizes[letter]
    )
    example, output, others = _apart(examples, Factor(dy, out), [_unstretched(f, sizes) for f in others], owned)
    met = set(output.letters).union(*(other.letters for other in others))
    kept = "".join(letter for letter in owned if letter in met)
    if example in kept:
        return _own_rows(example, [output, *others], kept, operand)
    if len(kept) == len(operand.letters) and (form := _products(example, output, others, kept)) is not None:
        return form
    gradients = _sum_of_products([output, *others], example + kept)
    return Dense(_filled(gradients, kept, operand.letters, operand.tensor.shape))


def _sizes(factors: Sequence[Factor]) -> dict[str, int]:
    sizes: dict[str, int] = {}
    for factor in factors:
        for letter, n in zip(factor.letters, factor.tensor.shape, strict=True):
            sizes[letter] = n if sizes.get(letter, 1) == 1 else sizes[letter]
    return sizes


def _unstretched(factor: Factor, sizes: dict[str, int]) -> Factor:
    """The factor without its axes of one element that stretch."""
    shape = factor.tensor.shape
    kept = [k for k, letter in enumerate(factor.letters) if shape[k] == sizes[letter]]
    return Factor(factor.tensor.reshape([shape[k] for k in kept]), "".join(factor.letters[k] for k in kept))


def _apart(examples: Examples, dy: Factor, others: list[Factor], owned: str) -> tuple[str, Factor, list[Factor]]:
    """The letter of the examples, and all factors with that letter apart from positions."""
    used = "".join([dy.letters, owned, *(other.letters for other in others)])
    unused = next(letter for letter in ascii_letters if letter not in used)
    if examples.count == 1:
        return unused, Factor(dy.tensor.unsqueeze(0), unused + dy.letters), others
    example, positions = dy.letters[examples.axis], examples.first(dy.tensor).shape[1]
    if positions == 1:
        return example, dy, others
    if example in owned:
        raise ValueError(f"a weight holds the {examples.count} examples folded together with {positions} positions")
    inner = examples.inner
    letters, parts = (unused + example, (positions, -1)) if inner else (example + unused, (-1, positions))
    split = [factor.replaced(example, letters, parts) for factor in (dy, *others)]
    return example, split[0], split[1:]


def _sum_of_products(factors: Sequence[Factor], letters: str) -> Tensor:
    terms = ",".join(factor.letters for factor in factors)
    return torch.einsum(f"{terms}->{letters}", *(factor.tensor for factor in factors))


def _filled(gradients: Tensor, kept: str, letters: str, shape: Sequence[int]) -> Tensor:
    """The gradients with those axes of a tensor of this shape that nothing tells apart; the first axis stays."""
    aligned = [n if letter in kept else 1 for letter, n in zip(letters, shape, strict=True)]
    return gradients.reshape(-1, *aligned).expand(-1, *shape)


def _own_rows(example: str, factors: Sequence[Factor], kept: str, operand: Factor) -> PerExampleRow:
    axis = operand.letters.index(example)
    rest, letters = kept.replace(example, ""), operand.letters.replace(example, "")
    shape = [n for k, n in enumerate(operand.tensor.shape) if k != axis]
    rows = _filled(_sum_of_products(factors, example + rest), rest, letters, shape)
    return PerExampleRow(rows, torch.arange(len(rows), device=rows.device), len(rows), axis)


def _products(example: str, dy: Factor, others: Sequence[Factor], kept: str) -> Products | Outer | None:
    """Products at each position, where some axes come from the output alone and some from the other factors alone."""
    beside = "".join(other.letters for other in others)
    o = "".join(letter for letter in kept if letter not in beside)
    i = "".join(letter for letter in kept if letter not in dy.letters)
    h = "".join(letter for letter in kept if letter not in o + i)
    t = "".join(letter for letter in dy.letters if letter not in kept + example)
    sizes = _sizes([dy, *others])
    positions, rows = (math.prod(sizes[letter] for letter in letters) for letters in (t, o))
    if not o or not i or (len(others) > 1 and positions > rows):
        return None  # the products of several factors would need more memory than the gradients
    left = _gathered([dy], example, (h, t, o), sizes)
    right = _gathered(others, example, (h, t, i), sizes)
    if len(kept) == 2:
        left, right = left.squeeze(1), right.squeeze(1)
        return Outer(left, right) if kept == o + i else Outer(right, left)
    shape = tuple(sizes[letter] for letter in h + o + i)
    return Products(left, right, shape, tuple((h + o + i).index(letter) for letter in kept))


def _gathered(factors: Sequence[Factor], example: str, groups: Sequence[str], sizes: dict[str, int]) -> Tensor:
    """The product of the factors with one axis for the examples and one for each group of letters."""
    letters = "".join(groups)
    known = any(example in factor.letters for factor in factors)
    product = _sum_of_products(factors, example + letters if known else letters)
    flat = product.reshape(-1 if known else 1, *(math.prod(sizes[letter] for letter in group) for group in groups))
    return flat.expand(sizes[example], -1, -1, -1)
