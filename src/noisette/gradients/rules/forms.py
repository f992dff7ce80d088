"""Per-example gradients of one tensor, kept in the cheapest exact form.

Each form answers the same three questions about the gradients G_1..G_b of b examples: their squared norms, the
gradients themselves, and a weighted sum of them. The answers agree; only their cost differs.

Axes: b example, t position within an example, o output feature, i input feature.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial, singledispatch
from itertools import combinations
from typing import Any, Protocol

import torch
from torch import Tensor

# Rounding errors of a Gram product can hide a part of a norm that cancels; this many units of the diagonal cover it.
_GRAM_SLACK = 16
# Explicit gradients are kept when they need at most this many times the memory of the factors they replace.
_KEEP_EXPLICIT = 2
# Work that is dropped again goes over the batch in parts: of this many numbers, or this part of the factors' memory.
_DROPPED_AT_ONCE, _DROPPED_PART = 2**21, 0.25
# Below this many positions, writing and reading an explicit gradient costs more than forming it a second time.
_MIN_POSITIONS_TO_KEEP = 16


class ExampleGradients(Protocol):
    """The gradients of b examples with respect to one tensor."""

    def squared_norms(self) -> Tensor:
        """Squared Euclidean norm of each example's gradient, shape (b,)."""
        ...

    def explicit(self) -> Tensor:
        """The gradients themselves, shape (b, *tensor.shape)."""
        ...

    def weighted_sum(self, weights: Tensor) -> Tensor:
        """Sum over examples of weight times gradient, in the tensor's shape; ``weights`` has shape (b,)."""
        ...

    def select(self, examples: Tensor) -> ExampleGradients:
        """The gradients of these examples alone; ``examples`` holds their indices."""
        ...


def _square_sums(rows: Tensor) -> Tensor:
    """Sum of squares over all axes but the first."""
    return _lengths(rows).square()


def _lengths(rows: Tensor) -> Tensor:
    """Euclidean norm over all axes but the first."""
    return torch.linalg.vector_norm(rows, dim=tuple(range(1, rows.dim()))) if rows.dim() > 1 else rows.abs()


@dataclass(frozen=True)
class Dense:
    """Gradients written out: those of small tensors such as biases, and of others where that saves work."""

    gradients: Tensor  # (b, *shape)

    def squared_norms(self) -> Tensor:
        return _square_sums(self.gradients)

    def explicit(self) -> Tensor:
        return self.gradients

    def weighted_sum(self, weights: Tensor) -> Tensor:
        shape = self.gradients.shape[1:]
        rows = self.gradients.reshape(len(weights), shape.numel())  # a scalar parameter too has one column
        return (weights.to(rows.dtype) @ rows).view(shape)

    def select(self, examples: Tensor) -> Dense:
        return Dense(self.gradients[examples])


@dataclass(frozen=True)
class PerExampleRow:
    """Gradients of a tensor with an example axis of its own: example i touches row i of that axis alone."""

    rows: Tensor  # (b, ...): row i is all of example i's gradient
    examples: Tensor  # (b,): which row of the tensor each example owns
    length: int  # rows of the tensor
    axis: int = 0  # the tensor's axis of rows

    def squared_norms(self) -> Tensor:
        return _square_sums(self.rows)

    def explicit(self) -> Tensor:
        count = self.rows.shape[0]
        full = self.rows.new_zeros(count, self.length, *self.rows.shape[1:])
        full[torch.arange(count, device=full.device), self.examples] = self.rows
        return full.movedim(1, self.axis + 1)

    def weighted_sum(self, weights: Tensor) -> Tensor:
        scaled = self.rows * weights.to(self.rows.dtype).view(-1, *[1] * (self.rows.dim() - 1))
        total = self.rows.new_zeros(self.length, *self.rows.shape[1:])
        return total.index_add_(0, self.examples, scaled).movedim(0, self.axis)

    def select(self, examples: Tensor) -> PerExampleRow:
        return PerExampleRow(self.rows[examples], self.examples[examples], self.length, self.axis)


@dataclass(frozen=True)
class Outer:
    """G = sum over positions of left times right transposed: linear layers, matrix products, recurrent cells.

    Source: Goodfellow 2015 (one position); Lee & Kifer 2020, eq. 6 and 12 (sequences).
    """

    left: Tensor  # (b, t, o)
    right: Tensor  # (b, t, i)

    @property
    def positions(self) -> int:
        return self.left.shape[1]

    def squared_norms(self) -> Tensor:
        (b, t, o), i = self.left.shape, self.right.shape[2]
        if t == 1:
            return (_lengths(self.left) * _lengths(self.right)).square()
        if t * t <= o * i:
            return gram_product(*(torch.bmm(side, side.transpose(1, 2)) for side in (self.left, self.right)))
        return torch.cat([_square_sums(part.explicit()) for part in self._parts(b)]) if b else self.left.new_zeros(0)

    def _parts(self, b: int) -> list[Outer]:
        """Groups of examples whose explicit gradients together take little memory beside the factors."""
        (_, t, o), i = self.left.shape, self.right.shape[2]
        size = examples_at_once(o * i, b * t * (o + i))
        return [Outer(x, y) for x, y in zip(self.left.split(size), self.right.split(size), strict=True)]

    def explicit(self) -> Tensor:
        return torch.bmm(self.left.transpose(1, 2), self.right)

    def weighted_sum(self, weights: Tensor) -> Tensor:
        scaled = self.left * weights.to(self.left.dtype).view(-1, 1, 1)
        return scaled.flatten(0, 1).t() @ self.right.flatten(0, 1)

    def select(self, examples: Tensor) -> Outer:
        return Outer(self.left[examples], self.right[examples])

    def transposed(self) -> Outer:
        """The same gradients with respect to the transposed tensor."""
        return Outer(self.right, self.left)


@singledispatch
def compact(form: ExampleGradients) -> ExampleGradients:
    """The same gradients in the form that gives norms now and a weighted sum later at the least cost."""
    return form


@compact.register
def _(form: Outer) -> ExampleGradients:
    """Written out, the factors are needed no more; that saves work where it takes little more memory than they do."""
    (_, t, o), i = form.left.shape, form.right.shape[2]
    if t < _MIN_POSITIONS_TO_KEEP or o * i > _KEEP_EXPLICIT * t * (o + i):
        return form
    return Dense(form.explicit())


@dataclass(frozen=True)
class Rows:
    """Gradients that touch a few rows of a table: G[ids[t]] += rows[t]. Never forms examples x table."""

    ids: Tensor  # (b, t), -1 where nothing is touched
    rows: Tensor  # (b, t, i), zero where nothing is touched
    table: torch.Size

    def squared_norms(self) -> Tensor:
        # An example whose ids repeat has the sum of its rows there, so norms are taken after adding equal ids up.
        order = self.ids.argsort(dim=1)
        ids, rows = self.ids.gather(1, order), self.rows.gather(1, order.unsqueeze(2).expand_as(self.rows))
        starts = torch.ones_like(ids)
        starts[:, 1:] = ids[:, 1:] != ids[:, :-1]
        slots = starts.cumsum(1) - 1
        sums = torch.zeros_like(rows).scatter_add_(1, slots.unsqueeze(2).expand_as(rows), rows)
        return _square_sums(sums)

    def explicit(self) -> Tensor:
        b = self.ids.shape[0]
        full = self.rows.new_zeros(b, *self.table)
        index = self.ids.clamp(min=0).unsqueeze(2).expand_as(self.rows)
        return full.scatter_add_(1, index, self.rows)

    def weighted_sum(self, weights: Tensor) -> Tensor:
        scaled = self.rows * weights.to(self.rows.dtype).view(-1, 1, 1)
        total = self.rows.new_zeros(self.table)
        return total.index_add_(0, self.ids.clamp(min=0).flatten(), scaled.flatten(0, 1))

    def select(self, examples: Tensor) -> Rows:
        return Rows(self.ids[examples], self.rows[examples], self.table)


@dataclass(frozen=True)
class Total:
    """The sum of several gradients with respect to one tensor, such as a weight tied between two operations."""

    parts: tuple[ExampleGradients, ...]

    def squared_norms(self) -> Tensor:
        products = [inner(one, other) for one, other in combinations(self.parts, 2)]
        if not all(products):
            return _square_sums(self.explicit())
        apart = torch.stack([part.squared_norms() for part in self.parts]).sum(0)
        across = torch.stack([product() for product in products if product]).sum(0)
        # Where parts cancel, rounding can hide as much as it does in a Gram product.
        return (apart + 2 * across).clamp(min=0) + _GRAM_SLACK * torch.finfo(apart.dtype).eps * apart

    def explicit(self) -> Tensor:
        return torch.stack([part.explicit() for part in self.parts]).sum(0)

    def weighted_sum(self, weights: Tensor) -> Tensor:
        return torch.stack([part.weighted_sum(weights) for part in self.parts]).sum(0)

    def select(self, examples: Tensor) -> Total:
        return Total(tuple(part.select(examples) for part in self.parts))


def examples_at_once(numbers: int, held: int) -> int:
    """How many examples to work on together, where each takes ``numbers`` in passing and ``held`` are held anyway."""
    return max(1, int(max(_DROPPED_AT_ONCE, _DROPPED_PART * held) / numbers))


def gram_product(left: Tensor, right: Tensor) -> Tensor:
    """Sum of the products of two Gram matrices (b, t, t), with what rounding may hide added on top, shape (b,)."""
    slack = _GRAM_SLACK * torch.finfo(left.dtype).eps
    diagonal = (left.diagonal(dim1=1, dim2=2) * right.diagonal(dim1=1, dim2=2)).sum(1)
    return (left * right).sum((1, 2)).clamp(min=0) + slack * diagonal


Product = Callable[[Any, Any], Tensor]
_PRODUCTS: dict[tuple[type, type], Product] = {}


def inner_product(one: type, other: type) -> Callable[[Product], Product]:
    """Register how to find the inner product of two kinds of gradients of each example, shape (b,)."""

    def register(product: Product) -> Product:
        _PRODUCTS[one, other] = product
        return product

    return register


def inner(one: ExampleGradients, other: ExampleGradients) -> Callable[[], Tensor] | None:
    """What finds the inner product of two gradients of each example without adding them up, if anything does."""
    if product := _PRODUCTS.get((type(one), type(other))):
        return partial(product, one, other)
    if product := _PRODUCTS.get((type(other), type(one))):
        return partial(product, other, one)
    return None


@inner_product(Rows, Outer)
def _(rows: Rows, outer: Outer) -> Tensor:
    """Without forming either: <row id_s of G, rows_s> with G = sum_t left_t right_t^T."""
    # Row id_s of G is sum_t left_t[id_s] right_t.
    index = rows.ids.clamp(min=0).unsqueeze(1).expand(-1, outer.positions, -1)
    picked = outer.left.gather(2, index)  # (b, t, s)
    return (picked * torch.bmm(outer.right, rows.rows.transpose(1, 2))).sum((1, 2))


def add(parts: Sequence[ExampleGradients]) -> ExampleGradients:
    """The sum of gradients with respect to one tensor; uses of one kind are joined along the position axis.

    The squared norms of two uses never just add up: their gradients may point the same way.
    """
    if len(parts) == 1:
        return parts[0]
    joined: list[ExampleGradients] = []
    dense = [part.gradients for part in parts if isinstance(part, Dense)]
    outer = [part for part in parts if isinstance(part, Outer)]
    rows = [part for part in parts if isinstance(part, Rows)]
    if dense:
        joined.append(Dense(dense[0] if len(dense) == 1 else torch.stack(dense).sum(0)))
    if len(outer) == 1:
        joined += outer
    elif outer:
        joined.append(Outer(torch.cat([p.left for p in outer], 1), torch.cat([p.right for p in outer], 1)))
    if len(rows) == 1:
        joined += rows
    elif rows:
        joined.append(Rows(torch.cat([p.ids for p in rows], 1), torch.cat([p.rows for p in rows], 1), rows[0].table))
    joined += [part for part in parts if not isinstance(part, Dense | Outer | Rows)]
    return joined[0] if len(joined) == 1 else Total(tuple(joined))
