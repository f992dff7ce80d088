"""What the loss of one example does with the weights, recorded while it is computed for all examples at once.

The recorder sees every torch call of the loss and sorts each tensor into one of three kinds. A *weight* is computed
from trainable parameters; a *constant* from what depends on no example (buffers, ``arange``, frozen parameters);
everything else is *data*. A call on a weight and data is a *use*; one on weights and constants alone derives a weight.
"""

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence, Set
from contextlib import AbstractContextManager, contextmanager, nullcontext
from dataclasses import dataclass, field
from functools import cache, partial
from typing import Any, Self

import torch
from torch import Tensor, nn
from torch._ops import HigherOrderOperator
from torch.autograd.graph import get_gradient_edge
from torch.nn.utils import parametrize
from torch.overrides import TorchFunctionMode
from torch.utils._pytree import tree_map_only

from noisette.core import forms, vmap
from noisette.core.forms import Operation, Use, rule
from noisette.core.loss import CALL, CallAgainError, Loss, Microbatch, ModelBuffers, OutsideTensors
from noisette.core.trees import Args, Keywords, leaves
from noisette.core.vmap import Draws, NotVectorizedError
from noisette.errors import PrivacyError, warn

_LARGE = 2**26  # bytes of copies of one weight; from here on it is said, once, that each example gets one
_SAID = set[tuple[Operation, torch.Size]]()

# What they give with a constant depends on the type and shape of the other argument alone.
OF_A_CONSTANT = {Tensor.new_tensor, Tensor.to, Tensor.type_as, Tensor.reshape_as}
_REQUIRE_GRAD = {Tensor.requires_grad_, Tensor.requires_grad.__set__}  # pyright: ignore[reportAttributeAccessIssue, reportFunctionMemberAccess]
Recompute = Callable[..., Iterator[None]] | None  # (recorder, a checkpoint's arguments): what stands in its place
_OPERATORS_OF_FUNCTIONS = "torch._higher_order_ops"  # within a mode these lose gradients without a word


@dataclass
class Recording:
    """What was recorded of a loss."""

    uses: list[Use] = field(default_factory=list)  # the last backward pass takes them out, so that it frees arguments
    derived: dict[int, forms.DerivedWeight] = field(default_factory=dict)  # by ``id`` of the derived tensor
    has_asked: bool = False  # code has taken a value out of a tensor of each example, as for a branch


@dataclass(frozen=True)
class TrainedModel:
    """A model, and what its losses read besides their arguments."""

    module: nn.Module
    parameters: Mapping[str, Tensor]  # those that train, by name
    buffers: ModelBuffers
    outside: OutsideTensors


@dataclass(frozen=True)
class LossCall:
    """The loss that was recorded and its arguments, for engines that compute it for single examples."""

    loss: Loss
    model: nn.Module
    batch: Microbatch
    buffers: ModelBuffers
    autocast: AbstractContextManager[object] = field(default_factory=nullcontext)  # of the first call, if there was any


@dataclass(frozen=True)
class ForwardPass:
    """The losses of b examples, each computed from its own example alone, and what was recorded of them."""

    losses: Tensor  # (b,)
    recording: Recording
    call: LossCall | None = None  # None for a call of the model in a loop that computes losses itself
    repeat: Callable[[], Self] | None = None  # computes the same once more; ``None`` where that cannot be


def own_copies(weight: Tensor, count: int) -> Tensor:
    """The weight once for each example, shape (count, *weight.shape), in the memory of one."""
    return weight.expand(count, *weight.shape)


@rule(own_copies, operand="weight")
def own_copies_weight(examples: forms.Examples, dy: Tensor, weight: Tensor, count: int) -> forms.ExampleGradients:
    """G_i = dy_i."""
    return forms.Dense(dy)


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
    """Records a loss inside of ``vmap``: every torch call as a use, a derived weight, a constant or plain data.

    What is recorded are physical tensors, with the examples on their first axis. An operation on a weight is recorded
    as in an ordinary pass if it can leave ``vmap`` (``forms.PHYSICAL``). In any other, each example gets its own copy
    of the weight (:func:`own_copies`), as of constants with numbers in ``own_for_each``, into which it writes.
    """

    def __init__(
        self, model: TrainedModel, count: int, own_for_each: set[int], draws: Draws, own_weights: bool = False
    ) -> None:
        super().__init__()
        parametrize._cache.clear()  # a weight that an earlier call computed has no derivation in this recording
        frozen = [p for p in model.module.parameters() if not p.requires_grad]
        self.recording = Recording()  # taken by whoever has called: what recomputes a part needs no other one
        # The values keep their tensors alive, so that no ``id`` is reused within the pass.
        self._weights = {id(p): _Weight(p, (p,), None) for p in model.parameters.values()}
        self._constants: dict[int, Tensor] = {id(tensor): tensor for tensor in frozen}
        self._count = count
        self._outside = model.outside
        self._own_for_each = own_for_each
        self._draws = draws
        self._made: dict[int | None, int] = {}  # by memory of a constant made inside or of a buffer's copy, its number
        self._copies: dict[int, Tensor] = {}  # by id of a weight
        self._asked = set[int]()  # by id the tensors whose numbers the operation under way has taken
        self._replaced: dict[int, Tensor] = {}  # by id of a derived weight that examples have written into, their own
        self._call = object()
        self._level = 0
        self._is_physical = False  # an operation has left vmap
        self._own_weights = own_weights
        self.is_in_block = False  # a checkpointed part of the model runs

    def begin(self, level: int, tensors: Sequence[Tensor]) -> None:
        """The code inside of ``vmap`` begins, at this level and with these tensors of the examples."""
        self._level = level
        for tensor in tensors:
            setattr(tensor, CALL, self._call)

    def buffer(self, values: Tensor) -> Tensor:
        """What stands in the model for a buffer: a copy that the recorder sees made, as it sees other constants."""
        self._constants[id(values)] = values
        copy = values.detach().clone()
        if not vmap.is_wrapped(copy):  # otherwise each example has one, because examples write into it
            self._constants[id(copy)] = copy
        return copy

    def made_so_far(self) -> tuple[dict[int | None, int], dict[int, Tensor], int]:
        """The constants made inside, the copies of weights and the shared draws, to go on from this point once more."""
        return dict(self._made), dict(self._copies), self._draws.count

    @contextmanager
    def again(self, made: tuple[dict[int | None, int], dict[int, Tensor], int]) -> Iterator[list[Use]]:
        """Within it a part of the loss runs inside of ``vmap`` once more, from this point; gives its uses."""
        recording, self.recording = self.recording, Recording()
        now = self.made_so_far()
        self._made, self._copies, self._draws.count = dict(made[0]), dict(made[1]), made[2]
        try:
            with vmap.as_if_compiled(), vmap.vmap_level(self._count, self.answer) as level, self:
                if level != self._level:
                    raise PrivacyError("the backward pass runs inside of another transformation of torch.func")
                yield self.recording.uses
        finally:
            self.recording = recording
            self._made, self._copies, self._draws.count = now

    def __torch_function__(self, func: Operation, types: Any, args: Args = (), kwargs: Keywords | None = None) -> Any:
        kwargs = kwargs or {}
        if self._is_physical or not self._level:
            return self._run(func, args, kwargs)
        args, kwargs = self._as_written(args, kwargs)
        place = self._draws.place(kwargs) if func in vmap.DRAWS else None
        output = self._inside(func, args, kwargs, place in self._draws.places)
        found = [tensor for tensor in outputs_of(output) if vmap.is_wrapped(tensor)]
        for tensor in found:
            setattr(tensor, CALL, self._call)
        if place is not None or self._draws.any:
            self._draws.follow(func, place, args, kwargs, found, vmap.is_wrapped)
        return output

    # Inside of vmap

    def _inside(self, func: Operation, args: Args, kwargs: Keywords, is_shared: bool) -> Any:
        """An operation inside of ``vmap``; ``is_shared``: it draws numbers for all examples."""
        if isinstance(func, HigherOrderOperator) and type(func).__module__.startswith(_OPERATORS_OF_FUNCTIONS):
            raise RuntimeError(vmap.CALLS_FUNCTIONS)
        if func is vmap.transformed:
            return self._own_copy(args[0], func) if self._is_weight(args[0]) else args[0]
        weights: dict[int, Tensor] = {}
        is_batched = is_foreign = False
        for tensor in tensors_among(args, kwargs):
            if vmap.is_wrapped(tensor):
                is_batched = True
                # Without a mark: made by code hidden from torch functions. Of another call, ``vmap`` would mix up rows.
                if getattr(tensor, CALL, self._call) is not self._call:
                    raise kept_from_another_call(tensor)
                setattr(tensor, CALL, self._call)
            elif self._is_weight(tensor):
                weights[id(tensor)] = tensor
            elif not self._is_constant(tensor):
                self._outside.check(tensor)
                is_foreign |= tensor.requires_grad  # a weight of another model: nothing is derived from it
                if not tensor.requires_grad:
                    self._constants[id(tensor)] = tensor
        if is_foreign and not is_batched and not weights and not _writes(func):
            with torch.no_grad():  # nobody wants its gradient, so the output is a constant
                return self._without_examples(func, args, kwargs, weights)
        is_batched |= is_foreign
        if func is torch.autograd.grad and vmap.current_level() == self._level:
            return self._gradients(*args, **kwargs)
        if kwargs.get("requires_grad"):  # a new leaf, such as a perturbation of each example
            made = self._inside(func, args, kwargs | {"requires_grad": False}, is_shared)
            return self._own_leaf(made) if self._own_weights else made
        if self._own_weights and weights:
            args, kwargs = self._with_own_copies(torch.autograd.grad, args, kwargs, weights.keys())
            is_batched, weights = True, {}
        if is_shared:
            return self._shared_draw(func, args, kwargs)
        is_inner = vmap.current_level() != self._level  # inside of a transformation by the loss itself
        if func in _REQUIRE_GRAD and not is_inner and not weights:  # vmap refuses the call
            return self._own_leaf(args[0]) if self._own_weights else args[0]  # the result of weights has a gradient
        if not is_batched:
            return self._without_examples(func, args, kwargs, weights)
        layout = kwargs.get("memory_format")
        if layout not in (None, torch.preserve_format) and func is not Tensor.is_contiguous:  # vmap knows no other
            kwargs = kwargs | {"memory_format": torch.contiguous_format}
        if func in vmap.QUESTIONS and vmap.level_of(args[0]) == self._level:
            return self.answer(func, *args)
        of_name = getattr(func, "_qualified_op_name", func)  # of an operation outside of torch
        if (leave := forms.PHYSICAL.get(of_name)) and not is_inner:
            if weights and (data := forms.DATA_OPERANDS[of_name]):
                args, kwargs = self._with_own_copies(func, args, kwargs, weights.keys(), data)
            output = self._leave_vmap(leave, func, args, kwargs)
            if output is not NotImplemented:
                return output
        if (weights or func in forms.ALWAYS_REWRITTEN) and (rewritten := forms.REWRITES.get(func)):
            with self:
                output = rewritten(*args, **kwargs)
            if output is not NotImplemented:
                return output
        if args and _writes(func):
            self._check_written(args[0])
            args, kwargs = self._as_written(args, kwargs)
        if weights:
            args, kwargs = self._with_own_copies(func, args, kwargs, weights.keys())
        self._asked.clear()
        output = func(*args, **kwargs)
        self._check_separate(func, args, kwargs, output)
        return output

    def answer(self, question: Operation, tensor: Tensor, *options: Any) -> Any:
        """What code or an operation takes out of a tensor of each example and goes on with as a value of Python."""
        if getattr(tensor, CALL, self._call) is not self._call:
            raise kept_from_another_call(tensor)
        self._draws.check(tensor)
        self.recording.has_asked = True
        self._asked.add(id(tensor))
        return vmap.answered(question, tensor, *options)

    def _own_leaf(self, values: Tensor) -> Tensor:
        own = values if vmap.is_wrapped(values) else self._own_of_each(values)
        with vmap.outside():
            vmap.unwrapped(own).requires_grad_()
        return own

    def _gradients(self, outputs: Any, inputs: Any, *, grad_outputs: Any, **options: Any) -> tuple[Any, ...]:
        """``torch.autograd.grad`` within the loss, for values of each example and its own copies of weights.

        In the graph of a gradient operations use weights that no recorder sees; so they use the copies.
        """
        if not self._own_weights:
            raise CallAgainError(own_weights=True)
        of = [self._own_copy(p, torch.autograd.grad) if self._is_weight(p) else p for p in leaves(inputs)]
        return vmap.gradients(leaves(outputs), of, grad_outputs, self._count, self._level, options)

    def _check_separate(self, func: Operation, args: Args, kwargs: Keywords, output: object) -> None:
        """Check that an operation on examples has not given one tensor for all of them, but for constants it was given
        and what follows from their common answers: it would have looked at more than one example.
        """
        for tensor in outputs_of(output):
            if not vmap.is_wrapped(tensor):
                of_each = map(id, filter(vmap.is_wrapped, tensors_among(args, kwargs)))
                is_own = func not in OF_A_CONSTANT and _has_own_memory(tensor, args, kwargs)
                if is_own and not self._asked.issuperset(of_each):
                    raise NotVectorizedError(
                        f"the loss calls {func.__name__}, which gives one value for all examples; leave it out."
                    )
                self._constants[id(tensor)] = tensor

    def _without_examples(self, func: Operation, args: Args, kwargs: Keywords, weights: Mapping[int, Tensor]) -> Any:
        """An operation on weights and constants alone, which gives another; a random one may differ by example."""
        if func in vmap.IN_PLACE_DRAWS:
            self._check_written(args[0])
        output = self._run(func, args, kwargs)
        if not isinstance(output, Tensor):
            return output
        if vmap.is_wrapped(output):
            if weights:
                args, kwargs = self._with_own_copies(func, args, kwargs, weights.keys())
                output = func(*args, **kwargs)
        elif not output.requires_grad:
            if _has_own_memory(output, args, kwargs) and self._numbered(output):
                return self._own_of_each(output)
            self._outside.made(output)
        return output

    def _shared_draw(self, func: Operation, args: Args, kwargs: Keywords) -> Any:
        """Random numbers that are the same for all examples."""
        is_own = func in vmap.IN_PLACE_DRAWS and vmap.is_wrapped(args[0])  # each example has a tensor to write into
        with vmap.outside():
            target = (vmap.physical(args[0])[0].clone(),) if is_own else args[:1]
            drawn = self._run(lambda *a, **k: self._draws.shared(func, a, k), (*target, *args[1:]), kwargs)
        if not is_own:
            self._outside.made(drawn)
            return drawn
        with self:
            return args[0].copy_(drawn)

    def _numbered(self, constant: Tensor) -> bool:
        """Give a constant, known by its memory, its number; whether each example needs one of its own."""
        if (memory := _memory(constant)) is None:  # examples do not write into it
            return False
        number = self._made[memory] = len(self._made)
        return number in self._own_for_each

    def _own_of_each(self, constant: Tensor) -> Tensor:
        """Copies of a constant, one for each example."""
        with vmap.outside():
            own = vmap.add_example_axis(constant.expand(self._count, *constant.shape).clone(), 0, self._level)
        setattr(own, CALL, self._call)
        return own

    def _check_written(self, target: Any) -> None:
        """Before values of examples are written into a tensor that does not depend on them.

        Of a constant that was made inside, or the copy of a buffer, each example gets one in another call. A parameter,
        a view of one, and a tensor from outside are refused.
        """
        if not isinstance(target, Tensor) or vmap.is_wrapped(target):
            return
        if self._is_weight(target):
            root = target if target._base is None else target._base
            if root.is_leaf:
                raise PrivacyError(
                    f"the loss writes values of an example into a parameter of shape {tuple(root.shape)}; parameters "
                    "change by optimizer steps alone"
                )
            others = [each.tensor for each in self._weights.values() if each.tensor is not target]
            if any(_memory(other) == _memory(root) for other in others):
                raise NotVectorizedError("The loss writes values of an example into a view of what a weight gives.")
            copy = self._own_copy(target, Tensor.copy_)
            with vmap.outside(), torch.enable_grad():
                self._replaced[id(target)] = vmap.add_example_axis(vmap.physical(copy).clone(), 0, self._level)
            return
        if (number := self._made.get(_memory(target))) is not None:
            raise CallAgainError(own_for_each={number})
        raise PrivacyError(
            f"the loss writes values of an example into a tensor of shape {tuple(target.shape)} that is neither made "
            "in it nor a buffer of the model, and that all examples share; make it in the loss, as by x.new_zeros(...)"
        )

    def _as_written(self, args: Args, kwargs: Keywords) -> tuple[Args, Keywords]:
        """The arguments with what examples have written into in the place of derived weights."""
        if not self._replaced:
            return args, kwargs
        return tree_map_only(Tensor, lambda tensor: self._replaced.get(id(tensor), tensor), (args, kwargs))

    def _leave_vmap(self, leave: forms.Leave, func: Operation, args: Args, kwargs: Keywords) -> Any:
        """The operation on physical tensors, its outputs wrapped again."""
        level = vmap.leave_level()
        self._is_physical = True
        try:
            output = leave(self._run, self._count, func, args, kwargs)
        finally:
            self._is_physical = False
            vmap.enter_level(level)
        if isinstance(output, Tensor):
            return vmap.add_example_axis(output, 0, self._level)
        return tree_map_only(Tensor, lambda tensor: vmap.add_example_axis(tensor, 0, self._level), output)

    def _with_own_copies(
        self, func: Operation, args: Args, kwargs: Keywords, weights: Set[int], operands: Set[int | str] | None = None
    ) -> tuple[Args, Keywords]:
        """The arguments, with the weights in these operands, or in all, replaced by a copy for each example."""

        def own(tensor: Tensor) -> Tensor:
            return self._own_copy(tensor, func) if id(tensor) in weights else tensor

        changed: dict[int | str, Any] = {**dict(enumerate(args)), **kwargs}
        for place in changed if operands is None else operands & changed.keys():
            changed[place] = tree_map_only(Tensor, own, changed[place])
        return tuple([changed[k] for k in range(len(args))]), {name: changed[name] for name in kwargs}

    def _own_copy(self, weight: Tensor, func: Operation) -> Tensor:
        """A copy of the weight for each example, recorded as the weight's use when it is made."""
        key = id(weight)
        if key not in self._copies:
            with vmap.outside(), torch.enable_grad():  # a later use may need its gradient
                copy = own_copies(weight, self._count)
                self._record_use(own_copies, (weight, self._count), {}, (weight,), [], (), copy)
                self._copies[key] = vmap.add_example_axis(copy, 0, self._level)
            taken = weight.numel() * weight.element_size() * self._count
            if taken >= _LARGE and (func, weight.shape) not in _SAID:
                _SAID.add((func, weight.shape))
                warn(
                    f"each example gets a copy of a weight of shape {tuple(weight.shape)}, because {func.__name__} has "
                    f"no rule for it here: the gradients of {self._count} examples take {taken / 2**20:.0f} MiB. Write "
                    "it with other operations of torch, or register a rule with noisette.rule"
                )
        return self._copies[key]

    # On physical tensors

    def _run(self, func: Operation, args: Args, kwargs: Keywords | None = None) -> Any:
        """Run an operation on physical tensors, and record it as a use, a derived weight or a constant."""
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
                self._constants |= {id(tensor): tensor for tensor in outputs_of(output)}
            elif args and id(args[0]) in self._constants:
                del self._constants[id(args[0])]  # data may have been written into it
            return output
        if data and (rewrite := forms.REWRITES.get(func)):
            with self:
                output = rewrite(*args, **kwargs)
            if output is not NotImplemented:
                return output
        upstream = tuple(filter(None, [tensor.grad_fn for tensor in data]))
        output = func(*args, **kwargs)
        if data:
            self._record_use(func, args, kwargs, tuple(weights.values()), data, upstream, output)
            if args and output is args[0]:
                self._weights.pop(id(output), None)  # data was written into it
        else:
            written = args[0] if func is Tensor.__setitem__ else output
            if _writes(func):  # also what shares its memory has other values now
                memory = _memory(args[0])
                known = [each for each in self._weights.values() if not each.is_unchanged]
                written = [args[0], *(each.tensor for each in known if _memory(each.tensor) == memory)]
            parents = tuple({id(p): p for key in weights for p in self._weights[key].parents}.values())
            for tensor in outputs_of(written):
                if not tensor.requires_grad:
                    self._constants[id(tensor)] = tensor
                elif not self._is_weight(tensor):
                    self._weights[id(tensor)] = _Weight(tensor, parents, tensor._version)
                    self.recording.derived[id(tensor)] = forms.DerivedWeight(tensor, parents, func, args, kwargs)
        return output

    def _is_weight(self, tensor: Tensor) -> bool:
        # A weight that was written into through a view no longer is what was recorded; it counts as data.
        known = self._weights.get(id(tensor))
        return known is not None and known.is_unchanged

    def _is_constant(self, tensor: Tensor) -> bool:
        return id(tensor) in self._constants and not tensor.requires_grad  # no weight was written into it

    def _record_use(
        self,
        func: Operation,
        args: Args,
        kwargs: Keywords,
        weights: tuple[Tensor, ...],
        data: list[Tensor],
        upstream: tuple[Any, ...],
        output: object,
    ) -> None:
        tensors = outputs_of(output)
        written = set(map(id, tensors))
        versions: list[tuple[Tensor, int]] = []
        for tensor in (*data, *weights):
            is_derived_or_data = not tensor.is_leaf or id(tensor) not in self._weights
            if is_derived_or_data and id(tensor) not in written and not tensor.is_inference():
                versions.append((tensor, tensor._version))
        edges = [get_gradient_edge(tensor) if tensor.requires_grad else None for tensor in tensors]
        if any(edges):
            first, several = tensors[0], not isinstance(output, Tensor)
            of_output = (tuple(edges), tuple(filter(None, edges)), several, tuple(first.shape), first.dtype)
            self.recording.uses.append(Use(func, args, kwargs, weights, *of_output, upstream, tuple(versions)))


def tensors_among(args: Sequence[Any], kwargs: Keywords) -> list[Tensor]:
    """The tensors among the arguments of a torch call; lists and tuples are opened once."""
    found: list[Tensor] = []
    for value in (*args, *kwargs.values()):
        if isinstance(value, Tensor):
            found.append(value)
        elif type(value) in (list, tuple):
            found += [item for item in value if isinstance(item, Tensor)]
    return found


def outputs_of(output: object) -> Sequence[Tensor]:
    """The tensors among the results of a torch call."""
    if isinstance(output, Tensor):
        return (output,)
    return [tensor for tensor in output if isinstance(tensor, Tensor)] if isinstance(output, list | tuple) else ()


def kept_from_another_call(tensor: Tensor) -> PrivacyError:
    """What is said where a loss uses a tensor that another call has left, as in an attribute of a module."""
    return PrivacyError(
        f"the loss uses a tensor of shape {tuple(tensor.shape)} that an earlier call has computed from other examples; "
        "begin each call with a state that depends on no example"
    )


def _has_own_memory(output: Tensor, args: Args, kwargs: Keywords) -> bool:
    """Whether the output of an operation shares no memory with its arguments."""
    given = [tensor for tensor in tensors_among(args, kwargs) if not vmap.is_wrapped(tensor)]
    memory = _memory(output)
    return output._base is None and all(
        output is not tensor and (memory is None or memory != _memory(tensor)) for tensor in given
    )


def _memory(tensor: Tensor) -> int | None:
    """The memory of a tensor, as a number; ``None`` for a tensor without memory of its own."""
    return tensor.untyped_storage()._cdata if tensor.layout is torch.strided and not tensor.is_quantized else None


@cache
def _writes(func: Operation) -> bool:
    """Whether an operation writes into its first argument."""
    name = func.__name__
    return name.startswith(("__setitem__", "__i")) or (name.endswith("_") and not name.endswith("__"))


def one_value(value: object) -> Tensor:
    """The loss of one example, checked to be a tensor with one value."""
    if not isinstance(value, Tensor) or value.numel() != 1:
        got = f"shape {tuple(value.shape)}" if isinstance(value, Tensor) else type(value).__name__
        raise PrivacyError(f"expected the loss of one example, a tensor with one value, got {got}")
    return value


def recorded(
    code: Operation, model: TrainedModel, batch: Microbatch, public: Iterable[Tensor] = (), recompute: Recompute = None
) -> tuple[Any, list[Tensor | None], Recording]:
    """Call code that uses the model with one example, for all of them at once, and record it.

    It is called once more where examples write into a constant that all of them share, such as ``torch.zeros(...)`` or
    a buffer, with a constant for each example; and where a random number decides a branch, with one for all. Gives what
    it returns; of each value in that the rows, (b, ...), or ``None`` where it depends on no example; and the recording.

    A ``PrivacyError`` says that it cannot be vectorised, or uses a tensor from outside that is not constant.

    Guarantee: no operation of torch sees two examples, and what the code writes into buffers is dropped.
    """
    own_for_each, draws, own_weights = set[int](), Draws(model.buffers.seed), False
    outside = model.outside
    outside.begin(public, is_repeatable=True)
    while True:
        recorder = Recorder(model, batch.count, own_for_each, draws, own_weights)
        try:
            watched = outside.watching() if outside.watches else nullcontext()
            at_checkpoints = recompute and partial(recompute, recorder)
            with watched, vmap.one_example(model.module, batch, recorder.answer, at_checkpoints) as (level, tensors):
                recorder.begin(level, tensors)
                one = batch.with_tensors(tensors)
                with recorder, model.buffers.lent(recorder.buffer):
                    output = code(*one.args, **one.kwargs)
                values = [output] if isinstance(output, Tensor) else leaves(output)
                rows = [vmap.physical(x) if isinstance(x, Tensor) and vmap.is_wrapped(x) else None for x in values]
            break
        except CallAgainError as error:
            batch.check_unwritten()
            own_for_each |= error.own_for_each
            draws.share(error.shared)
            own_weights |= error.own_weights
    outside.end()
    recording, recorder.recording = recorder.recording, Recording()
    return output, rows, recording


def record_losses(
    loss: Loss, model: TrainedModel, batch: Microbatch, public: Iterable[Tensor] = (), recompute: Recompute = None
) -> ForwardPass:
    """The losses of a microbatch, and the uses of the weights; every use has its examples on the first axis.

    Checkpointed parts of the model keep their activations, unless what recomputes them is given.
    """
    value, rows, recording = recorded(partial(loss, model.module), model, batch, public, recompute)
    one_value(value)
    losses = value.reshape(-1).expand(batch.count) if rows[0] is None else rows[0].reshape(batch.count)
    if not losses.requires_grad and recording.has_asked:
        recording.uses.clear()  # the loss of such examples depends on no parameter, that of others may
    elif not losses.requires_grad:
        raise PrivacyError("the losses depend on no trainable parameter: was the model called under no_grad?")
    device = losses.device.type
    is_lower = torch.is_autocast_enabled(device)
    autocast = torch.autocast(device, torch.get_autocast_dtype(device)) if is_lower else nullcontext()
    return ForwardPass(losses, recording, LossCall(loss, model.module, batch, model.buffers, autocast))
