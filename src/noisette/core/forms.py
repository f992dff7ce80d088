"""Per-example gradients of one tensor, each in the cheapest exact form, and the table of rules that form them.

A form holds the gradients G_1..G_b of b examples and computes three things from them: their squared norms, the
gradients themselves, and a weighted sum of them. The three always agree; forms differ only in time and memory.

Axes: b example, t position within an example, o output feature, i input feature.
"""

from __future__ import annotations

import inspect
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial, singledispatch
from itertools import combinations
from typing import Any, ClassVar, Protocol, TypeVar

import torch
from torch import Tensor
from torch.autograd.graph import GradientEdge, Node

Sums = dict[str, Tensor]  # by name of the parameter
Key = TypeVar("Key")
Function = TypeVar("Function", bound=Callable[..., Any])

# Terms of a Gram product may cancel, and rounding errors then exceed the sum; this many units of rounding of the sum's
# diagonal are added to it, so that a norm is never underestimated.
_GRAM_SLACK = 16
_KEEP_EXPLICIT = 2  # explicit gradients of at most so many times the memory of their factors replace these
# Temporary results are of a part of the batch: so many elements at most, or this share of the factors' if that is more.
_TEMPORARY_SIZE, _TEMPORARY_SHARE = 2**21, 0.25
_MIN_POSITIONS_TO_KEEP = 16  # below, writing and reading an explicit gradient costs more than computing it twice
# The dtype in which gradients are computed where it is not that of the weight. In half precision neither the norms nor
# the sums of clipped gradients keep to the bound: a sum of 4096 gradients in bfloat16 is wrong by 5 times the bound.
AT_LEAST_SINGLE = {torch.bfloat16: torch.float32, torch.float16: torch.float32}
# Squares are added up in single precision over this many numbers at most, the blocks' sums in double precision: on a
# processor a longer sum in single precision is too small by 1e-5 at a million numbers, and by 1e-3 at 16 million.
_NORM_BLOCK = 512
_NARROW = 2 * _NORM_BLOCK  # of fewer numbers they are added up at once
EXAMPLES_IN_A_BLOCK = 256  # added up in single precision at a time, the blocks' sums in double precision
# A sum of squares loses at most this many of the smallest normal numbers where squares are too small to be represented.
_LOST_SQUARES = 2**24


@dataclass(frozen=True)
class Examples:
    """The number of examples in a batch; they are on the first axis of every tensor that a rule is given.

    An operation may have merged positions into it: of A and B, of three positions each, A0 A1 A2 B0 B1 B2.
    """

    count: int

    def first(self, tensor: Tensor) -> Tensor:
        """The tensor with axes (example, position, ...); a ValueError if the first axis does not hold the examples."""
        size = tensor.shape[0] if tensor.dim() else 0
        if size == 0 or self.count == 0 or size % self.count:
            raise ValueError(f"the first axis of shape {tuple(tensor.shape)} does not hold {self.count} examples")
        return tensor.unflatten(0, (self.count, size // self.count))

    def sequences(self, tensor: Tensor) -> Tensor:
        """Axes (example, position, feature): all axes between the first and the last are positions."""
        first = self.first(tensor)
        return first.reshape(self.count, first.shape[1:-1].numel(), tensor.shape[-1])


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

    def select(self, examples: Tensor | slice) -> ExampleGradients:
        """The gradients of the examples with these indices, (n,), in their order, or of a slice of the examples."""
        ...


def sums_of_squares(rows: Tensor) -> Tensor:
    """Sum of squares over all axes but the first, shape (b,), in the precision of the rows, at least single."""
    if rows.shape[1:].numel() < _NARROW:
        return _norms(rows).square()
    flat = rows.flatten(1)
    end = flat.shape[1] // _NORM_BLOCK * _NORM_BLOCK
    whole, rest = _norms(flat[:, :end].unflatten(1, (-1, _NORM_BLOCK)), axis=2), _norms(flat[:, end:])
    return (whole.double().square().sum(1) + rest.double().square()).to(whole.dtype)


def _norms(rows: Tensor, axis: int = 1) -> Tensor:
    """Euclidean norms over this axis and those that follow, in the precision of the rows, at least single."""
    flat = rows.reshape(*rows.shape[:axis], rows.shape[axis:].numel())
    return torch.linalg.vector_norm(flat, dim=axis, dtype=AT_LEAST_SINGLE.get(rows.dtype, rows.dtype))


def scale_rows(rows: Tensor, weights: Tensor) -> Tensor:
    """Row i times weight i, in the precision of the rows; ``weights`` has shape (b,)."""
    return rows * weights.to(rows.dtype).view(-1, *[1] * (rows.dim() - 1))


@dataclass(frozen=True)
class Dense:
    """G_i = gradients[i], written out: for small tensors such as biases, and where it saves work."""

    gradients: Tensor  # (b, *shape)

    def squared_norms(self) -> Tensor:
        return sums_of_squares(self.gradients)

    def explicit(self) -> Tensor:
        return self.gradients

    def weighted_sum(self, weights: Tensor) -> Tensor:
        shape = self.gradients.shape[1:]
        rows = self.gradients.reshape(len(weights), shape.numel())  # (b, 1) for a scalar parameter
        rows = rows.to(AT_LEAST_SINGLE.get(rows.dtype, rows.dtype))
        return (weights.to(rows.dtype).unsqueeze(0) @ rows).view(shape)

    def select(self, examples: Tensor | slice) -> Dense:
        return Dense(self.gradients[examples])


@dataclass(frozen=True)
class Outer:
    """G_i = sum over t of left[i, t] right[i, t]^T, shape (o, i): linear layers, matrix products, recurrent cells.

    Source: Goodfellow 2015 (one position); Lee & Kifer 2020, eq. 6 and 12 (sequences).
    """

    left: Tensor  # (b, t, o)
    right: Tensor  # (b, t, i)

    def squared_norms(self) -> Tensor:
        """Norms by the product of norms for one position, else by Gram matrices or written out, whichever is smaller.

        Gram matrices: with G = L^T R for L (t, o) and R (t, i), the squared norm is the trace of R^T L L^T R: the sum
        over all pairs of positions (s, t) of (L L^T)[s, t] (R R^T)[s, t], of two (t, t) matrices for one (o, i).
        """
        (b, t, o), i = self.left.shape, self.right.shape[2]
        if t == 1:
            left, right = (sums_of_squares(side) + _lost(side.dtype) for side in (self.left, self.right))
            return left * right
        if t * t <= o * i:
            return gram_product(*(torch.bmm(side, side.transpose(1, 2)) for side in (self.left, self.right)))
        size = examples_at_once(o * i, b * t * (o + i))
        pairs = zip(self.left.split(size), self.right.split(size), strict=True)
        return torch.cat([sums_of_squares(Outer(left, right).explicit()) for left, right in pairs])

    def explicit(self) -> Tensor:
        return torch.bmm(self.left.transpose(1, 2), self.right)

    def weighted_sum(self, weights: Tensor) -> Tensor:
        if self.left.shape[1] == 1:
            return scale_rows(self.left.squeeze(1), weights).t() @ self.right.squeeze(1)
        return scale_rows(self.left, weights).flatten(0, 1).t() @ self.right.flatten(0, 1)

    def select(self, examples: Tensor | slice) -> Outer:
        return Outer(self.left[examples], self.right[examples])

    def transposed(self) -> Outer:
        """The same gradients with respect to the transposed tensor."""
        return Outer(self.right, self.left)


@singledispatch
def compact(form: ExampleGradients) -> ExampleGradients:
    """The same gradients in the form that costs least where norms are needed now and a weighted sum later."""
    return form


def compacted(forms: Mapping[str, ExampleGradients]) -> dict[str, ExampleGradients]:
    """The gradients of several parameters by :func:`compact`."""
    return {name: compact(form) for name, form in forms.items()}


def squared_norms(forms: Mapping[str, ExampleGradients]) -> dict[str, Tensor]:
    """The squared norms of the gradients of several parameters, (b,); of many small layers in few operations."""
    squared: dict[str, Tensor] = {}
    alike: dict[tuple[int, torch.dtype], dict[str, Sequence[Tensor]]] = {}
    for name, form in forms.items():
        if sides := _narrow_sides(form):
            alike.setdefault((len(sides), sides[0].dtype), {})[name] = sides
        else:
            squared[name] = form.squared_norms()
    for (count, _), sides_of in alike.items():
        squares = [torch.stack([*map(_norms, sides)]).square() for sides in zip(*sides_of.values(), strict=True)]
        products = squares[0] if count == 1 else torch.mul(*[each + _lost(each.dtype) for each in squares])
        squared.update(zip(sides_of, products.unbind(), strict=True))
    return squared


def _narrow_sides(form: ExampleGradients) -> Sequence[Tensor]:
    """A tensor, or two whose norms multiply to the gradients', with few numbers for each example; else nothing."""
    sides = [form.gradients] if type(form) is Dense else []
    if type(form) is Outer and form.left.shape[1] == 1:
        sides = [form.left, form.right]
    return sides if all(side.shape[1:].numel() < _NARROW for side in sides) else []


@compact.register
def _(form: Outer) -> ExampleGradients:
    """Written out if that saves work and takes little more memory than the factors, which are released."""
    (_, t, o), i = form.left.shape, form.right.shape[2]
    return Dense(form.explicit()) if writing_out_pays(t, o * i, t * (o + i)) else form


def writing_out_pays(positions: int, explicit: int, factors: int) -> bool:
    """Whether an explicit gradient saves work and takes little more memory than its factors, both in elements."""
    return positions >= _MIN_POSITIONS_TO_KEEP and explicit <= _KEEP_EXPLICIT * factors


@dataclass(frozen=True)
class Rows:
    """G_i is zero but for the sum of ``rows[i, t]`` in row ``ids[i, t]`` of a table; (b, *table) is never allocated."""

    ids: Tensor  # (b, t), -1 where a position adds nothing
    rows: Tensor  # (b, t, i), zero where a position adds nothing
    table: torch.Size  # shape of the table

    def squared_norms(self) -> Tensor:
        """Of rows added up by equal ids: [7, 2, 7] are sorted to [2, 7, 7] and numbered [0, 1, 1]."""
        order = self.ids.argsort(dim=1)
        ids, rows = self.ids.gather(1, order), self.rows.gather(1, order.unsqueeze(2).expand_as(self.rows))
        is_new = torch.ones_like(ids)
        is_new[:, 1:] = ids[:, 1:] != ids[:, :-1]
        slots = is_new.cumsum(1) - 1
        return sums_of_squares(torch.zeros_like(rows).scatter_add_(1, slots.unsqueeze(2).expand_as(rows), rows))

    def explicit(self) -> Tensor:
        full = self.rows.new_zeros(self.ids.shape[0], *self.table)
        return full.scatter_add_(1, self.ids.clamp(min=0).unsqueeze(2).expand_as(self.rows), self.rows)

    def weighted_sum(self, weights: Tensor) -> Tensor:
        # In double precision, because every position of every example may add to the same row of the table.
        total = self.rows.new_zeros(self.table, dtype=torch.float64)
        rows = scale_rows(self.rows, weights).flatten(0, 1).double()
        return total.index_add_(0, self.ids.clamp(min=0).flatten(), rows).to(self.rows.dtype)

    def select(self, examples: Tensor | slice) -> Rows:
        return Rows(self.ids[examples], self.rows[examples], self.table)


@dataclass(frozen=True)
class Total:
    """The sum of gradients of different forms with respect to one tensor, such as a weight tied to an embedding."""

    parts: tuple[ExampleGradients, ...]

    def squared_norms(self) -> Tensor:
        """|A + B|^2 = |A|^2 + |B|^2 + 2 <A, B> where inner products are known, else norms of the written-out sum."""
        products = [find_inner_product(one, other) for one, other in combinations(self.parts, 2)]
        if not all(products):
            return sums_of_squares(self.explicit())
        squares = torch.stack([part.squared_norms() for part in self.parts]).sum(0)
        cross_terms = torch.stack([product() for product in products if product]).sum(0)
        # Parts may cancel, as the terms of a Gram product may.
        return (squares + 2 * cross_terms).clamp(min=0) + _GRAM_SLACK * torch.finfo(squares.dtype).eps * squares

    def explicit(self) -> Tensor:
        return torch.stack([part.explicit() for part in self.parts]).sum(0)

    def weighted_sum(self, weights: Tensor) -> Tensor:
        return torch.stack([part.weighted_sum(weights) for part in self.parts]).sum(0)

    def select(self, examples: Tensor | slice) -> Total:
        return Total(tuple(part.select(examples) for part in self.parts))


def examples_at_once(size: int, held: int) -> int:
    """How many examples to compute together: ``size`` temporary elements each, ``held`` elements in all factors."""
    return max(1, int(max(_TEMPORARY_SIZE, _TEMPORARY_SHARE * held) / size))


def _lost(dtype: torch.dtype) -> float:
    """What a sum of squares may lack at most, because squares too small for the dtype are zero: 1e-24 times 1e19."""
    return _LOST_SQUARES * torch.finfo(dtype).tiny


def gram_product(left: Tensor, right: Tensor) -> Tensor:
    """Sum over (s, t) of the product of two Gram matrices (b, t, t), plus a bound on its rounding error, (b,)."""
    slack, lost = _GRAM_SLACK * torch.finfo(left.dtype).eps, _lost(left.dtype) * left.shape[1]
    diagonals = left.diagonal(dim1=1, dim2=2), right.diagonal(dim1=1, dim2=2)
    traces = torch.stack([diagonal.sum(1) for diagonal in diagonals]).sum(0)
    return (left * right).sum((1, 2)).clamp(min=0) + slack * (diagonals[0] * diagonals[1]).sum(1) + lost * traces


InnerProduct = Callable[[Any, Any], Tensor]  # of two forms, for each example: shape (b,)
_INNER_PRODUCTS: dict[tuple[type, type], InnerProduct] = {}


def inner_product(one: type, other: type) -> Callable[[InnerProduct], InnerProduct]:
    """Register a function that computes each example's inner product of two forms without writing them out."""
    return _entered(_INNER_PRODUCTS, (one, other))


def _entered(table: dict[Key, Function], *keys: Key) -> Callable[[Function], Function]:
    """A decorator that enters a function into a table under these keys."""

    def register(function: Function) -> Function:
        table.update(dict.fromkeys(keys, function))
        return function

    return register


def find_inner_product(one: ExampleGradients, other: ExampleGradients) -> Callable[[], Tensor] | None:
    """What computes each example's inner product of two gradients, shape (b,), or ``None`` for unregistered forms."""
    for left, right in ((one, other), (other, one)):
        if product := _INNER_PRODUCTS.get((type(left), type(right))):
            return partial(product, left, right)
    return None


@inner_product(Rows, Outer)
def _(rows: Rows, outer: Outer) -> Tensor:
    """Sum over s of <row id_s of G, rows_s>, where row id of G = sum_t left_t right_t^T is sum_t left_t[id] right_t."""
    index = rows.ids.clamp(min=0).unsqueeze(1).expand(-1, outer.left.shape[1], -1)
    picked = outer.left.gather(2, index)  # (b, t, s)
    return (picked * torch.bmm(outer.right, rows.rows.transpose(1, 2))).sum((1, 2))


def add(parts: Sequence[ExampleGradients]) -> ExampleGradients:
    """The sum of gradients with respect to one tensor; those of one form are merged along the position axis.

    Squared norms of two uses cannot be added, because their gradients may point in the same direction.
    """
    if len(parts) == 1:
        return parts[0]
    dense = [part for part in parts if isinstance(part, Dense)]
    outer = [part for part in parts if isinstance(part, Outer)]
    rows = [part for part in parts if isinstance(part, Rows)]
    if len(dense) > 1:
        dense = [Dense(torch.stack([p.gradients for p in dense]).sum(0))]
    if len(outer) > 1:
        outer = [Outer(torch.cat([p.left for p in outer], 1), torch.cat([p.right for p in outer], 1))]
    if len(rows) > 1:
        rows = [Rows(torch.cat([p.ids for p in rows], 1), torch.cat([p.rows for p in rows], 1), rows[0].table)]
    others = [part for part in parts if not isinstance(part, Dense | Outer | Rows)]
    merged: list[ExampleGradients] = [*dense, *outer, *rows, *others]
    return merged[0] if len(merged) == 1 else Total(tuple(merged))


def weighted_sum_in_blocks(form: ExampleGradients, weights: Tensor, kept: Tensor | None) -> Tensor:
    """The weighted sum of the kept examples (indices; all for ``None``), in blocks added up in double precision."""
    if len(weights) <= EXAMPLES_IN_A_BLOCK:
        return (form if kept is None else form.select(kept)).weighted_sum(weights)
    blocks = [slice(start, start + EXAMPLES_IN_A_BLOCK) for start in range(0, len(weights), EXAMPLES_IN_A_BLOCK)]
    parts = (form.select(at if kept is None else kept[at]).weighted_sum(weights[at]) for at in blocks)
    total = next(parts).double()
    for part in parts:
        total += part
    return total


# The table of rules: (operation, operand) -> how to form the per-example gradients of that operand

Operation = Callable[..., Any]


@dataclass(frozen=True)
class DerivedWeight:
    """A tensor computed from trainable parameters and constants alone, such as a slice or a masked weight."""

    tensor: Tensor
    parents: tuple[Tensor, ...]  # the trainable parameters it comes from
    operation: Operation
    args: tuple[Any, ...]
    kwargs: Mapping[str, Any]


@dataclass(frozen=True)
class Use:
    """One operation on weights and data."""

    operation: Operation
    args: tuple[Any, ...]
    kwargs: Mapping[str, Any]
    weights: tuple[Tensor, ...]  # each once
    outputs: tuple[GradientEdge | None, ...]  # None where no gradient can arrive
    edges: tuple[GradientEdge, ...]  # the outputs at which a gradient can arrive
    several: bool  # the operation returned more than one value
    shape: tuple[int, ...]  # of its first output
    dtype: torch.dtype  # of its first output
    upstream: tuple[Node, ...]  # graph nodes of the data arguments, where the rest of the model continues
    versions: tuple[tuple[Tensor, int], ...]  # the data arguments and their version counters at the call

    # Its arguments are computed again in the backward pass, for one pass alone.
    is_recomputed: ClassVar[bool] = False

    def whole(self) -> Use:
        """The use with its arguments, also where they were not kept."""
        return self


Rule = Callable[..., Any]  # -> ExampleGradients, or a list of them for an operand that is a list
Rewrite = Callable[..., Any]

_RULES: dict[tuple[Operation, str], Rule] = {}
OPERANDS: dict[Operation, tuple[str, ...]] = {}  # the names of the arguments of operations that have rules
REWRITES: dict[Operation, Rewrite] = {}
ALWAYS_REWRITTEN = set[Operation]()  # also where none of their weights trains
# Rules that take what the pass computed in half precision as it is, and for which ``dy`` and arguments.
AS_COMPUTED: dict[Rule, Callable[[Any, Mapping[str, Any]], bool]] = {}

Run = Callable[..., Any]  # (operation, args, kwargs): runs and records an operation on physical tensors
Leave = Callable[[Run, int, Operation, tuple[Any, ...], Mapping[str, Any]], Any]  # -> physical output
PHYSICAL: dict[Operation | str, Leave] = {}  # by name where the operation is not of torch
# By operation the operands, as positions and names, that are data to it: each example needs a copy of a weight there.
DATA_OPERANDS: dict[Operation | str, frozenset[int | str]] = {}

# From the gradients of a derived weight to those of the tensors it was computed from; ``None`` where autograd does it.
Derivation = Callable[[DerivedWeight, ExampleGradients], list[tuple[Tensor, ExampleGradients]] | None]
DERIVATIONS: dict[Operation, Derivation] = {}

# From the gradients of parameters and derived weights that were used to those of each parameter, once.
ToParameters = Callable[
    [Sequence[tuple[Tensor, ExampleGradients]], Mapping[int, DerivedWeight]], list[tuple[Tensor, ExampleGradients]]
]
TO_PARAMETERS: list[ToParameters] = []  # the one function that the rules hand in


def leaves(*operations: Operation | str, data: Sequence[int | str] = ()) -> Callable[[Leave], Leave]:
    """Register how these operations leave ``vmap``, and which of their operands are data to them."""
    DATA_OPERANDS.update(dict.fromkeys(operations, frozenset(data)))
    return _entered(PHYSICAL, *operations)


def derivation(*operations: Operation) -> Callable[[Derivation], Derivation]:
    """Register how the gradients of a weight that these operations derive become those of its operands."""
    return _entered(DERIVATIONS, *operations)


def rule(
    *operations: Operation, operand: str | Sequence[str] = "weight", names: tuple[str, ...] = ()
) -> Callable[[Rule], Rule]:
    """Register the rule of one operand of these operations, or one function for several operands.

    A rule is called as ``rule(examples, dy, ...)``: how many examples there are, the gradient that arrives at the
    operation's output (of several outputs a tuple, with ``None`` where no loss depends on one), and the operation's own
    arguments under its own names, all data with the examples on the first axis. It returns the per-example gradients of
    ``operand``, a list where that is a list of tensors. Of several operands it gets the name of the wanted one first.
    ``names`` are those of all arguments of the operations: of the function's own unless given. A ``ValueError`` says
    that an operand has a rule already, or the rule does not take it.
    """

    def register(function: Rule) -> Rule:
        parameters = tuple(inspect.signature(function).parameters)
        if isinstance(operand, str):
            _register(operations, operand, function, names or parameters[2:], function.__name__)
            return function
        for each in operand:
            of_operand = partial(function, each)
            vars(of_operand)["__name__"] = f"{function.__name__}_{each}"
            _register(operations, each, of_operand, names or parameters[3:], function.__name__)
        return function

    return register


def _register(operations: Sequence[Operation], operand: str, rule: Rule, names: tuple[str, ...], name: str) -> None:
    """Enter the rule of one operand of operations whose arguments have these names."""
    if operand not in names:
        raise ValueError(f"rule {name} takes {', '.join(names)}; it has no operand {operand!r}")
    for operation in operations:
        if (operation, operand) in _RULES:
            raise ValueError(f"{operation_name(operation)} has a rule for its operand {operand!r} already")
        if OPERANDS.setdefault(operation, names) != names:
            raise ValueError(f"rules of {operation_name(operation)} disagree about its operands")
        _RULES[operation, operand] = rule


def rewrite(*operations: Operation, always: bool = False) -> Callable[[Rewrite], Rewrite]:
    """Register a function that computes what these operations compute, out of operations that have rules.

    It gets the operation's own arguments whenever one of them is a trainable weight, or ``always``, and returns
    ``NotImplemented`` where the operation should run as it is.
    """
    ALWAYS_REWRITTEN.update(operations if always else ())
    return _entered(REWRITES, *operations)


@dataclass(frozen=True)
class OperandMatch:
    """An operand of a use that holds trainable weights, and its rule."""

    name: str
    value: Any  # the argument: a weight, or a list or tuple with weights in it
    weights: tuple[Tensor, ...]
    rule: Rule | None


@dataclass(frozen=True)
class Match:
    """A use as the rules see it."""

    arguments: dict[str, Any]  # by operand name, or "argument k" where no rule names it
    unknown: tuple[str, ...]  # arguments that no rule of the operation names
    operands: tuple[OperandMatch, ...]


def match(operation: Operation, args: Sequence[Any], kwargs: Mapping[str, Any], weights: Sequence[Tensor]) -> Match:
    """Name the arguments of a call and find the rule of each operand that is, or holds, one of these weights."""
    arguments = named_arguments(operation, args, kwargs)
    names = OPERANDS.get(operation, ())
    found = []
    for name, value in arguments.items():
        parts = set(map(id, value)) if type(value) in (list, tuple) else {id(value)}
        if held := [weight for weight in weights if id(weight) in parts]:
            found.append(OperandMatch(name, value, tuple(held), _RULES.get((operation, name))))
    unknown = () if arguments.keys() <= set(names) else tuple([name for name in arguments if name not in names])
    return Match(arguments, unknown, tuple(found))


def find_rule(operation: Operation, operand: str) -> Rule | None:
    """The rule of this operand, or ``None``."""
    return _RULES.get((operation, operand))


def named_arguments(operation: Operation, args: Sequence[Any], kwargs: Mapping[str, Any]) -> dict[str, Any]:
    """The call's arguments by the operand names of its rules, or numbered where the operation has none."""
    names = OPERANDS.get(operation, ())
    if "axis" in kwargs and "dim" in names:  # NumPy's name of it
        kwargs = {"dim" if name == "axis" else name: value for name, value in kwargs.items()}
    numbered = {f"argument {k}": args[k] for k in range(len(names), len(args))}
    return {**dict(zip(names, args, strict=False)), **numbered, **kwargs}


def operation_name(operation: Operation) -> str:
    """The name that users know: ``linear``, ``Tensor.add``."""
    qualified = getattr(operation, "__qualname__", None) or getattr(operation, "__name__", repr(operation))
    return re.sub(r"_VariableFunctionsClass\.", "", re.sub("_?TensorBase", "Tensor", qualified))
