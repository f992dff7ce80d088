"""Linear layers and products of tensors: outer products at each position, also of factors in bfloat16."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from string import ascii_letters
from typing import Any

import torch
from torch import Tensor

from noisette.core import forms
from noisette.core.forms import Dense, ExampleGradients, Examples, Outer, compact, rewrite, rule, scale_rows

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
            return forms.gram_product(*(_products(side, side.transpose(1, 2)) for side in (self.left, self.right)))
        size = forms.examples_at_once(max(o * i, t * (o + i)), b * t * (o + i))
        pairs = zip(self.left.split(size), self.right.split(size), strict=True)
        if t == 1:
            return torch.cat([Outer(left.float(), right.float()).squared_norms() for left, right in pairs])
        return torch.cat([forms.sums_of_squares(BrainOuter(left, right).explicit()) for left, right in pairs])

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
    return Dense(form.explicit()) if forms.writing_out_pays(t, o * i, t * (o + i) // 2) else form


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


# Operands that are broadcast, and factors of sums of products


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
        return Outer(self.left.flatten(0, 1), self.right.flatten(0, 1))

    def _permuted(self, gradients: Tensor) -> Tensor:
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


def factor_gradients(examples: Examples, dy: Tensor, equation: str, tensors: list[Tensor], at: int) -> ExampleGradients:
    """Gradients of the factor at this place of ``einsum(equation, *tensors)``, given the gradient of its output.

    The first letter of the output is that of the examples. For the weight W of "bti,oi->bto", the gradient is
    "bto,bti->boi" of dy and x. Its letters fall into four kinds: b is the example, t is summed (a position), o comes
    from dy alone and i from x alone, so the form is an ``Outer`` of dy and x. A letter that W shares with both, such as
    h in "bhti,hoi->bhto", makes it a ``GroupedOuter``. A diagonal, or a factor with the examples, is a ValueError.
    """
    terms, out = explicit_letters(equation, [tensor.dim() for tensor in tensors])
    others = [Factor(tensor, letters) for tensor, letters in zip(tensors, terms, strict=True)]
    operand, output, example = others.pop(at), Factor(dy, out), out[0]
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
    shape = operand.tensor.shape
    aligned = [n if letter in letters else 1 for letter, n in zip(operand.letters, shape, strict=True)]
    return Dense(gradients.reshape(-1, *aligned).expand(-1, *shape))


def _sizes(factors: Sequence[Factor]) -> dict[str, int]:
    """The size of each letter; an axis of one element is stretched to the size that its letter has elsewhere."""
    sizes: dict[str, int] = {}
    for factor in factors:
        for letter, n in zip(factor.letters, factor.tensor.shape, strict=True):
            sizes[letter] = n if sizes.get(letter, 1) == 1 else sizes[letter]
    return sizes


def _without_stretched_axes(factor: Factor, sizes: dict[str, int]) -> Factor:
    shape = factor.tensor.shape
    full = [k for k, letter in enumerate(factor.letters) if shape[k] == sizes[letter]]
    return Factor(factor.tensor.reshape([shape[k] for k in full]), "".join(factor.letters[k] for k in full))


def _sum_of_products(factors: Sequence[Factor], letters: str) -> Tensor:
    terms = ",".join(factor.letters for factor in factors)
    return torch.einsum(f"{terms}->{letters}", *(factor.tensor for factor in factors))


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


@rule(F.linear, operand="weight")
def linear_weight(examples: Examples, dy: Tensor, input: Tensor, weight: Tensor, bias: Any = None) -> ExampleGradients:
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


forms.AS_COMPUTED[linear_weight] = linear_in_brain_floats


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


@rewrite(torch.addmm, Tensor.addmm, always=True)
def sum_with_product(input: Tensor, mat1: Tensor, mat2: Tensor, **scales: float) -> Any:
    """bias + x @ W."""
    return NotImplemented if scales else torch.matmul(mat1, mat2) + input


rewrite(Tensor.__rmatmul__)(lambda input, other: torch.matmul(other, input))


@rewrite(F.bilinear)
def bilinear(input1: Tensor, input2: Tensor, weight: Tensor, bias: Tensor | None = None) -> Tensor:
    """A linear layer of the products of two inputs."""
    return F.linear((input1.unsqueeze(-1) * input2.unsqueeze(-2)).flatten(-2), weight.flatten(1), bias)


@rewrite(torch.column_stack, always=True)
def columns(tensors: Sequence[Tensor]) -> Tensor:
    """Vectors become columns."""
    return torch.cat([t.reshape(-1, 1) if t.dim() < 2 else t for t in tensors], 1)


_FACTORS = ("first", "second", "third", "fourth")


@rule(torch.einsum, operand=_FACTORS, names=("equation", *_FACTORS))
def einsum(
    operand: str, examples: Examples, dy: Tensor, equation: str, *given: Tensor, **named: Tensor
) -> ExampleGradients:
    """G = dy times the other operands, summed over every letter that the operand does not have."""
    factors = {**dict(zip(_FACTORS, given, strict=False)), **named}
    tensors = [factor if name == operand else factor.conj() for name, factor in factors.items()]
    return factor_gradients(examples, dy, equation, tensors, list(factors).index(operand))
