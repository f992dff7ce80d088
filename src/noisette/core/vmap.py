"""Code for one example, run for all of them at once.

Inside of ``torch.func.vmap`` no operation of torch sees more than one example. A tensor of all examples is wrapped
there: it has the shape of one example's tensor, and the tensor within, the *physical* one, has one more axis for the
examples. A tensor that depends on no example is not wrapped. All names of ``vmap`` private to PyTorch are in this file.
"""

import hashlib
import math
import random
import sys
import warnings
from collections.abc import Callable, Iterator, Sequence, Set
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass
from functools import cache
from types import SimpleNamespace, TracebackType
from typing import Any

import numpy as np
import torch
import torch.utils.checkpoint
from torch import Tensor, nn
from torch._C import _functorch  # pyright: ignore[reportAttributeAccessIssue]
from torch._functorch.pyfunctorch import temporarily_clear_interpreter_stack
from torch._functorch.vmap import lazy_load_decompositions  # pyright: ignore[reportPrivateImportUsage]
from torch.autograd import Function
from torch.autograd.function import FunctionCtx
from torch.distributions import Distribution
from torch.overrides import wrap_torch_function

from noisette.core.loss import CALL, CallAgainError, Microbatch, Place
from noisette.core.trees import Args, Keywords, leaves, tensors
from noisette.errors import PrivacyError

is_wrapped = _functorch.is_functorch_wrapped_tensor  # by any transformation of torch.func
is_batched = _functorch.is_batchedtensor  # by vmap
current_level = _functorch.maybe_current_level  # number of nested transformations around this code; None outside
axis_of = _functorch.maybe_get_bdim  # of the examples, in the physical tensor
level_of = _functorch.maybe_get_level  # the number of the transformation that wrapped a tensor
# (physical tensor, its axis of examples, level): the tensor, wrapped; the inverse of :func:`physical`.
add_example_axis = _functorch._add_batch_dim
leave_level, enter_level = _functorch.pop_dynamic_layer_stack, _functorch.push_dynamic_layer_stack
outside = temporarily_clear_interpreter_stack  # within it, operations run on physical tensors as without transformation


def physical(tensor: Tensor) -> Tensor:
    """The tensor of all examples within a batched tensor, with the examples on its first axis."""
    inner, axis = _functorch.get_unwrapped(tensor), _functorch.maybe_get_bdim(tensor)
    return inner if axis == 0 else inner.movedim(axis, 0)


def unwrapped(tensor: Tensor) -> Tensor:
    """The physical tensor within a batched tensor, with its own order of axes; any other tensor is itself."""
    inner = _functorch.get_unwrapped(tensor) if is_batched(tensor) else tensor
    if is_batched(inner):
        raise PrivacyError("the model was called inside of another vmap; call it with one example, outside of it")
    return inner


_WRITES = (
    "writes values of an example into a tensor that all examples share; a buffer or parameter must not depend on "
    "examples, and other tensors can be made from the input, as x.new_zeros(...)"
)
_STATISTICS = (
    "would update running statistics from examples, which are saved without noise; put these modules into eval mode, "
    "convert batch norm with noisette.nn.convert_batch_norm(model, to=torch.nn.GroupNorm), or build instance norm with "
    "track_running_stats=False"
)
CALLS_FUNCTIONS = "higher order operator"  # in messages of torch's own too
_CONTROL_FLOW = (
    "uses an operator of torch that calls functions, as torch.while_loop does, and that cannot be followed; write a "
    "branch or a loop of Python, or choose by torch.where"
)
_NUMBER = "takes the value of one example as a Python number, as for a branch, .item() or a shape"
_CURE = "choose by torch.where, or use masks of a fixed size"
_CAUSES = {  # a part of PyTorch's message -> what it means
    **dict.fromkeys((".item()", "Cannot access data pointer of Tensor"), f"{_NUMBER}; {_CURE}"),
    "data-dependent control flow": ("branches on values of an example or a random number; choose by torch.where"),
    **dict.fromkeys(
        ("Batch norm got a batched tensor", "Expected more than 1 value per channel when training"), _STATISTICS
    ),
    "match the broadcast shape": _WRITES,
    "inplace": _WRITES,
    "cannot register a hook": (
        "registers a hook on a tensor, which has no gradient of its own inside of vmap; change gradients by a "
        "torch.autograd.Function with a rule for vmap"
    ),
    **dict.fromkeys(
        ("dynamic", "stack expects each tensor to be equal size"),
        "makes a tensor whose shape depends on the values of an example; use masks of a fixed shape",
    ),
    "autograd.Function": (
        "uses an autograd.Function that torch.func.vmap cannot take; give the class generate_vmap_rule = True, or draw "
        "random numbers that come from it in front of the call, and pass them as an argument with one row per example"
    ),
    CALLS_FUNCTIONS: _CONTROL_FLOW,
    "SparseCsr": "computes with a sparse tensor; give it .to_sparse() or .to_dense()",
    "does not require grad": "asks for gradients by backward(); use torch.autograd.grad or torch.func.grad",
}
_SIGNS = ("vmap", "functorch", "torch.func", "Batching rule", "BatchedTensor", "Type promoting", "dtype BF", *_CAUSES)
_WAY_OUT = "PerExampleClip in one process would compute such a loss one example at a time."


class NotVectorizedError(PrivacyError):
    """A loss that ``vmap`` cannot take, though one example at a time may be computed by it."""

    def __init__(self, cause: str) -> None:
        super().__init__(f"{cause} {_WAY_OUT}")
        self.cause = cause  # without a way out


class ExamplesDisagreeError(NotVectorizedError):
    """Code asks for a value, as for a branch, and examples give different answers."""

    def __init__(self, groups: Sequence[Sequence[int]]) -> None:
        super().__init__(f"The loss {_NUMBER}, and examples differ in it; {_CURE}.")
        self.groups = groups  # the numbers of the examples that give the same answer, for each answer


# What gives Python the values of a tensor, and for each of its values the answer.
_ANSWERS: dict[Any, Callable[[Any], Any]] = {
    **dict.fromkeys((Tensor.__bool__, Tensor.is_nonzero, torch.is_nonzero), bool),
    **dict.fromkeys((Tensor.__int__, Tensor.__index__), lambda value: int(value) if math.isfinite(value) else value),
    **dict.fromkeys((Tensor.__float__, Tensor.__complex__, Tensor.item, Tensor.tolist), lambda value: value),
}
# Properties of the tensor of all examples that are those of one example's in a plain pass; ``vmap`` hides them.
_PROPERTIES = {
    **{Tensor.requires_grad.__get__: "requires_grad", Tensor.is_leaf.__get__: "is_leaf"},  # pyright: ignore[reportAttributeAccessIssue, reportFunctionMemberAccess]
    Tensor._version.__get__: "_version",  # pyright: ignore[reportAttributeAccessIssue]
}
_OF_GRAPH = {Tensor.grad_fn.__get__: "grad_fn", Tensor._base.__get__: "_base"}  # pyright: ignore[reportAttributeAccessIssue, reportOptionalMemberAccess]
QUESTIONS = _ANSWERS.keys() | _PROPERTIES.keys() | _OF_GRAPH.keys()


def answered(question: Any, tensor: Tensor, *options: Any) -> Any:
    """What code asks of a tensor of each example and takes on as a value of Python, where all give the same answer.

    Guarantee: each example goes on with the answer that it alone gives: an ``ExamplesDisagreeError`` lets those with
    different answers be computed apart. So an example's gradient is a function of that example, though which ones are
    computed together depends on all of them. Rows that stand for no example repeat the first one.
    """
    inner = physical(tensor)
    if question in _PROPERTIES:
        return getattr(inner, _PROPERTIES[question])
    if question in _OF_GRAPH:
        if inner.requires_grad:
            raise NotVectorizedError(f"The loss reads {_OF_GRAPH[question]} of a tensor; each example has one.")
        return None
    one = inner[0] if len(inner) else inner.new_zeros(inner.shape[1:])
    if one.numel() == 1 or question is Tensor.tolist:
        groups: dict[str, list[int]] = {}
        for k, value in enumerate((inner if question is Tensor.tolist else inner.flatten()).tolist()):
            groups.setdefault(repr(_ANSWERS[question](value)), []).append(k)  # a text tells -0.0 from 0.0
        if len(groups) > 1:
            raise ExamplesDisagreeError(list(groups.values()))
    return question(one, *options)


IN_PLACE_DRAWS = {
    *(Tensor.uniform_, Tensor.normal_, Tensor.bernoulli_, Tensor.exponential_, Tensor.random_, Tensor.cauchy_),
    *(Tensor.log_normal_, Tensor.geometric_),
}
DRAWS = IN_PLACE_DRAWS | {
    *(torch.rand, torch.randn, torch.randint, torch.randperm, torch.normal),
    *(torch.bernoulli, Tensor.bernoulli, torch.multinomial, Tensor.multinomial),
}
DRAWN = "_noisette_drawn"  # the attribute of a tensor that follows from draws alone: the places of these
Test = Callable[[Tensor], bool]


@dataclass
class Draws:
    """Random numbers that decide a branch, as whether a layer is dropped: one draw for all records of a batch.

    All others are drawn for each example. Once code asks, the loss begins anew and shares what the same places draw.

    Guarantee: which records share a draw depends on no other record. A record's own way through the code tells at which
    places it shares, and the numbers follow from the batch's seed, equal on all ranks, and how many it shared before.
    """

    seed: int
    places: frozenset[Place] = frozenset()  # whose draws are shared
    count: int = 0  # so many were shared so far
    any: bool = False  # some number was drawn

    def share(self, places: Set[Place]) -> None:
        """The loss begins anew, and shares what is drawn at these places."""
        self.places |= places
        self.count, self.any = 0, False

    def place(self, keywords: Keywords) -> Place | None:
        """Where code calls one of :data:`DRAWS`; ``None`` with a generator of its own."""
        if keywords.get("generator") is not None:
            return None
        frame = sys._getframe(1)
        while frame.f_back is not None and frame.f_globals.get("__name__", "").startswith(("torch.", "noisette.")):
            frame = frame.f_back
        return frame.f_code, frame.f_lasti

    def shared(self, func: Any, args: Args, keywords: Keywords) -> Any:
        """What is drawn for all records of the batch."""
        self.count += 1
        device = args[0].device if args and isinstance(args[0], Tensor) else keywords.get("device")
        generator = torch.Generator(torch.get_default_device() if device is None else device)
        digest = hashlib.sha256(f"{self.seed} {self.count}".encode()).digest()
        generator.manual_seed(int.from_bytes(digest[:7], "little"))
        return func(*args, **keywords, generator=generator)

    def follow(
        self, func: Any, place: Place | None, args: Args, kwargs: Keywords, outputs: Sequence[Tensor], differs: Test
    ) -> None:
        """Note whether the outputs of an operation follow from draws alone; ``differs``: a tensor is not a constant."""
        self.any |= place is not None
        given = args[1:] if func in IN_PLACE_DRAWS else args  # what was in the first is gone
        found = [tensor for tensor in tensors((given, kwargs)) if differs(tensor)]
        known: list[Any] = [getattr(tensor, DRAWN, None) for tensor in found]
        places = frozenset().union(*known, [place] if place else []) if None not in known else None
        for tensor in args[:1] if func is Tensor.__setitem__ else outputs:
            if places or hasattr(tensor, DRAWN):
                setattr(tensor, DRAWN, places or None)

    def check(self, tensor: Tensor) -> None:
        """Before code takes a value out of a tensor: CallAgainError if it follows from draws that are to be shared."""
        if (places := getattr(tensor, DRAWN, None)) and not places <= self.places:
            raise CallAgainError(shared=places)


def explained(error: Exception, model: nn.Module) -> PrivacyError | None:
    """What an error of ``vmap`` means and what to do, or ``None`` for an error that has nothing to do with it."""
    message = str(error)  # with autocast vmap lacks some casts, as of prelu and rfft
    if not any(sign in message for sign in _SIGNS):
        return None
    cause = next((cause for sign, cause in _CAUSES.items() if sign in message), None)
    where = _where(error.__traceback__, model)
    said = f"{where} {cause}." if cause else f"{where} cannot be vectorised: {message.splitlines()[0]}"
    return PrivacyError(said) if cause in (_STATISTICS, _CONTROL_FLOW) else NotVectorizedError(said)


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


def other_numbers() -> tuple[Any, ...]:
    """The states of the global generators of Python and NumPy."""
    kind, words, *rest = np.random.get_state()
    return random.getstate(), kind, np.asarray(words).tobytes(), *rest


def go_on_with(states: tuple[Any, ...]) -> None:
    """Put the global generators of Python and NumPy into these states."""
    random.setstate(states[0])
    np.random.set_state((states[1], np.frombuffer(states[2], np.uint32), *states[3:]))


@contextmanager
def shared_numbers(code: Callable[..., Any], seed: int) -> Iterator[tuple[Callable[..., Any], Callable[[], bool]]]:
    """A loss for which Python's and NumPy's global generators begin each call alike: records of a batch share numbers.

    Gives it, and what tells whether its last call has drawn some; at the end both generators go on as before.

    Guarantee: an example's numbers follow from the batch's seed, equal on all ranks, and its own way through the code.
    """
    before, digest = other_numbers(), hashlib.sha256(f"{seed} of Python and NumPy".encode()).digest()
    random.seed(digest)
    np.random.seed(np.frombuffer(digest, np.uint32))
    begun = other_numbers()

    def alike(*args: Any, **keywords: Any) -> Any:
        go_on_with(begun)
        return code(*args, **keywords)

    try:
        yield alike, lambda: other_numbers() != begun
    finally:
        go_on_with(before)


@wrap_torch_function(lambda value: (value,))
def transformed(value: Tensor) -> Tensor:
    """What ``torch.func`` is about to wrap; in place of a weight a recorder gives each example its own copy."""
    return value


REPLACED: list[tuple[Any, str, Any]] = []  # (owner, name, what stands there while a loss runs)
_GENERATOR = "_checkpoint_without_reentrant_generator"
_IS_NEWER = hasattr(torch.utils.checkpoint, f"{_GENERATOR}_impl")  # torch 2.14


@contextmanager
def as_if_compiled(checkpoint: Callable[..., Iterator[None]] | None = None) -> Iterator[None]:
    """Within it code is told that it is being compiled; compiled parts and checkpoints run as ordinary functions.

    Code that asks ``torch.compiler.is_compiling()`` does not branch on values. ``torch.compile`` cannot take batched
    tensors. A checkpoint would run its function again after ``vmap`` has returned; ``checkpoint`` stands in place of
    what it does before and after the function. ``torch.distributions`` would check parameters of all examples at once.
    """
    compiler: Any = torch.compiler
    checkpoints: Any = torch.utils.checkpoint
    eager = compiler.set_stance("force_eager") if "torch._dynamo" in sys.modules else nullcontext()
    at = checkpoint or _run_once

    def generator(function: Any, *given: Any, **keywords: Any) -> Iterator[None]:  # older ones have five options first
        return at(function, *given) if _IS_NEWER else at(function, given[5:], keywords)

    changes: list[tuple[Any, str, Any]] = [
        (compiler, "_is_compiling_flag", True),
        (Distribution, "_validate_args", False),
        (Function, "apply", classmethod(_apply)),
        *REPLACED,
        (checkpoints, "CheckpointFunction", _RunOnce),
        (checkpoints, f"{_GENERATOR}_impl" if _IS_NEWER else _GENERATOR, generator),
    ]
    before = [(owner, name, vars(owner)[name]) for owner, name, _ in changes]
    for change in changes:
        setattr(*change)
    _functorch._set_vmap_fallback_warning_enabled(False)  # of operations that vmap takes one by one
    try:
        with eager:
            yield
    finally:
        _functorch._set_vmap_fallback_warning_enabled(True)
        for was in before:
            setattr(*was)


def _run_once(*arguments: object) -> Iterator[None]:
    """The part of a checkpoint before the function runs, and the part after it: nothing."""
    yield


_RunOnce = SimpleNamespace(apply=lambda function, preserve, *args: function(*args))  # in place of a checkpoint's own
_APPLY = vars(Function)["apply"]  # of Python or of C


def _apply(function: type[Function], *args: Any, **keywords: Any) -> Any:
    chosen = function if current_level() is None else _for_all_examples(function)
    return _APPLY.__get__(None, chosen)(*args, **keywords)


@cache
def _for_all_examples(function: type[Function]) -> type[Function]:
    """An autograd function with a rule for ``vmap``: its own code, for one example."""
    if function.generate_vmap_rule or function.vmap is not Function.vmap:
        return function
    noted: list[Any] = []  # the context of a forward pass, which torch gives to setup_context alone, called next

    def forward(*args: Any) -> Any:
        ctx: Any = FunctionCtx()
        ctx.needs_input_grad = tuple([isinstance(arg, Tensor) and arg.is_floating_point() for arg in args])
        output = function.forward(ctx, *args)
        noted.append(ctx)  # only now: the forward pass may apply the function again
        return output

    def setup_context(ctx: Any, inputs: Any, output: Any) -> None:
        of_forward = vars(noted.pop())
        if any(of_forward.pop(name, ()) for name in ("dirty_tensors", "non_differentiable")):
            raise NotVectorizedError(
                f"The loss uses {function.__name__}, which writes in place or has outputs without gradient."
            )
        ctx.save_for_backward(*of_forward.pop("to_save", ()))
        for name in of_forward.keys() - {"needs_input_grad", "materialize_grads"}:
            setattr(ctx, name, of_forward[name])

    def backward(ctx: Any, *dy: Any) -> Any:
        try:
            return function.backward(ctx, *dy)
        except (RuntimeError, TypeError, ValueError) as error:
            said = f"The loss uses {function.__name__}, whose backward cannot be vectorised."
            raise NotVectorizedError(said) from error

    parts: dict[str, Any] = {"generate_vmap_rule": True, "backward": staticmethod(backward)}
    if function.setup_context is Function.setup_context:
        parts |= {"forward": staticmethod(forward), "setup_context": staticmethod(setup_context)}
    return type(function.__name__, (function,), parts)


def gradients(
    outputs: list[Any], inputs: list[Any], arriving: Any, count: int, level: int, options: Keywords
) -> tuple[Any, ...]:
    """``torch.autograd.grad`` inside of ``vmap``, for tensors that each example has, in the graph of the physical ones.

    Guarantee: examples are apart in that graph, so each gradient is one example's; what all share is refused.
    """
    if not all(map(is_wrapped, (*outputs, *inputs))):
        raise NotVectorizedError("The loss asks for a gradient of or for a tensor that depends on no example.")
    with outside():
        ends, dys = list(map(physical, outputs)), []
        for end, dy in zip(ends, [None] * len(ends) if arriving is None else leaves(arriving), strict=True):
            if dy is None and end.numel() != count:
                raise RuntimeError("grad can be implicitly created only for scalar outputs")
            each = torch.ones_like(end) if dy is None else physical(dy) if is_wrapped(dy) else dy
            dys.append(each.expand(end.shape))
        options = options | {"retain_graph": True}  # the gradient of the loss goes through the same graph
        found = torch.autograd.grad(ends, list(map(unwrapped, inputs)), dys, **options)
    axes = map(axis_of, inputs)
    return tuple([g if g is None else add_example_axis(g, axis, level) for g, axis in zip(found, axes, strict=True)])


# What a question, such as ``Tensor.item``, gives for a tensor of each example; ``None`` where nothing may ask.
Answer = Callable[[Any, Tensor], Any] | None
_ANSWER_AT: dict[int, Answer] = {}  # by level, where an operation asks


def _value(tensor: Tensor) -> Any:
    """What an operation gets that takes a number out of a tensor inside of ``vmap``, as ``x[:n]`` does, or a size."""
    answer = _ANSWER_AT.get(level_of(tensor))
    # Random numbers are not shared here, as one by one they are not; what is made within an operation may be one.
    if answer is None or hasattr(tensor, DRAWN) or not hasattr(tensor, CALL):
        raise RuntimeError("vmap: an operation calls .item() on a tensor of each example")
    with torch._C._ExcludeDispatchKeyGuard(torch._C.DispatchKeySet(torch._C.DispatchKey.FuncTorchBatched)):
        return answer(Tensor.item, tensor)


with warnings.catch_warnings(action="ignore"):  # torch below 2.14 says that it had a kernel, which raises that error
    torch.library.impl("aten::item", "FuncTorchBatched", _value)


@contextmanager
def vmap_level(count: int, answer: Answer) -> Iterator[int]:
    """Within it ``vmap`` is in effect for so many examples, each with random numbers of its own; gives its level."""
    # Without them vmap runs some operations, such as the negative log-likelihood, once for each example.
    lazy_load_decompositions()
    level = _functorch._vmap_increment_nesting(count, "different")
    _ANSWER_AT[level] = answer
    try:
        yield level
    finally:
        del _ANSWER_AT[level]
        _functorch._vmap_decrement_nesting()


@contextmanager
def one_example(
    model: nn.Module, batch: Microbatch, answer: Answer = None, checkpoint: Callable[..., Iterator[None]] | None = None
) -> Iterator[tuple[int, list[Tensor]]]:
    """Within it code computes for all examples at once; gives the level of ``vmap`` and the tensors of one example.

    Guarantee: no operation of torch sees two examples. Code that cannot be vectorised is a ``PrivacyError``.
    """
    with as_if_compiled(checkpoint):
        try:
            rows = [tensor.unsqueeze(1) for tensor in batch.tensors]
            with vmap_level(batch.count, answer) as level:
                yield level, [add_example_axis(row, 0, level) for row in rows]
        except (RuntimeError, ValueError) as error:
            if isinstance(error, PrivacyError | torch.OutOfMemoryError) or (said := explained(error, model)) is None:
                raise
            raise said from error
