"""What the tape records of a loss inside of ``vmap``: physical tensors, with the examples on their first axis.

An operation on a weight is recorded as in an ordinary pass if it can leave ``vmap`` (``physical_operations``). In any
other, each example gets its own copy of the weight (``rules.own_copies``).
"""

from __future__ import annotations

from collections.abc import Callable, Container, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from functools import cache
from typing import Any

import torch
from torch import Tensor
from torch._ops import HigherOrderOperator

from noisette.errors import PrivacyError
from noisette.gradients import vmap_internals as internals
from noisette.gradients.outside_tensors import OutsideTensors
from noisette.gradients.physical_operations import DATA_OPERANDS, PHYSICAL, Leave
from noisette.gradients.recording import Draft, Operation, Use
from noisette.gradients.rules.own_copies import own_copies
from noisette.gradients.tape import Recorder, outputs_of, tensors_among
from noisette.gradients.vectorized_errors import CALLS_FUNCTIONS, NotVectorizedError

# Composite operations without a quick rule in vmap, which a rewrite decomposes also where none of their weights trains.
_DECOMPOSED = {torch.nn.functional.multi_head_attention_forward}

_CALL = "_noisette_call"  # the attribute that tells of which call of a loss a batched tensor is

_RANDOM_IN_PLACE = {
    *(Tensor.uniform_, Tensor.normal_, Tensor.bernoulli_, Tensor.exponential_, Tensor.random_, Tensor.cauchy_),
    *(Tensor.log_normal_, Tensor.geometric_),
}

_IS_ALL_TRUE = {torch._is_all_true, Tensor._is_all_true}  # pyright: ignore[reportPrivateImportUsage, reportAttributeAccessIssue]
# What they give with a constant depends on the type and shape of the other argument alone.
_OF_A_CONSTANT = {Tensor.new_tensor, Tensor.to, Tensor.type_as, Tensor.reshape_as}
_TEXTS = {Tensor.__repr__, Tensor.__format__}
_CONTROL_FLOW = "torch._higher_order_ops"  # within a mode these lose gradients without a word


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
        self._call = object()
        self._level = 0
        self._is_physical = False  # an operation has left vmap

    def begin(self, level: int, tensors: Sequence[Tensor]) -> None:
        """The code inside of ``vmap`` begins, at this level and with these tensors of the examples."""
        self._level = level
        for tensor in tensors:
            setattr(tensor, _CALL, self._call)

    def end(self) -> None:
        """The recording is complete, and the tape has it: what recomputes a part of the loss needs no other part."""
        self._draft = Draft()

    def made_so_far(self) -> tuple[dict[int, int], dict[int, Tensor]]:
        """The constants made inside and the copies of weights at this point, to go on from it once more."""
        return dict(self._made), dict(self._copies)

    @contextmanager
    def again(self, made: tuple[dict[int, int], dict[int, Tensor]]) -> Iterator[list[Use]]:
        """Within it a part of the loss runs inside of ``vmap`` once more, from this point; gives its uses."""
        draft, self._draft = self._draft, Draft()
        now = self.made_so_far()
        self._made, self._copies = dict(made[0]), dict(made[1])
        try:
            with internals.as_if_compiled(), internals.vmap_level(self._count) as level, self:
                if level != self._level:
                    raise PrivacyError("the backward pass runs inside of another transformation of torch.func")
                yield self._draft.uses
        finally:
            self._draft = draft
            self._made, self._copies = now

    def __torch_function__(
        self, func: Operation, types: Sequence[type], args: tuple[Any, ...] = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        kwargs = kwargs or {}
        if self._is_physical or not self._level:
            return super().__torch_function__(func, types, args, kwargs)
        output = self._inside(func, types, args, kwargs)
        for tensor in outputs_of(output):
            if internals.is_wrapped(tensor):
                setattr(tensor, _CALL, self._call)
        return output

    def _inside(self, func: Operation, types: Sequence[type], args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        """An operation inside of ``vmap``."""
        if isinstance(func, HigherOrderOperator) and type(func).__module__.startswith(_CONTROL_FLOW):
            raise RuntimeError(CALLS_FUNCTIONS)
        weights: dict[int, Tensor] = {}
        is_batched = is_foreign = False
        for tensor in tensors_among(args, kwargs):
            if internals.is_wrapped(tensor):
                is_batched = True
                self._check_of_this_call(tensor)
            elif self._is_weight(tensor):
                weights[id(tensor)] = tensor
            elif not self._is_constant(tensor):
                self._outside.check(tensor)
                is_foreign |= tensor.requires_grad  # a weight of another model: nothing is derived from it
                if not tensor.requires_grad:
                    self._constants[id(tensor)] = tensor
        if is_foreign and not is_batched and not weights and not _writes(func):
            with torch.no_grad():  # nobody wants its gradient, so the output is a constant
                return self._without_examples(func, types, args, kwargs, weights)
        is_batched |= is_foreign
        if not is_batched:
            return self._without_examples(func, types, args, kwargs, weights)
        is_inner = internals.current_level() != self._level  # inside of a transformation by the loss itself
        if func is Tensor.requires_grad_ and not is_inner:
            return args[0]  # what depends on an example and on a weight has a gradient; vmap refuses the call
        if func is Tensor.__iter__:
            with self:
                return iter(args[0].unbind(0))
        if func is Tensor.__setitem__ and _selects_by_mask(*args):
            return self._write_by_mask(*args)
        if func is Tensor.new and all(isinstance(size, int | tuple) for size in args[1:]):  # a shape alone
            with self:
                return torch.empty(*args[1:], dtype=args[0].dtype, device=args[0].device)
        if func is torch.broadcast_tensors:  # vmap leaves a constant among them unwrapped
            tensors = list(tensors_among(args, kwargs))
            shape = torch.broadcast_shapes(*[tensor.shape for tensor in tensors])
            with self:
                return tuple([tensor.expand(shape) for tensor in tensors])
        if (leave := PHYSICAL.get(func)) and not is_inner:
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
        if weights:
            args, kwargs = self._with_own_copies(args, kwargs, weights)
        if func in _IS_ALL_TRUE:  # whether arguments are valid, as of a distribution: no branch may depend on it
            valid = torch.ones((), dtype=torch.bool)
            self._constants[id(valid)] = valid
            return valid
        if func in _TEXTS:  # numbers in a text could come back as numbers
            return f"tensor of shape {tuple(args[0].shape)} for each example"
        output = func(*args, **kwargs)
        self._check_separate(func, args, kwargs, output)
        return output

    def _write_by_mask(self, target: Tensor, mask: Tensor, value: object) -> None:
        """``target[mask] = value`` for one value, or one row, that is written in each selected place.

        ``vmap`` refuses the selection, whose size depends on an example.
        """
        with self:
            wide = mask.reshape(*mask.shape, *[1] * (target.dim() - mask.dim()))
            target.copy_(torch.where(wide, value, target))  # pyright: ignore[reportArgumentType, reportCallIssue]

    def _check_separate(
        self, func: Operation, args: tuple[Any, ...], kwargs: Mapping[str, Any], output: object
    ) -> None:
        """Check that an operation on examples has not given one tensor for all of them, but for constants it was given.

        Raises:
            NotVectorizedError: it looked at more than one example.
        """
        for tensor in outputs_of(output):
            if not internals.is_wrapped(tensor):
                if func not in _OF_A_CONSTANT and _has_own_memory(tensor, args, kwargs):
                    raise NotVectorizedError(
                        f"the loss calls {func.__name__}, which gives one value for all examples; leave it out."
                    )
                self._constants[id(tensor)] = tensor

    def _check_of_this_call(self, tensor: Tensor) -> None:
        """Check that a batched tensor is not one that was kept since another call.

        ``vmap`` itself would take it, row by row, as values of the examples that have the same places now.
        """
        if getattr(tensor, _CALL, self._call) is not self._call:
            raise PrivacyError(
                f"the loss uses a tensor of shape {tuple(tensor.shape)} that an earlier call has computed from other "
                "examples; begin each call with a state that depends on no example"
            )
        setattr(tensor, _CALL, self._call)  # made by code that is hidden from torch functions

    def _without_examples(
        self,
        func: Operation,
        types: Sequence[type],
        args: tuple[Any, ...],
        kwargs: dict[str, Any],
        weights: Mapping[int, Tensor],
    ) -> Any:
        """An operation on weights and constants alone, which gives another; a random one may differ by example."""
        if func in _RANDOM_IN_PLACE:
            self._check_written(args[0])
        output = super().__torch_function__(func, types, args, kwargs)
        if not isinstance(output, Tensor):
            return output
        if internals.is_wrapped(output):
            if weights:
                args, kwargs = self._with_own_copies(args, kwargs, weights)
                output = func(*args, **kwargs)
        elif not output.requires_grad:
            if _has_own_memory(output, args, kwargs):
                number = len(self._made)
                self._made[id(output)] = number
                if number in self._own_for_each:
                    with internals.outside():
                        own = output.expand(self._count, *output.shape).clone()
                    return internals.batched(own, self._level)
            self._outside.made(output)
        return output

    def _check_written(self, target: Any) -> None:
        """Before values of examples are written into a tensor that does not depend on them.

        Raises:
            WrittenIntoError: it is a constant that was made inside.
            PrivacyError: it is a parameter, a view of one, or a tensor from outside.
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
            raise PrivacyError(
                f"the loss writes values of an example into a tensor of shape {tuple(target.shape)} that all examples "
                "share; a buffer must not depend on examples, and other tensors can be made from the input, as "
                "x.new_zeros(...)"
            )

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
        return _map_tensors(output, lambda tensor: internals.batched(tensor, self._level))

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
            return _map_tensors(value, lambda tensor: self._own_copy(tensor) if id(tensor) in weights else tensor)

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


def _has_own_memory(output: Tensor, args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> bool:
    """Whether the output of an operation shares no memory with its arguments."""
    given = [tensor for tensor in tensors_among(args, kwargs) if not internals.is_wrapped(tensor)]
    return output._base is None and all(
        output is not tensor and (output.is_meta or output.data_ptr() != tensor.data_ptr()) for tensor in given
    )


def _selects_by_mask(target: object, index: object, value: object) -> bool:
    """Whether ``target[index] = value`` writes the same in each place that a mask of an example selects."""
    if not (isinstance(target, Tensor) and isinstance(index, Tensor) and index.dtype is torch.bool):
        return False
    axes = value.dim() if isinstance(value, Tensor) else 0
    return target.shape[: index.dim()] == index.shape and axes <= target.dim() - index.dim()


@cache
def _writes(func: Operation) -> bool:
    """Whether an operation writes into its first argument."""
    name = func.__name__
    return name == "__setitem__" or name.startswith("__i") or (name.endswith("_") and not name.endswith("__"))


def _map_tensors(value: Any, change: Callable[[Tensor], Tensor]) -> Any:
    """An argument or a result of a torch call with ``change`` applied to its tensors; no other containers occur."""
    if isinstance(value, Tensor):
        return change(value)
    if isinstance(value, list | tuple) and not isinstance(value, torch.Size):
        changed = [_map_tensors(part, change) for part in value]
        if hasattr(value, "_fields"):
            return type(value)(*changed)  # a named tuple
        return type(value)(changed)
    return value
