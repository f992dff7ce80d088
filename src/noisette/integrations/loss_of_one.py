"""The loss of a batch as a function of one example, computed again from what its tensors remember."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn
from torch.utils._pytree import tree_flatten, tree_leaves, tree_map

from noisette.errors import PrivacyError
from noisette.integrations.batch_numbers import OfLengths
from noisette.integrations.deferred import Deferred, Given, Reference, Result, Slice, Trace

_EXAMPLES_OF_ONE = 1


@dataclass(frozen=True)
class _Filled:
    """In place of a tensor with one value everywhere."""

    value: int
    shape: tuple[int, ...]
    dtype: torch.dtype
    device: torch.device

    def made(self) -> Tensor:
        """The tensor."""
        return torch.full(self.shape, self.value, dtype=self.dtype, device=self.device)


class LossOfOne:
    """A deferred loss as a function of the model and of one example.

    Args:
        loss: of the batch that its trace is of.
        is_older: whether a tensor was there before the first batch, so that it is a constant whatever its shape.

    Attributes:
        rows: the arguments, each with one row per example.
        numbers: the plain numbers in it.

    Raises:
        PrivacyError: a tensor enters the loss that may hold values of other examples.
    """

    def __init__(self, loss: Deferred, is_older: Callable[[Tensor], bool]) -> None:
        trace = loss.recorded_in
        if trace.is_over:
            raise PrivacyError("the loss is of an earlier batch; compute it and call backward() in its own turn")
        self._trace = trace
        self._is_older = is_older
        self.rows: list[Tensor] = []
        self.numbers: list[float] = []
        self._loss = loss.place
        self._given: list[int] = []  # the place of each of the rows in the trace
        self._steps: list[tuple[int, Result]] = []
        self._known: dict[int, tuple[Any, Any]] = {}  # arguments with placeholders, by id of the call
        for place in sorted(_needed(trace, loss.place)):
            self._add(place)

    def __call__(self, model: nn.Module, *rows: Tensor) -> Tensor:
        computed: dict[int, Any] = dict(zip(self._given, rows, strict=True))
        outputs: dict[int, list[Any]] = {}  # of a call with several results, by its id

        def filled(leaf: Any) -> Any:
            if isinstance(leaf, Slice):
                return slice(*map(filled, leaf))
            if isinstance(leaf, _Filled):
                return leaf.made()
            return computed[leaf.place] if isinstance(leaf, Reference) else leaf

        for place, result in self._steps:
            call = result.call
            if id(call) not in outputs:
                function = model if call.operation is None else call.operation
                with torch.set_grad_enabled(call.with_gradient):
                    args, kwargs = (tree_map(filled, given, is_leaf=_is_slice) for given in self._known[id(call)])
                    outputs[id(call)] = tree_flatten(function(*args, **kwargs))[0]
            computed[place] = outputs[id(call)][result.place]
        return computed[self._loss]

    def _add(self, place: int) -> None:
        """An argument, or a step with the arguments of its operation."""
        origin = self._trace.origins[place]
        if isinstance(origin, Given):
            self._given.append(place)
            self.rows.append(origin.value)
            return
        self._steps.append((place, origin))
        call = origin.call
        if id(call) not in self._known:
            self._known[id(call)] = tree_map(self._placeholder, call.args), tree_map(self._placeholder, call.kwargs)

    def _placeholder(self, leaf: Any) -> Any:
        if isinstance(leaf, Deferred | OfLengths):  # those of this batch are references
            raise PrivacyError(
                "a value of an earlier batch enters the loss: its records would be in this step too; compute the loss "
                "from the present batch alone"
            )
        if isinstance(leaf, int | float) and not isinstance(leaf, bool):
            return self._constant(leaf)
        if not isinstance(leaf, Tensor) or self._is_older(leaf):
            return leaf
        if leaf.requires_grad:
            raise PrivacyError(
                f"a tensor of shape {tuple(leaf.shape)} that was computed from parameters apart from the batch enters "
                "the loss; for a penalty on weights use weight_decay of the optimizer"
            )
        made = _made_of_nothing(leaf, self._trace.count)
        if made is None:
            raise PrivacyError(
                f"a tensor of shape {tuple(leaf.shape)} enters the loss that was made after the first batch was drawn, "
                "and not by PyTorch from the tensors of this batch: it may hold values of other examples. Make a "
                "constant before the loop; make others from the batch, as by torch.rand_like, x.new_zeros or "
                "F.one_hot, or in the data set"
            )
        return made

    def _constant(self, number: float) -> float:
        """The number; where the loop has asked for the number of examples and this is it, that of one example."""
        self.numbers.append(float(number))
        if self._trace.count_was_read and number in (self._trace.count, 1 / self._trace.count):
            return type(number)(_EXAMPLES_OF_ONE)
        return number


class LengthCheck:
    """Compares the numbers of a loss from batch to batch with the number of examples."""

    def __init__(self) -> None:
        self._before: tuple[int, list[float]] | None = None

    def __call__(self, count: int, numbers: list[float]) -> None:
        """Check the loss of the present batch.

        Raises:
            PrivacyError: a number other than the count grows or falls with it.
        """
        before, self._before = self._before, (count, numbers)
        if before is None or before[0] == count or len(before[1]) != len(numbers):
            return
        ratio = count / before[0]
        for old, new in zip(before[1], numbers, strict=True):
            is_count = new in (count, 1 / count)
            if not is_count and old and new and any(math.isclose(new / old, by) for by in (ratio, 1 / ratio)):
                raise PrivacyError(
                    f"the loss has the number {new:g}, and had {old:g} in the last batch: it follows the number of "
                    "examples, so that one more record changes the gradients of all; take the mean, or write "
                    "x.size(0) instead of len(x)"
                )


def _is_slice(leaf: Any) -> bool:
    return isinstance(leaf, Slice)


def _needed(trace: Trace, place: int) -> set[int]:
    """The places in the trace from which the value at this place is computed, and its own."""
    found, left = {place}, [place]
    while left:
        origin = trace.origins[left.pop()]
        fresh = set(_references(origin)) - found
        found |= fresh
        left += fresh
    return found


def _references(origin: Given | Result) -> Iterator[int]:
    if isinstance(origin, Result):
        leaves = tree_leaves((origin.call.args, origin.call.kwargs))
        yield from (leaf.place for leaf in leaves if isinstance(leaf, Reference))


def _made_of_nothing(tensor: Tensor, count: int) -> Any:
    """What stands for a tensor of zeros, of ones, or of the positions 0, 1, 2, ...; ``None`` for others.

    One row per example becomes that of the only one.
    """
    of_rows = tensor.dim() > 0 and len(tensor) == count
    shape = (_EXAMPLES_OF_ONE, *tensor.shape[1:]) if of_rows else tuple(tensor.shape)
    is_whole = not tensor.is_floating_point() and not tensor.is_complex() and tensor.dtype is not torch.bool
    is_positions = is_whole and tensor.dim() == 1 and torch.equal(tensor, torch.arange(len(tensor)).to(tensor))
    if (of_rows and is_positions) or not tensor.any():
        return _Filled(0, shape, tensor.dtype, tensor.device)
    return _Filled(1, shape, tensor.dtype, tensor.device) if bool((tensor == 1).all()) else None
