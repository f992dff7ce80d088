"""What one example's loss uses of the weights: the loss inside of ``vmap``, and what the tape records of it."""

from __future__ import annotations

import warnings
import weakref
from collections.abc import Callable, Container, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from functools import cache, cached_property, partial
from types import TracebackType
from typing import Any, TypeVar

import torch
from torch import Tensor, nn
from torch._ops import HigherOrderOperator
from torch.autograd.graph import get_gradient_edge
from torch.nn.utils import parametrize
from torch.nn.utils.rnn import pack_padded_sequence
from torch.overrides import TorchFunctionMode
from torch.utils.hooks import RemovableHandle

from noisette._internal.tensor_tree import leaves, map_leaves, tensors
from noisette.core import vmap as internals
from noisette.core.forms import Dense, ExampleGradients, Examples
from noisette.core.recording import DerivedWeight, Draft, LossCall, Operation, Output, Recording, RootCall, Use
from noisette.core.registry import DATA_OPERANDS, PHYSICAL, Leave, rule
from noisette.errors import PrivacyError
from noisette.gradients.outside_tensors import OutsideTensors
from noisette.ranks.wrappers import canonical_parameters

_WRITES = (
    "writes values of an example into a tensor that all examples share; a buffer or parameter must not depend on "
    "examples, and other tensors can be made from the input, as x.new_zeros(...)"
)
_STATISTICS = (
    "would update batch norm's running statistics from examples, which are saved without noise; convert the model "
    "with noisette.nn.convert_batch_norm, or put these modules into eval mode"
)
CALLS_FUNCTIONS = "higher order operator"  # in messages of torch's own too
_CONTROL_FLOW = (
    "uses an operator of torch that calls functions, as torch.cond does, and that cannot be followed; write a branch "
    "or a loop of Python, or choose by torch.where"
)
_CAUSES = {  # a part of PyTorch's message -> what it means
    **dict.fromkeys(
        (".item()", "Cannot access data pointer of Tensor"),
        "takes the value of one example as a Python number, as a branch on it, .item() or a shape from it does",
    ),
    "data-dependent control flow": (
        "branches on the values of an example, or on a random number; write the choice with torch.where"
    ),
    **dict.fromkeys(
        ("Batch norm got a batched tensor", "Expected more than 1 value per channel when training"),
        _STATISTICS,
    ),
    "match the broadcast shape": _WRITES,
    "inplace": _WRITES,
    "cannot register a hook": (
        "registers a hook on a tensor, which has no gradient of its own inside of vmap; change gradients by a "
        "torch.autograd.Function with a rule for vmap"
    ),
    "dynamic": "makes a tensor whose shape depends on the values of an example; use masks of a fixed shape",
    "autograd.Function": (
        "uses an autograd.Function that torch.func.vmap cannot take; give the class generate_vmap_rule = True, or draw "
        "random numbers that come from it in front of the call, and pass them as an argument with one row per example"
    ),
    CALLS_FUNCTIONS: _CONTROL_FLOW,
    "does not require grad": (
        "asks for a gradient with respect to values of an example by torch.autograd.grad; use torch.func.grad"
    ),
}
_PACKS = "packs a sequence by the length of an example; use a mask of a fixed shape"
_SIGNS = ("vmap", "functorch", "torch.func", "Batching rule", "BatchedTensor", *_CAUSES)
_WAY_OUT = (
    'Where that cannot be, pass separability="asserted" to privatize and call run.backward(losses) with the losses of '
    "a batch: you then assert yourself that examples are kept apart."
)


class NotVectorizedError(PrivacyError):
    """A loss that ``vmap`` cannot take, though one example at a time may be computed by it.

    Attributes:
        cause: the reason in words, without a way out.
    """

    def __init__(self, cause: str) -> None:
        super().__init__(f"{cause} {_WAY_OUT}")
        self.cause = cause


def explained(error: Exception, model: nn.Module) -> PrivacyError | None:
    """What an error of ``vmap`` means and what to do, or ``None`` for an error that has nothing to do with it."""
    message = str(error)
    packs = _packs(error.__traceback__)
    if not packs and not any(sign in message for sign in _SIGNS):
        return None
    cause = _PACKS if packs else next((cause for sign, cause in _CAUSES.items() if sign in message), None)
    where = _where(error.__traceback__, model)
    said = f"{where} {cause}." if cause else f"{where} cannot be vectorised: {message.splitlines()[0]}"
    return PrivacyError(said) if cause in (_STATISTICS, _CONTROL_FLOW) else NotVectorizedError(said)


def _packs(traceback: TracebackType | None) -> bool:
    """Whether the error arose where sequences are packed."""
    while traceback is not None:
        if traceback.tb_frame.f_code is pack_padded_sequence.__code__:
            return True
        traceback = traceback.tb_next
    return False


def _where(traceback: TracebackType | None, model: nn.Module) -> str:
    """The innermost module of the model in which the error arose, or the loss."""
    names = {id(module): name for name, module in model.named_modules()}
    found = "the loss"
    while traceback is not None:
        module = traceback.tb_frame.f_locals.get("self")
        if isinstance(module, nn.Module) and id(module) in names:
            found = f"{names[id(module)] or 'the model'} ({type(module).__name__})"
        traceback = traceback.tb_next
    return found


AnyRecorder = TypeVar("AnyRecorder", bound="Recorder")


class Tape:
    """Records the uses of a module's trainable parameters whenever that module is called with gradients enabled.

    The module stays as it is: two hooks on its root open and close the recording. A deep copy of the module is an
    ordinary module that records nothing.

    Args:
        root: the module to record.
        rewrites: for a composite operation, a function that computes the same from operations that have rules. It
            runs in place of a use of that operation, unless it returns ``NotImplemented``.
    """

    def __init__(self, root: nn.Module, rewrites: Mapping[Operation, Operation]) -> None:
        self.root = root
        self._rewrites = rewrites
        self.parameters = {name: p for name, p in canonical_parameters(root) if p.requires_grad}
        self._draft = Draft()
        self._depth = 0
        self._arguments: tuple[tuple[Any, ...], Mapping[str, Any]] = (), {}  # before other hooks change them
        self._recorder: Recorder | None = None
        hook = _RootHook(self, root)
        self._handles = (
            root.register_forward_pre_hook(hook.opens, prepend=True, with_kwargs=True),
            root.register_forward_hook(hook.closes, always_call=True),
        )

    @property
    def recording(self) -> Recording:
        """What was recorded since the last :meth:`pop`."""
        draft = self._draft
        hooked = draft.hooks_before not in (None, RemovableHandle.next_id)
        return Recording(list(draft.uses), dict(draft.derived), tuple(draft.calls), hooked)

    def pop(self) -> Recording:
        """Return what was recorded and forget it."""
        recording, self._draft = self.recording, Draft()
        return recording

    @contextmanager
    def set_aside(self) -> Iterator[None]:
        """Within it the recording starts empty; what was recorded before is there again afterwards."""
        draft, self._draft = self._draft, Draft()
        try:
            yield
        finally:
            self._draft = draft

    def close(self) -> None:
        """Remove the hooks; the module is as it was."""
        for handle in self._handles:
            handle.remove()
        self._stop()  # an interrupt may have left a call unfinished
        self.pop()

    def open(self, args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> None:
        """Start recording one call of the root module with these arguments; nested calls change nothing."""
        self._depth += 1
        if self._depth > 1 or not torch.is_grad_enabled():
            return
        self._begin()
        self._arguments = args, kwargs
        self._recorder = Recorder(self._draft, self._weights(), _constants(self.root), self._rewrites)
        self._recorder.__enter__()

    def shut(self, output: object) -> None:
        """Stop recording the call of the root module that returned ``output``."""
        if not self._depth:
            return  # a hook that runs before ours has ended the call before recording started
        self._depth -= 1
        if self._depth or self._recorder is None:
            return
        self._stop()
        (args, kwargs), self._arguments = self._arguments, ((), {})
        returned = {
            place: Output(leaf, get_gradient_edge(leaf), leaf._version)
            for place, leaf in enumerate((output,) if isinstance(output, Tensor) else leaves(output))
            if isinstance(leaf, Tensor) and leaf.requires_grad
        }
        if returned:
            autocast = autocast_of(output.tensor for output in returned.values())
            self._draft.calls.append(RootCall(self.root, args, kwargs, returned, autocast, self.silent))

    @contextmanager
    def recording_by(self, make: Callable[..., AnyRecorder]) -> Iterator[AnyRecorder]:
        """Record everything within by a recorder made like :class:`Recorder`, also outside of calls of the root."""
        self._begin()
        recorder = make(self._draft, self._weights(), _constants(self.root), self._rewrites)
        with self.silent(), recorder:
            yield recorder

    @contextmanager
    def silent(self) -> Iterator[None]:
        self._depth += 1
        try:
            yield
        finally:
            self._depth -= 1

    def _begin(self) -> None:
        """A call begins, of the root or of a recorder of one's own."""
        parametrize._cache.clear()  # a weight that an earlier call computed has no derivation in this recording
        if self._draft.hooks_before is None:
            self._draft.hooks_before = RemovableHandle.next_id

    def _weights(self) -> list[Tensor]:
        """The trainable parameters, without those that were frozen since."""
        return [p for p in self.parameters.values() if p.requires_grad]

    def _stop(self) -> None:
        if self._recorder is not None:
            self._recorder.__exit__(None, None, None)
            self._recorder = None


class _RootHook:
    """The two hooks of a root module. A deep copy of the module carries copies that do nothing."""

    def __init__(self, tape: Tape | None, root: nn.Module | None) -> None:
        self._tape = tape
        self._root = weakref.ref(root) if root is not None else None

    def __deepcopy__(self, memo: dict[int, object]) -> _RootHook:
        return _RootHook(None, None)

    def __reduce__(self) -> tuple[type[_RootHook], tuple[None, None]]:
        return _RootHook, (None, None)

    def _records(self, module: nn.Module) -> Tape | None:
        return self._tape if self._root is not None and self._root() is module else None

    def opens(self, module: nn.Module, args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> None:
        if tape := self._records(module):
            tape.open(args, kwargs)

    def closes(self, module: nn.Module, args: tuple[Any, ...], output: object) -> None:
        if tape := self._records(module):
            tape.shut(output)


def autocast_of(tensors: Iterable[Tensor]) -> dict[str, torch.dtype]:
    """The device types of these tensors that compute in lower precision now, and its dtype."""
    devices = {tensor.device.type for tensor in tensors}
    return {device: torch.get_autocast_dtype(device) for device in devices if torch.is_autocast_enabled(device)}


def _constants(root: nn.Module) -> Iterator[Tensor]:
    yield from root.buffers()
    yield from (p for p in root.parameters() if not p.requires_grad)


def tensors_among(args: Sequence[Any], kwargs: Mapping[str, Any]) -> Iterator[Tensor]:
    """Each tensor among the arguments of a torch call; lists and tuples are opened once."""
    for value in (*args, *kwargs.values()):
        if isinstance(value, Tensor):
            yield value
        elif type(value) in (list, tuple):
            yield from (item for item in value if isinstance(item, Tensor))


@dataclass(frozen=True)
class _Weight:
    """A trainable parameter or a derived weight, with its version counter at that time."""

    tensor: Tensor
    parents: tuple[Tensor, ...]
    version: int | None  # None for a parameter

    @property
    def is_unchanged(self) -> bool:
        return self.version is None or self.tensor._version == self.version


class Recorder(TorchFunctionMode):
    """Records every torch call of one forward pass as a use, a derived weight, a constant or plain data."""

    def __init__(
        self,
        draft: Draft,
        weights: Iterable[Tensor],
        constants: Iterable[Tensor],
        rewrites: Mapping[Operation, Operation],
    ) -> None:
        super().__init__()
        self._draft = draft
        self._rewrites = rewrites
        # The values keep their tensors alive, so that no ``id`` is reused within the pass.
        self._weights = {id(p): _Weight(p, (p,), None) for p in weights}
        self._constants = {id(tensor): tensor for tensor in constants}

    def __torch_function__(
        self, func: Operation, types: Sequence[type], args: tuple[Any, ...] = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        kwargs = kwargs or {}
        weights: dict[int, Tensor] = {}
        data: list[Tensor] = []
        for tensor in tensors_among(args, kwargs):
            if self._is_weight(tensor):
                weights[id(tensor)] = tensor
            elif not self._is_constant(tensor):
                data.append(tensor)
        if not weights:
            output = func(*args, **kwargs)
            if not data:
                self._record_constants(output)
            elif args and id(args[0]) in self._constants:
                del self._constants[id(args[0])]  # data may have been written into it
            return output
        if data and (rewrite := self._rewrites.get(func)):
            with self:
                output = rewrite(*args, **kwargs)
            if output is not NotImplemented:
                return output
        upstream = tuple(tensor.grad_fn for tensor in data if tensor.grad_fn is not None)
        output = func(*args, **kwargs)
        if data:
            self._record_use(func, args, kwargs, tuple(weights.values()), data, upstream, output)
            if args and output is args[0]:
                self._weights.pop(id(output), None)  # data was written into it
        else:
            written = args[0] if func is Tensor.__setitem__ else output
            self._record_derived(func, args, kwargs, tuple(weights.values()), written)
        return output

    def _is_weight(self, tensor: Tensor) -> bool:
        # A weight that was written into through a view no longer is what was recorded; it counts as data.
        known = self._weights.get(id(tensor))
        return known is not None and known.is_unchanged

    def _is_constant(self, tensor: Tensor) -> bool:
        return id(tensor) in self._constants and not tensor.requires_grad  # no weight was written into it

    def _record_constants(self, output: object) -> None:
        for tensor in outputs_of(output):
            self._constants[id(tensor)] = tensor

    def _record_derived(
        self,
        func: Operation,
        args: tuple[Any, ...],
        kwargs: Mapping[str, Any],
        weights: tuple[Tensor, ...],
        output: object,
    ) -> None:
        parents = tuple({id(p): p for weight in weights for p in self._weights[id(weight)].parents}.values())
        for tensor in outputs_of(output):
            if not tensor.requires_grad:
                self._constants[id(tensor)] = tensor
            elif not self._is_weight(tensor):
                self._weights[id(tensor)] = _Weight(tensor, parents, tensor._version)
                self._draft.derived[id(tensor)] = DerivedWeight(tensor, parents, func, args, kwargs)

    def _record_use(
        self,
        func: Operation,
        args: tuple[Any, ...],
        kwargs: Mapping[str, Any],
        weights: tuple[Tensor, ...],
        data: list[Tensor],
        upstream: tuple[Any, ...],
        output: object,
    ) -> None:
        tensors = list(outputs_of(output))
        derived = [weight for weight in weights if not weight.is_leaf]
        versions = tuple(
            (tensor, tensor._version)
            for tensor in (*data, *derived)
            if not tensor.is_inference() and all(tensor is not written for written in tensors)
        )
        edges = tuple(get_gradient_edge(tensor) if tensor.requires_grad else None for tensor in tensors)
        if any(edges):
            first, several = tensors[0], not isinstance(output, Tensor)
            self._draft.uses.append(
                Use(
                    func,
                    args,
                    kwargs,
                    weights,
                    outputs=edges,
                    edges=tuple(edge for edge in edges if edge is not None),
                    several=several,
                    shape=tuple(first.shape),
                    dtype=first.dtype,
                    upstream=upstream,
                    versions=versions,
                )
            )


def outputs_of(output: object) -> Iterator[Tensor]:
    """Each tensor among the results of a torch call."""
    if isinstance(output, Tensor):
        yield output
    elif isinstance(output, list | tuple):
        yield from (tensor for tensor in output if isinstance(tensor, Tensor))


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
_OPERATORS_OF_FUNCTIONS = "torch._higher_order_ops"  # within a mode these lose gradients without a word


def own_copies(weight: Tensor, count: int) -> Tensor:
    """The weight once for each example, shape (count, *weight.shape), in the memory of one."""
    return weight.expand(count, *weight.shape)


@rule(own_copies, operand="weight")
def own_copies_weight(examples: Examples, dy: Tensor, weight: Tensor, count: int) -> ExampleGradients:
    """G_i = dy_i."""
    return Dense(dy)


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
        if isinstance(func, HigherOrderOperator) and type(func).__module__.startswith(_OPERATORS_OF_FUNCTIONS):
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


Loss = Callable[..., Tensor]


@dataclass(frozen=True)
class Microbatch:
    """The arguments of a loss for b examples: nested values whose tensors have the examples on their first axis."""

    args: tuple[Any, ...]
    kwargs: Mapping[str, Any]

    @cached_property
    def tensors(self) -> list[Tensor]:
        """The tensors of the arguments, in a fixed order."""
        if not self.kwargs and all(isinstance(arg, Tensor) for arg in self.args):
            return list(self.args)
        return tensors((self.args, dict(self.kwargs)))

    @cached_property
    def count(self) -> int:
        """The number of examples.

        Raises:
            PrivacyError: there is no tensor, the tensors do not agree, or another value would be seen by all examples.
        """
        shapes = [tuple(tensor.shape) for tensor in self.tensors]
        if not shapes:
            raise PrivacyError("the loss has no tensor among its arguments: pass the examples after the loss")
        if len({shape[:1] for shape in shapes}) > 1 or not shapes[0]:
            raise PrivacyError(
                f"expected tensors with one row per example, got the shapes {', '.join(map(str, shapes))}; pass "
                "constants in the loss itself"
            )
        for value in (*self.args, *self.kwargs.values()):
            if not isinstance(value, Tensor):
                _check_others(value)
        return shapes[0][0]

    def with_tensors(self, tensors: Sequence[Tensor]) -> Microbatch:
        """The same with these tensors."""
        following = iter(tensors)
        args, kwargs = map_leaves(
            lambda leaf: next(following) if isinstance(leaf, Tensor) else leaf, (self.args, dict(self.kwargs))
        )
        return Microbatch(args, kwargs)


def _check_others(value: object) -> None:
    """Check that an argument has no numbers of several examples: an array, or numbers in a container."""
    for other in [leaf for leaf in leaves(value) if not isinstance(leaf, Tensor)]:
        is_number = isinstance(other, int | float | complex) and not isinstance(other, bool)
        if hasattr(other, "__array__") or (is_number and other is not value):
            raise PrivacyError(
                f"every example would see the whole {type(value).__name__} with {other!r:.80} in it; give values of "
                "examples as a tensor with one row per example"
            )


@dataclass(frozen=True)
class VectorizedLoss:
    """The losses (b,) of a microbatch, and what the tape recorded."""

    losses: Tensor
    recording: Recording


def one_value(value: object) -> Tensor:
    """The loss of one example as a scalar.

    Raises:
        PrivacyError: it is not a tensor with one value.
    """
    if not isinstance(value, Tensor) or value.numel() != 1:
        got = f"shape {tuple(value.shape)}" if isinstance(value, Tensor) else type(value).__name__
        raise PrivacyError(f"expected the loss of one example, a tensor with one value, got {got}")
    return value.reshape(())


def vectorized_losses(
    loss: Loss,
    model: nn.Module,
    batch: Microbatch,
    begin: Callable[[int, Sequence[Tensor]], None] = lambda level, tensors: None,
    checkpoint: Callable[..., Iterator[None]] | None = None,
) -> Tensor:
    """The loss of each example of the batch, computed for all at once, shape (b,).

    Args:
        loss: called as ``loss(model, *args, **kwargs)`` with one example, whose tensors keep a batch axis of length 1.
            It returns a scalar, or a vector of one.
        model: given to the loss.
        batch: the arguments of b examples.
        begin: called inside of ``vmap``, before the loss, with the level of ``vmap`` and the tensors of the examples.
        checkpoint: what a checkpoint without reentrant autograd does; it keeps its activations if this is not given.

    Guarantee: the loss of an example depends on that example, the weights, and what the code reaches otherwise than by
    its arguments.

    Raises:
        PrivacyError: the loss cannot be vectorised, or returns something else.
    """
    count = batch.count
    with internals.as_if_compiled(checkpoint), warnings.catch_warnings():
        warnings.filterwarnings("ignore", "There is a performance drop")  # operations that vmap takes one by one
        try:
            physical = [tensor.unsqueeze(1) for tensor in batch.tensors]
            with internals.vmap_level(count) as level:
                tensors = [internals.batched(tensor, level) for tensor in physical]
                begin(level, tensors)
                one = batch.with_tensors(tensors)
                value = one_value(loss(model, *one.args, **one.kwargs))
                return internals.physical(value) if internals.is_wrapped(value) else value.expand(count)
        except torch.OutOfMemoryError:
            raise
        except (RuntimeError, ValueError) as error:
            if isinstance(error, PrivacyError) or (said := explained(error, model)) is None:
                raise
            raise said from error


def record_losses(
    tape: Tape,
    loss: Loss,
    batch: Microbatch,
    outside: OutsideTensors,
    public: Iterable[Tensor],
    *,
    blocks: Callable[[VectorizedRecorder], Any] | None = None,
) -> VectorizedLoss:
    """The losses of a batch, with the uses of the weights; every use has its examples on the first axis.

    Args:
        tape: of the model.
        loss: the loss of one example.
        batch: its arguments for b examples.
        outside: the tensors from outside that the loss used before.
        public: tensors from outside that are declared public.
        blocks: makes what recomputes checkpointed parts of the model; they keep their activations unless it is given.

    Raises:
        PrivacyError: the loss cannot be vectorised, or uses a tensor from outside that is not constant.
    """
    own_for_each = set[int]()
    outside.begin(public)
    while True:
        tape.pop()
        make = partial(VectorizedRecorder, count=batch.count, outside=outside, own_for_each=own_for_each)
        try:
            with tape.recording_by(make) as recorder:
                checkpoint = None if blocks is None else blocks(recorder)
                losses = vectorized_losses(loss, tape.root, batch, recorder.begin, checkpoint)
            outside.end()
            recorder.end()
            return VectorizedLoss(losses, replace(tape.pop(), call=_call_of(tape.root, loss, batch, losses)))
        except WrittenIntoError as written:
            own_for_each.add(written.factory)


def _call_of(model: nn.Module, loss: Loss, batch: Microbatch, losses: Tensor) -> LossCall:
    """The loss of a batch, for engines that compute it for single examples."""

    def loss_of(tensors: Sequence[Tensor]) -> Tensor:
        one = batch.with_tensors(tensors)
        with internals.as_if_compiled():
            return one_value(loss(model, *one.args, **one.kwargs))

    return LossCall(loss_of, model, tuple(batch.tensors), autocast_of([losses]))
