"""Tensors that remember how they were computed from a model's output, so that a loss can be computed again alone.

A loop such as ``loss = criterion(model(x), y); loss.backward()`` computes the loss of a whole batch. From what is
remembered here the same loss is made a function of one example: the model's arguments and all tensors with one row per
example become its arguments. A loss that couples examples in the loop is so computed for each of them alone.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn
from torch.utils._pytree import tree_flatten, tree_map, tree_unflatten

from noisette.errors import PrivacyError

Operation = Callable[..., Any]
Backward = Callable[["Deferred"], None]

# What only reads values: their results do not lead to a gradient.
_READS = {
    *(Tensor.detach, Tensor.tolist, Tensor.numpy, Tensor.__repr__, Tensor.__format__, Tensor.__bool__),
    *(Tensor.__float__, Tensor.__int__, Tensor.__len__, Tensor.size, Tensor.dim, Tensor.numel),
}


class BatchNumber(float):
    """A number read from a deferred tensor: of the whole batch, so it may be printed and summed, but enter no loss."""

    def _of(self, value: Any) -> Any:
        return value if value is NotImplemented else BatchNumber(value)

    def __add__(self, other: float) -> Any:
        return self._of(float.__add__(self, other))

    def __sub__(self, other: float) -> Any:
        return self._of(float.__sub__(self, other))

    def __rsub__(self, other: float) -> Any:
        return self._of(float.__rsub__(self, other))

    def __mul__(self, other: float) -> Any:
        return self._of(float.__mul__(self, other))

    def __truediv__(self, other: float) -> Any:
        return self._of(float.__truediv__(self, other))

    def __rtruediv__(self, other: float) -> Any:
        return self._of(float.__rtruediv__(self, other))

    def __neg__(self) -> Any:
        return self._of(float.__neg__(self))

    __radd__, __rmul__ = __add__, __mul__


@dataclass(frozen=True)
class Call:
    """A call of the model, with one of the tensors that it returned."""

    args: tuple[Any, ...]
    kwargs: Mapping[str, Any]
    place: int  # among the tensors of the output


@dataclass(frozen=True)
class Applied:
    """An operation on deferred tensors and others, with one of the tensors that it returned."""

    operation: Operation
    args: tuple[Any, ...]
    kwargs: Mapping[str, Any]
    place: int


class Deferred(Tensor):
    """A tensor computed from a model's output, with its values and the way they were computed.

    Attributes:
        origin: how it was computed.
        on_backward: what ``backward()`` does.
    """

    origin: Call | Applied
    on_backward: Backward

    @staticmethod
    def of(value: Tensor, origin: Call | Applied, on_backward: Backward) -> Deferred:
        """The tensor with these values."""
        made = value.detach().as_subclass(Deferred)
        made.origin, made.on_backward = origin, on_backward
        return made

    @classmethod
    def __torch_function__(
        cls, func: Operation, types: Sequence[type], args: tuple[Any, ...] = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        kwargs = kwargs or {}
        if func is Tensor.backward:
            if any(given is not None for given in (*args[1:], kwargs.get("gradient"), kwargs.get("inputs"))):
                raise PrivacyError(
                    "call loss.backward() without arguments: each example's loss is differentiated alone"
                )
            args[0].on_backward(args[0])
            return None
        leaves = tree_flatten((args, kwargs))[0]
        if any(isinstance(leaf, BatchNumber) for leaf in leaves):
            raise PrivacyError(
                "a number that was read from the batch, as by loss.item(), enters the loss: every example's gradient "
                "would depend on the others; compute it in the loss, where each example has its own"
            )
        given = next(leaf for leaf in leaves if isinstance(leaf, Deferred))
        with torch.no_grad():
            output = func(*tree_map(plain, args), **tree_map(plain, kwargs))
        if func is Tensor.item:
            return BatchNumber(output)
        if func in _READS:
            return output
        return deferred(output, lambda place: Applied(func, args, kwargs, place), given.on_backward)


def plain(leaf: Any) -> Any:
    """The values of a deferred tensor; anything else is itself."""
    return leaf.as_subclass(Tensor) if isinstance(leaf, Deferred) else leaf


def deferred(output: Any, origin: Callable[[int], Call | Applied], on_backward: Backward) -> Any:
    """The same nested values with each floating tensor deferred."""
    leaves, form = tree_flatten(output)
    return tree_unflatten(
        [
            Deferred.of(leaf, origin(place), on_backward)
            if isinstance(leaf, Tensor) and leaf.is_floating_point()
            else leaf
            for place, leaf in enumerate(leaves)
        ],
        form,
    )


@dataclass(frozen=True)
class _Row:
    """In place of a tensor with one row per example: its number among the arguments."""

    number: int


class LossOfOne:
    """A deferred loss as a function of the model and of one example.

    Args:
        loss: the deferred loss.
        count: number of examples; tensors with so many rows are arguments, and all others constants.
        is_older: whether a tensor was there before the batch, so that it is a constant whatever its shape.

    Attributes:
        rows: the arguments, each with one row per example.
    """

    def __init__(self, loss: Deferred, count: int, is_older: Callable[[Tensor], bool]) -> None:
        self._count = count
        self._is_older = is_older
        self.rows: list[Tensor] = []
        self._numbers: dict[int, int] = {}  # of each argument, by id of the tensor
        self._steps: list[tuple[Operation | None, Any, Any, int]] = []  # in order; None is a call of the model
        self._places: dict[int, int] = {}  # of the step that computes a deferred tensor, by its id
        self._known: dict[int, tuple[Any, Any]] = {}  # arguments with placeholders, by id of the arguments
        self._held: list[Any] = []  # so that no id is used again
        self._add(loss)

    def __call__(self, model: nn.Module, *rows: Tensor) -> Tensor:
        computed: list[Any] = []

        def given(leaf: Any) -> Any:
            if isinstance(leaf, _Row):
                return rows[leaf.number]
            return computed[leaf.number] if isinstance(leaf, _Step) else leaf

        outputs: dict[int, list[Any]] = {}  # of a call with several results, by id of its arguments
        for operation, args, kwargs, place in self._steps:
            if id(args) not in outputs:
                function = model if operation is None else operation
                outputs[id(args)] = tree_flatten(function(*tree_map(given, args), **tree_map(given, kwargs)))[0]
            computed.append(outputs[id(args)][place])
        return computed[-1]

    def _add(self, tensor: Deferred) -> _Step:
        """The step that computes a deferred tensor, after those that it needs."""
        if id(tensor) not in self._places:
            origin = tensor.origin
            operation = None if isinstance(origin, Call) else origin.operation
            args, kwargs = self._shared(origin.args, origin.kwargs)
            self._steps.append((operation, args, kwargs, origin.place))
            self._places[id(tensor)] = len(self._steps) - 1
            self._held.append(tensor)
        return _Step(self._places[id(tensor)])

    def _shared(self, args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> tuple[Any, Any]:
        """Arguments with placeholders; the same objects for the same arguments."""
        if id(args) not in self._known:
            self._known[id(args)] = tree_map(self._placeholder, args), tree_map(self._placeholder, dict(kwargs))
            self._held.append(args)
        return self._known[id(args)]

    def _placeholder(self, leaf: Any) -> Any:
        if isinstance(leaf, Deferred):
            return self._add(leaf)
        if not isinstance(leaf, Tensor) or leaf.dim() == 0 or len(leaf) != self._count or self._is_older(leaf):
            return leaf
        if id(leaf) not in self._numbers:
            self._numbers[id(leaf)] = len(self.rows)
            self.rows.append(leaf)
        return _Row(self._numbers[id(leaf)])


@dataclass(frozen=True)
class _Step:
    """In place of a deferred tensor: the number of the step that computes it."""

    number: int
