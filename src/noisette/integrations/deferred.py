"""Tensors that remember how they were computed from a batch, so that a loss can be computed again for one example.

A loop such as ``loss = criterion(model(x.float() / 255), y); loss.backward()`` computes the loss of a whole batch. The
tensors of the batch, and all that is computed from them by PyTorch, are :class:`Deferred`: from what they remember the
same loss is made a function of one example. So what couples examples in the loop, in front of the model or behind it,
is computed for each of them alone.
"""

from __future__ import annotations

from collections import UserDict
from collections.abc import Callable, Sequence
from copy import copy
from dataclasses import dataclass
from typing import Any, NamedTuple

import torch
from torch import Tensor
from torch.utils._pytree import tree_flatten, tree_leaves, tree_map, tree_unflatten

from noisette.errors import PrivacyError
from noisette.integrations.batch_numbers import OfBatch, OfLengths, number_of_batch, number_of_lengths

Operation = Callable[..., Any]

_LENGTHS = {Tensor.numel, Tensor.nelement}
_UNTOUCHED = {Tensor.__repr__, Tensor.__format__, Tensor.__bool__, Tensor.__hash__}  # printed, or branched on
_DETACHES = {Tensor.detach_, Tensor.data.__get__}  # type: ignore[attr-defined]
_AUGMENTED = {f"__i{name}__" for name in ("add", "sub", "mul", "truediv", "floordiv", "mod", "pow", "and", "or", "xor")}


@dataclass(frozen=True)
class Given:
    """A tensor of the batch, with one row per example."""

    value: Tensor


@dataclass(frozen=True, eq=False)
class Applied:
    """An operation with its arguments, in which :class:`Reference` stands for what was computed before.

    Attributes:
        operation: ``None`` is a call of the model.
        with_gradient: whether gradients were enabled.
    """

    operation: Operation | None
    args: tuple[Any, ...]
    kwargs: dict[str, Any]
    with_gradient: bool


@dataclass(frozen=True)
class Result:
    """One of the values that an operation returned."""

    call: Applied
    place: int


@dataclass(frozen=True)
class Reference:
    """In place of a deferred value: its place in the trace."""

    place: int


class Slice(NamedTuple):
    """In place of a slice, whose ends are arguments like others."""

    start: Any
    stop: Any
    step: Any


class Trace:
    """How everything of one batch was computed, in order.

    Args:
        count: number of examples.
        on_backward: what ``loss.backward()`` does.

    Attributes:
        count_was_read: whether the loop has the number of examples as a plain number, as by ``len()``.
        origins: a :class:`Given` or a :class:`Result` for each deferred value; empty once the batch is over.
    """

    def __init__(self, count: int, on_backward: Callable[[Deferred], None]) -> None:
        self.count = count
        self.count_was_read = False
        self.on_backward = on_backward
        self.origins: list[Given | Result] = []
        self.is_over = False

    def of_batch(self, batch: Any) -> Any:
        """The batch as the loader gives it, with its tensors deferred; dictionaries of other kinds keep their kind."""
        if isinstance(batch, UserDict):
            made = copy(batch)
            made.data = self.of_batch(batch.data)
            return made
        leaves, form = tree_flatten(batch)
        given = [self._deferred(leaf, Given(leaf)) if isinstance(leaf, Tensor) else leaf for leaf in leaves]
        return tree_unflatten(given, form)

    def called(self, operation: Operation | None, args: tuple[Any, ...], kwargs: dict[str, Any], output: Any) -> Any:
        """What an operation returned, with its tensors deferred."""
        call = Applied(operation, *self._referring(args, kwargs), torch.is_grad_enabled())
        leaves, form = tree_flatten(output)
        sources = [leaf for leaf in tree_leaves((args, kwargs)) if isinstance(leaf, Tensor)]
        found = [
            self._deferred(leaf, Result(call, place), is_part=_is_part(leaf, sources))
            if isinstance(leaf, Tensor)
            else leaf
            for place, leaf in enumerate(leaves)
        ]
        return tree_unflatten(found, form)

    def written(self, target: Deferred, operation: Operation, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
        """A deferred tensor was written in place by an operation; its values have changed already."""
        call = Applied(_OutOfPlace(operation), *self._referring(args, kwargs), torch.is_grad_enabled())
        target.place = self._add(Result(call, 0))

    def number(self, value: Any, operation: Operation, args: tuple[Any, ...]) -> Any:
        """A number that was computed from lengths."""
        if isinstance(value, bool) or not isinstance(value, int | float):
            return value
        call = Applied(operation, *self._referring(args, {}), with_gradient=True)
        return number_of_lengths(value, self, self._add(Result(call, 0)))

    def length_was_read(self) -> None:
        """A length has become a plain number."""
        self.count_was_read = True

    def close(self) -> None:
        """The batch is over: what it computed enters no other loss, and its memory is given back."""
        self.is_over = True
        self.origins.clear()

    def _deferred(self, value: Tensor, origin: Given | Result, *, is_part: bool = False) -> Deferred:
        made = value.detach().as_subclass(Deferred)
        made.recorded_in, made.place, made.is_part = self, self._add(origin), is_part
        return made

    def _add(self, origin: Given | Result) -> int:
        if not self.is_over:
            self.origins.append(origin)
        return len(self.origins) - 1

    def _referring(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> tuple[Any, Any]:
        return tree_map(self._reference, args), tree_map(self._reference, kwargs)

    def _reference(self, leaf: Any) -> Any:
        if isinstance(leaf, slice):
            return Slice(*map(self._reference, (leaf.start, leaf.stop, leaf.step)))
        is_mine = isinstance(leaf, Deferred | OfLengths) and leaf.recorded_in is self
        return Reference(leaf.place) if is_mine else leaf


class Deferred(Tensor):
    """A tensor computed from a batch, with its values and its place in the trace of this batch."""

    recorded_in: Trace
    place: int
    is_part: bool  # whether it shares memory with a larger tensor

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
            args[0].recorded_in.on_backward(args[0])
            return None
        leaves = tree_leaves((args, kwargs))
        if any(isinstance(leaf, OfBatch) for leaf in leaves):
            raise PrivacyError(
                "a number that was read from the batch, as by loss.item(), enters the loss: every example's gradient "
                "would depend on the others; compute it with tensors, so that each example has its own"
            )
        traces = [leaf.recorded_in for leaf in leaves if isinstance(leaf, Deferred)]
        trace = next((trace for trace in traces if not trace.is_over), traces[0])
        if func in _DETACHES:
            func = Tensor.detach
        if _writes(func, kwargs):
            return _write(trace, func, args, kwargs)
        with torch.no_grad():
            output = func(*tree_map(plain, args), **tree_map(plain, kwargs))
        return output if func in _UNTOUCHED else _followed(trace, func, args, kwargs, output)


def plain(leaf: Any) -> Any:
    """The values of a deferred tensor; anything else is itself."""
    return leaf.as_subclass(Tensor) if isinstance(leaf, Deferred) else leaf


def _followed(trace: Trace, func: Operation, args: tuple[Any, ...], kwargs: dict[str, Any], output: Any) -> Any:
    """What an operation returned: tensors, lengths and numbers that remember how they were computed."""
    if isinstance(output, torch.Size):
        return torch.Size([trace.number(int(n), _axis_length, (args[0], axis)) for axis, n in enumerate(output)])
    if func is Tensor.size:
        return trace.number(output, Tensor.size, (*args, *kwargs.values()))
    if func in _LENGTHS:
        return trace.number(output, func, args)
    if func is Tensor.__len__:
        trace.length_was_read()
        return output
    if func is Tensor.item:
        return number_of_batch(output)
    return trace.called(func, args, kwargs, output)


def _is_part(value: Tensor, sources: Sequence[Tensor]) -> bool:
    """Whether a tensor shows some of the elements of another one, in the same memory."""
    return any(
        value.numel() < source.numel() and value.untyped_storage().data_ptr() == source.untyped_storage().data_ptr()
        for source in map(plain, sources)
    )


def _axis_length(tensor: Tensor, axis: int) -> int:
    return tensor.shape[axis]


def _writes(func: Operation, kwargs: dict[str, Any]) -> bool:
    """Whether an operation writes into its first argument, or into one called ``out``."""
    name = getattr(func, "__name__", "")
    in_place = name.endswith("_") and not name.endswith("__") and func is not Tensor.requires_grad_
    return in_place or name == "__setitem__" or name in _AUGMENTED or kwargs.get("out") is not None


def _write(trace: Trace, func: Operation, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    """Write values of the batch, and remember it where the target is a tensor of the batch.

    Raises:
        PrivacyError: a part of a tensor of the batch is written under another name, so that this cannot be followed.
    """
    target = args[0] if kwargs.get("out") is None else None
    if isinstance(target, Deferred) and (target.is_part or target.recorded_in is not trace):
        raise PrivacyError(
            f"{func.__name__} writes into a part of a tensor of the batch, or into one of an earlier batch, which "
            "cannot be followed; make a new tensor, as by torch.where or torch.cat"
        )
    with torch.no_grad():
        output = func(*tree_map(plain, args), **tree_map(plain, kwargs))
    if isinstance(target, Deferred):
        before = args[0].place
        trace.written(target, func, (Reference(before), *args[1:]), kwargs)
        return target
    return output


@dataclass(frozen=True)
class _OutOfPlace:
    """An operation that writes in place, as one that returns a changed copy."""

    operation: Operation

    def __call__(self, before: Tensor, *args: Any, **kwargs: Any) -> Tensor:
        changed = before.clone()
        self.operation(changed, *args, **kwargs)
        return changed
