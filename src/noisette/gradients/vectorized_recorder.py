"""What the tape records of a loss inside of ``vmap``: physical tensors, with the examples on their first axis.

An operation on a weight is recorded as in an ordinary pass if it can leave ``vmap`` (``physical_operations``). In any
other, each example gets its own copy of the weight (``rules.own_copies``).
"""

from __future__ import annotations

from collections.abc import Container, Iterable, Mapping, Sequence
from typing import Any

import torch
from torch import Tensor

from noisette._internal.nested import map_tensors
from noisette.errors import PrivacyError
from noisette.gradients import vmap_internals as internals
from noisette.gradients.outside_tensors import OutsideTensors
from noisette.gradients.physical_operations import DATA_OPERANDS, PHYSICAL, Leave
from noisette.gradients.rules.own_copies import own_copies
from noisette.gradients.tape import Draft, Operation, Recorder, tensors_among

# Composite operations without a quick rule in vmap, which a rewrite decomposes also where none of their weights trains.
_DECOMPOSED = {torch.nn.functional.multi_head_attention_forward}
# Operations that write random numbers into their first argument.
_DRAW_INTO = {"bernoulli_", "cauchy_", "exponential_", "geometric_", "log_normal_", "normal_", "random_", "uniform_"}


class WrittenIntoError(Exception):
    """Values of examples are written into a tensor that was made inside of the loss, by this call of a factory."""

    def __init__(self, factory: int) -> None:
        super().__init__(factory)
        self.factory = factory


class VectorizedRecorder(Recorder):
    """Records a loss inside of ``vmap``.

    Args:
        draft, weights, constants, rewrites: as for the tape's own recorder.
        count: number of examples.
        outside: the tensors from outside that the loss used before.
        own_for_each: numbers of the calls that make constants of which each example needs one of its own.
    """

    def __init__(
        self,
        draft: Draft,
        weights: Iterable[Tensor],
        constants: Iterable[Tensor],
        rewrites: Mapping[Operation, Operation],
        count: int,
        outside: OutsideTensors,
        own_for_each: set[int],
    ) -> None:
        super().__init__(draft, weights, constants, rewrites)
        self._rewritten = rewrites
        self._count = count
        self._outside = outside
        self._own_for_each = own_for_each
        self._made: dict[int, int] = {}  # by id of a constant made inside, the number of the call that made it
        self._copies: dict[int, Tensor] = {}  # by id of a weight
        self._level = 0
        self._is_physical = False  # an operation has left vmap

    def begin(self) -> None:
        """The code inside of ``vmap`` begins."""
        level = internals.current_level()
        assert level is not None
        self._level = level

    def __torch_function__(
        self, func: Operation, types: Sequence[type], args: tuple[Any, ...] = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        kwargs = kwargs or {}
        if self._is_physical or not self._level:
            return super().__torch_function__(func, types, args, kwargs)
        weights: dict[int, Tensor] = {}
        is_batched = False
        for tensor in tensors_among(args, kwargs):
            if internals.is_wrapped(tensor):
                is_batched = True
            elif self._is_weight(tensor):
                weights[id(tensor)] = tensor
            elif not self._is_constant(tensor):
                self._outside.check(tensor)
                is_batched |= tensor.requires_grad  # a weight of another model: nothing is derived from it
        if not is_batched:
            if args and func.__name__ in _DRAW_INTO:
                self._check_written(args[0])
            return self._without_examples(func, types, args, kwargs, weights)
        if func is Tensor.new and all(isinstance(size, int | tuple) for size in args[1:]):  # a shape alone
            with self:
                return torch.empty(*args[1:], dtype=args[0].dtype, device=args[0].device)
        if func is torch.broadcast_tensors:  # vmap leaves a constant among them unwrapped
            tensors = list(tensors_among(args, kwargs))
            shape = torch.broadcast_shapes(*[tensor.shape for tensor in tensors])
            with self:
                return tuple([tensor.expand(shape) for tensor in tensors])
        if (leave := PHYSICAL.get(func)) and internals.current_level() == self._level:
            if weights and (data := DATA_OPERANDS[func]):
                args, kwargs = self._with_own_copies(args, kwargs, weights, data)
            output = self._leave_vmap(leave, func, args, kwargs)
            if output is not NotImplemented:
                return output
        if (weights or func in _DECOMPOSED) and (rewritten := self._rewritten.get(func)):
            with self:
                output = rewritten(*args, **kwargs)
            if output is not NotImplemented:
                return output
        if args and _writes(func):
            self._check_written(args[0])
        if func is Tensor.requires_grad_ and internals.current_level() == self._level:
            return args[0]  # asked for by checkpoints, which keep activations here
        if func is Tensor.__setitem__ and (mask := _mask_of(*args)) is not None:
            return args[0].masked_fill_(mask, args[2])
        if weights:
            args, kwargs = self._with_own_copies(args, kwargs, weights)
        return func(*args, **kwargs)

    def _without_examples(
        self,
        func: Operation,
        types: Sequence[type],
        args: tuple[Any, ...],
        kwargs: dict[str, Any],
        weights: Mapping[int, Tensor],
    ) -> Any:
        """An operation on weights and constants alone, which gives another; a random one may differ by example."""
        output = super().__torch_function__(func, types, args, kwargs)
        if not isinstance(output, Tensor):
            return output
        if internals.is_wrapped(output):
            if weights:
                args, kwargs = self._with_own_copies(args, kwargs, weights)
                output = func(*args, **kwargs)
            return output
        if not weights and not any(True for _ in tensors_among(args, kwargs)):
            number = len(self._made)
            self._made[id(output)] = number
            if number in self._own_for_each:
                with internals.outside():
                    own = output.expand(self._count, *output.shape).clone()
                return internals.batched(own, self._level)
        if not weights:
            self._outside.made(output)
        return output

    def _check_written(self, target: Any) -> None:
        """Before values of examples are written into a tensor that does not depend on them.

        Raises:
            WrittenIntoError: it is a constant that was made inside.
            PrivacyError: it is a parameter, or a view of one.
        """
        if not isinstance(target, Tensor) or internals.is_wrapped(target):
            return
        if self._is_weight(target):
            root = target if target._base is None else target._base
            if root.is_leaf:
                raise PrivacyError(
                    f"the loss writes values of an example into a parameter of shape {tuple(root.shape)}; parameters "
                    "change by optimizer steps alone"
                )
            self._copies[id(target)] = self._own_memory(self._own_copy(target))
        else:
            root = target if id(target) in self._made else target._base
            if root is not None and id(root) in self._made:
                raise WrittenIntoError(self._made[id(root)])

    def _own_memory(self, copy: Tensor) -> Tensor:
        """Copies of a weight that can be written into."""
        with internals.outside(), torch.enable_grad():
            return internals.batched(internals.physical(copy).clone(), self._level)

    def _leave_vmap(self, leave: Leave, func: Operation, args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> Any:
        """The operation on physical tensors, its outputs wrapped again."""
        with internals.outside():
            self._is_physical = True
            try:
                output = leave(self._run, self._count, func, args, kwargs)
            finally:
                self._is_physical = False
        if output is NotImplemented:
            return output
        return map_tensors(output, lambda tensor: internals.batched(tensor, self._level))

    def _run(self, func: Operation, args: tuple[Any, ...], kwargs: dict[str, Any] | None = None) -> Any:
        """Run and record an operation on physical tensors."""
        return super().__torch_function__(func, (), args, kwargs)

    def _with_own_copies(
        self,
        args: tuple[Any, ...],
        kwargs: Mapping[str, Any],
        weights: Mapping[int, Tensor],
        operands: Container[int | str] | None = None,
    ) -> tuple[tuple[Any, ...], dict[str, Any]]:
        """The arguments of an operation with the weights in them replaced by a copy for each example.

        ``operands`` are the positions and names of the arguments where that happens; everywhere for ``None``.
        """

        def replaced(place: int | str, value: Any) -> Any:
            if operands is not None and place not in operands:
                return value
            return map_tensors(value, lambda tensor: self._own_copy(tensor) if id(tensor) in weights else tensor)

        changed = tuple([replaced(k, value) for k, value in enumerate(args)])
        return changed, {name: replaced(name, value) for name, value in kwargs.items()}

    def _own_copy(self, weight: Tensor) -> Tensor:
        """A copy of the weight for each example, recorded as the weight's use when it is made."""
        key = id(weight)
        if key not in self._copies:
            with internals.outside(), torch.enable_grad():  # a later use may need its gradient
                copy = own_copies(weight, self._count)
                self._record_use(own_copies, (weight, self._count), {}, (weight,), [], (), copy)
                self._copies[key] = internals.batched(copy, self._level)
        return self._copies[key]


def _mask_of(target: Tensor, index: object, value: object) -> Tensor | None:
    """The mask in ``target[mask] = number``, with the axes of the target; ``None`` for any other index or value."""
    if not (isinstance(index, Tensor) and index.dtype is torch.bool and 0 < index.dim() <= target.dim()):
        return None
    if not isinstance(value, int | float) or index.shape != target.shape[: index.dim()]:
        return None
    return index.reshape(*index.shape, *[1] * (target.dim() - index.dim()))


def _writes(func: Operation) -> bool:
    """Whether an operation writes into its first argument."""
    name = func.__name__
    return name == "__setitem__" or name.startswith("__i") or (name.endswith("_") and not name.endswith("__"))
