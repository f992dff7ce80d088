"""The loss of one example: the contract, its arguments, and its computation for all examples at once.

Inside of ``torch.func.vmap`` no operation of torch sees more than one example. A tensor of all examples is wrapped
there: it has the shape of one example's tensor, and the tensor within, the *physical* one, has one more axis for the
examples. A tensor that depends on no example is not wrapped. The names of ``vmap`` that are private to PyTorch are all
in this file."""

from __future__ import annotations

import gc
import hashlib
import math
import random
import sys
import weakref
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence, Set
from contextlib import contextmanager
from dataclasses import dataclass
from functools import cached_property
from types import TracebackType
from typing import Any, Never, Protocol

import numpy as np
import torch
from torch import Tensor, nn
from torch._C import _functorch  # pyright: ignore[reportAttributeAccessIssue]
from torch.nn.utils.rnn import pack_padded_sequence

from noisette.core.state import version_of, versions_of
from noisette.core.trees import leaves, map_leaves, tensors
from noisette.errors import PrivacyError


class Loss(Protocol):
    """The loss of one example: a function of its arguments, the model's weights and buffers, and torch's generators.

    It is called with one example, each tensor with a batch axis of length 1, and returns a tensor with one value. It
    may call any torch code. It keeps nothing between calls, and reads records only through its arguments. What a call
    writes into buffers of the model is dropped. Batches are pytrees of tensors. Release the ``state_dict`` of the
    model, not a pickle of the live objects.

    What of this holds by construction, what is checked and what is yours: ``docs/explanation/contract.md``.

    Guarantee: for a loss of this kind, adding or removing one record changes the sum of clipped gradients by at most
    the clipping norm, in real arithmetic. The operator is honest and can make mistakes; the attacker sees all that is
    released, and may know or forge all other records.
    """

    def __call__(self, model: nn.Module, /, *batch: Any, **keywords: Any) -> Tensor:
        """The loss of one example, a tensor with one value."""
        ...


Place = tuple[Any, int]  # a place in code: of a function, and of an instruction in it


@dataclass
class CallAgainError(Exception):
    """The loss has to be called once more, as something is known now."""

    own_for_each: Set[int] = frozenset()  # numbers of constants into which examples write
    shared: Set[Place] = frozenset()  # where random numbers are drawn that decide a branch


@dataclass(frozen=True)
class Microbatch:
    """The arguments of a loss for b examples: nested values whose tensors have the examples on their first axis."""

    args: tuple[Any, ...]
    kwargs: Mapping[str, Any]

    @cached_property
    def tensors(self) -> list[Tensor]:
        """The tensors of the arguments, in a fixed order."""
        if self.are_tensors_alone:
            return list(self.args)
        return tensors((self.args, dict(self.kwargs)))

    @cached_property
    def count(self) -> int:
        """The number of examples.

        Raises:
            PrivacyError: there is no tensor, or the tensors do not agree in their number of rows.
        """
        shapes = [tuple(tensor.shape) for tensor in self.tensors]
        if not shapes:
            raise PrivacyError("the loss has no tensor among its arguments: pass the examples after the loss")
        if len({shape[:1] for shape in shapes}) > 1 or not shapes[0]:
            raise PrivacyError(
                f"expected tensors with one row per example, got the shapes {', '.join(map(str, shapes))}; pass "
                "a constant number as a number of Python, and declare a constant tensor: "
                "accumulate(..., public=[tensor])"
            )
        return shapes[0][0]

    @cached_property
    def has_other_entries(self) -> bool:
        """Whether some argument is a sequence without tensors, such as a list of texts, or an array."""
        return not self.are_tensors_alone and any(
            map(_has_entries, leaves((self.args, dict(self.kwargs)), _has_entries))
        )

    def with_tensors(self, tensors: Sequence[Tensor]) -> Microbatch:
        """The same with these tensors, which stand for one example each.

        A sequence without tensors has entries of several examples. In its place is a value that refuses to be read,
        unless there is only one example.
        """
        if self.are_tensors_alone:
            return Microbatch(tuple(tensors), {})
        following, alone = iter(tensors), self.count == 1

        def of_one(leaf: Any) -> Any:
            if isinstance(leaf, Tensor):
                return next(following)
            return _Unreadable(leaf) if _has_entries(leaf) and not alone else leaf

        args, kwargs = map_leaves(of_one, (self.args, dict(self.kwargs)), _has_entries)
        return Microbatch(args, kwargs)

    def of_row(self, k: int) -> Microbatch:
        """The arguments of example k alone, in memory of its own."""
        return self.of_rows([k])

    def of_rows(self, numbers: Sequence[int]) -> Microbatch:
        """The arguments of the examples with these numbers, in memory of their own."""
        return self.with_tensors([tensor[list(numbers)].detach() for tensor in self.tensors])

    def versions(self) -> list[int]:
        """The numbers of writes into the tensors."""
        return versions_of(self.tensors)

    def check_unwritten(self, versions: Sequence[int]) -> None:
        """Check, before a loss is called once more, that its first call has left the arguments as they were.

        Raises:
            PrivacyError: it has written into them.
        """
        if self.versions() != versions:
            raise PrivacyError(
                "the loss writes into its arguments, and has to be called once more, because it cannot be vectorised "
                "as it is; let it write into a copy, such as x = x.clone()"
            )

    @property
    def are_tensors_alone(self) -> bool:
        """Whether each argument is a tensor, and none has a keyword."""
        return not self.kwargs and all(isinstance(arg, Tensor) for arg in self.args)


def _has_entries(value: Any) -> bool:
    """Whether a value may have an entry for each example though it is no tensor; ``None`` for all of them is nothing.

    Whether it has as many entries as there are examples does not matter: the number of examples is random, and an
    error must not be.
    """
    if isinstance(value, list | tuple | set | frozenset):
        inside = leaves(list(value))
        return any(leaf is not None for leaf in inside) and not any(isinstance(leaf, Tensor) for leaf in inside)
    return hasattr(type(value), "__array__") and not isinstance(value, Tensor) and getattr(value, "ndim", 1) > 0


class _Unreadable:
    """In place of a sequence with entries of several examples, within the loss of one of them."""

    def __init__(self, value: Any) -> None:
        kind = type(value).__name__
        first = next(iter(value)) if isinstance(value, list | tuple | set | frozenset) else value
        object.__setattr__(
            self,
            "_said",
            f"the loss reads a {kind} with entries of several examples, such as {type(first).__name__} {first!r:.60}: "
            "every example would see all of them. Make tensors with one row per example of them in the data set or "
            "in collate_fn (tokenise texts there), or take one example at a time by batch.microbatches(1). Constants "
            "belong in the loss itself or in functools.partial",
        )

    def _refuse(self, *_: Any) -> Never:
        raise PrivacyError(object.__getattribute__(self, "_said"))

    @classmethod
    def __torch_function__(cls, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Never:
        next(leaf for leaf in leaves((args, kwargs or {})) if type(leaf) is cls)._refuse()

    def __repr__(self) -> str:
        return "<entries of several examples>"

    __getattr__ = __getitem__ = __iter__ = __len__ = __contains__ = __bool__ = __eq__ = __array__ = __call__ = _refuse
    __rmul__ = __sub__ = __rsub__ = __truediv__ = __rtruediv__ = __neg__ = __ne__ = __le__ = __ge__ = _refuse
    __int__ = __float__ = __index__ = __str__ = __add__ = __radd__ = __mul__ = __lt__ = __gt__ = __hash__ = _refuse


_DECLARE_PUBLIC = (
    "If it is computed from records, pass it as an argument with one row per example. If it is not, or from released "
    "weights alone as those of a teacher are, declare it: accumulate(..., public=[tensor])"
)


class OutsideTensors:
    """The tensors from outside that losses have used: each was there before the first batch, and stays as it is.

    Class weights that a loop computes from each batch would couple its examples. They are a new tensor in each step,
    which a table of constants is not.
    """

    def __init__(self) -> None:
        self._since: set[int] | None = None  # ids of tensors made since the first batch; None without a run
        self._known: dict[int, tuple[Tensor, int]] = {}  # used in a call so far, and their versions
        self._made: dict[int, tuple[weakref.ref[Tensor], int]] = {}  # inside of calls, from constants alone
        self._columns: list[tuple[int, int]] = []  # where the records lie
        self._current: set[int] = set()  # made or used in this call
        self._public: dict[int, Tensor] = {}
        self._calls = 0
        self._watches = False  # calls make tensors that no mode sees, as torch.FloatTensor(...) and torch.from_numpy do
        self._is_watched: bool | None = None  # whether this call is; None where it cannot be made once more

    def before_first_batch(self, columns: Iterable[Tensor] = ()) -> None:
        """No record has been read yet, so no tensor that exists now was computed from a batch, but from the columns."""
        self._columns = [_memory_of(column) for column in columns]
        gc.collect(0)  # what exists leaves the youngest generation, in which all that is made from now on begins
        since = self._since = set()

        def remember(phase: str, _: object) -> None:
            if phase == "start":  # before a collection moves what is young to an older generation
                since.update(id(each) for each in gc.get_objects(0) if issubclass(type(each), Tensor))

        gc.callbacks.append(remember)
        weakref.finalize(self, gc.callbacks.remove, remember)

    def begin(self, public: Iterable[Tensor]) -> None:
        """A call of the loss begins, for which these tensors are declared public."""
        self._calls += 1
        self._current.clear()
        self._public = {id(tensor): tensor for tensor in public}

    @contextmanager
    def watching(self) -> Iterator[None]:
        """Within it a call makes tensors, which it may use; once one was met that was not seen to be made."""
        is_on = self._is_watched = self._watches and gc.isenabled()
        if is_on:
            gc.collect(0)  # now the youngest generation is empty, and it keeps what is made
            gc.disable()
        try:
            yield
        finally:
            self._is_watched = None
            if is_on:
                gc.enable()

    def _is_new(self, tensor: Tensor) -> bool:
        """Whether a tensor was made inside of this call; a CallAgainError where only another call can tell."""
        if self._is_watched is False and gc.isenabled():
            self._watches = True
            raise CallAgainError
        return bool(self._is_watched) and any(each is tensor for each in gc.get_objects(0))

    def made(self, tensor: Tensor) -> None:
        """A tensor was made inside of a call, from constants alone; a module may keep it for the next call."""
        key = id(tensor)
        if key not in self._known and key not in self._public:  # otherwise it is the result of an operation in place
            self._made[key] = weakref.ref(tensor, lambda _: self._made.pop(key, None)), version_of(tensor)
            self._current.add(key)

    def end(self) -> None:
        """The call of the loss ends: from here on, what it has made may not be written to outside of a call."""
        for key in self._current & self._made.keys():
            if (tensor := self._made[key][0]()) is not None:
                self._made[key] = self._made[key][0], version_of(tensor)

    def used(self) -> list[Tensor]:
        """The tensors from outside that the last call has used, without those that are declared public."""
        return [self._known[key][0] for key in self._current if key in self._known]

    def check(self, tensor: Tensor) -> None:
        """Check a tensor that the loss has reached and that is neither of the model nor made inside of the call.

        Raises:
            PrivacyError: it was made after the first batch was drawn, or was written to since, or it holds records.
        """
        key = id(tensor)
        if key in self._current or key in self._public or tensor.is_meta:
            return
        made, version = self._made.get(key, (lambda: None, 0))
        if made() is not tensor:
            if key not in self._known and not self._may_be_new(tensor):
                if self._is_new(tensor) and not self._holds_records(tensor):
                    self.made(tensor)
                    return
                raise PrivacyError(
                    f"{_described(tensor)}, and it was made after the first batch was drawn. {_DECLARE_PUBLIC}"
                )
            if key not in self._known and self._holds_records(tensor):
                raise PrivacyError(
                    f"{_described(tensor)}, and it holds records of the data set, which a loss may read through its "
                    "arguments alone; compute a constant, such as the mean that inputs are centred by, from public data"
                )
            version = self._known.setdefault(key, (tensor, version_of(tensor)))[1]
        if version != version_of(tensor):
            raise PrivacyError(f"{_described(tensor)}, and it was written to since the first call. {_DECLARE_PUBLIC}")
        self._current.add(key)

    def _may_be_new(self, tensor: Tensor) -> bool:
        """Whether a tensor that no call has used yet may be used: in a run an older one, else one of the first call."""
        if self._since is None:
            return self._calls == 1
        return id(tensor) not in self._since and all(each is not tensor for each in gc.get_objects(0))

    def _holds_records(self, tensor: Tensor) -> bool:
        begin, end = _memory_of(tensor) if self._columns else (0, 0)
        return any(begin < last and first < end for first, last in self._columns)


def _memory_of(tensor: Tensor) -> tuple[int, int]:
    """The addresses between which a tensor's elements lie; none where they have no address."""
    if type(tensor) not in (Tensor, nn.Parameter) or tensor.is_sparse or not tensor.numel():
        return 0, 0
    last = sum((size - 1) * stride for size, stride in zip(tensor.shape, tensor.stride(), strict=True))
    return tensor.data_ptr(), tensor.data_ptr() + (last + 1) * tensor.element_size()


def _described(tensor: Tensor) -> str:
    return f"the loss uses a tensor of shape {tuple(tensor.shape)} that is neither an argument nor part of the model"


is_wrapped = _functorch.is_functorch_wrapped_tensor  # by any transformation of torch.func
is_batched = _functorch.is_batchedtensor  # by vmap


current_level = _functorch.maybe_current_level  # number of nested transformations around this code; None outside
level_of = _functorch.maybe_get_level  # the number of the transformation that wrapped a tensor
add_example_axis = _functorch._add_batch_dim  # (physical tensor, its axis of examples, level): the tensor, wrapped
leave_level, enter_level = _functorch.pop_dynamic_layer_stack, _functorch.push_dynamic_layer_stack


def physical(tensor: Tensor) -> Tensor:
    """The tensor of all examples within a batched tensor, with the examples on its first axis."""
    inner, axis = _functorch.get_unwrapped(tensor), _functorch.maybe_get_bdim(tensor)
    return inner if axis == 0 else inner.movedim(axis, 0)


def example_axis(tensor: Tensor) -> int | None:
    """The axis of the physical tensor on which ``vmap`` has the examples; ``None`` for a tensor that is not batched."""
    return _functorch.maybe_get_bdim(tensor) if is_batched(tensor) else None


def unwrapped(tensor: Tensor) -> Tensor:
    """The physical tensor within a batched tensor, with its own order of axes; any other tensor is itself.

    Raises:
        PrivacyError: the tensor is inside of a ``vmap`` of the user's own, too.
    """
    inner = _functorch.get_unwrapped(tensor) if is_batched(tensor) else tensor
    if is_batched(inner):
        raise PrivacyError("the model was called inside of another vmap; call it with one example, outside of it")
    return inner


def batched(tensor: Tensor, level: int) -> Tensor:
    """A physical tensor, wrapped: the inverse of :func:`physical`."""
    return _functorch._add_batch_dim(tensor, 0, level)


class outside:  # noqa: N801
    """Within it, operations run on physical tensors as if there were no transformation."""

    def __enter__(self) -> None:
        self._layers: list[Any] = []
        while _functorch.peek_interpreter_stack() is not None:
            self._layers.append(_functorch.pop_dynamic_layer_stack())

    def __exit__(self, *raised: object) -> None:
        while self._layers:
            _functorch.push_dynamic_layer_stack(self._layers.pop())


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
        ("Batch norm got a batched tensor", "Expected more than 1 value per channel when training"), _STATISTICS
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
_WAY_OUT = "PerExampleClip in one process would compute such a loss one example at a time."


class NotVectorizedError(PrivacyError):
    """A loss that ``vmap`` cannot take, though one example at a time may be computed by it.

    Attributes:
        cause: the reason in words, without a way out.
    """

    def __init__(self, cause: str) -> None:
        super().__init__(f"{cause} {_WAY_OUT}")
        self.cause = cause


class ExamplesDisagreeError(NotVectorizedError):
    """Code asks for a value, as for a branch, and examples give different answers.

    Attributes:
        groups: the numbers of the examples that give the same answer, for each answer.
    """

    def __init__(self, groups: Sequence[Sequence[int]]) -> None:
        super().__init__(
            "The loss takes the value of one example as a Python number, as a branch on it, .item() or a shape from it "
            f"does, and there are {len(groups)} different ones."
        )
        self.groups = groups


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

    Guarantee: each example goes on with the answer that it alone gives. Where all answers are equal, no example can
    tell that there are others; where they are not, examples with different answers are computed apart. So an example's
    gradient is a function of that example, though which ones are computed together depends on all of them. Rows that
    stand for no example repeat the first one, so they have no answer of their own.

    Raises:
        ExamplesDisagreeError: the examples give different answers.
        NotVectorizedError: the question is about the graph of one example.
    """
    inner = physical(tensor)
    if question in _PROPERTIES:
        return getattr(inner, _PROPERTIES[question])
    if question in _OF_GRAPH:
        if inner.requires_grad:
            raise NotVectorizedError(
                f"The loss reads {_OF_GRAPH[question]} of a tensor, which has one for each example."
            )
        return None
    one = inner[0] if len(inner) else inner.new_zeros(inner.shape[1:])
    if one.numel() == 1 or question is Tensor.tolist:
        groups: dict[str, list[int]] = {}
        for k, value in enumerate(
            inner.tolist() if one.dim() == 0 or question is Tensor.tolist else inner.flatten().tolist()
        ):
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


class Draws:
    """Random numbers that decide a branch, as whether a layer is dropped: one draw for all records of a batch.

    All others are drawn for each example. Which of them decide a branch is known when code asks: then the loss begins
    anew, and what is drawn at the same places in code is shared.

    Guarantee: which records share a draw depends on no other record. A record's own way through the code tells at which
    places it shares, and the numbers follow from the batch's seed, which all microbatches and ranks have, and from how
    many were shared before on that way.
    """

    def __init__(self, seed: int) -> None:
        self._seed = seed
        self.places: frozenset[Place] = frozenset()  # whose draws are shared
        self.count = 0  # so many were shared so far
        self.any = False  # some number was drawn

    def share(self, places: Set[Place]) -> None:
        """The loss begins anew, and shares what is drawn at these places."""
        self.places |= places
        self.count, self.any = 0, False

    def place(self, keywords: Mapping[str, Any]) -> Place | None:
        """Where code calls one of :data:`DRAWS`; ``None`` with a generator of its own."""
        if keywords.get("generator") is not None:
            return None
        frame = sys._getframe(1)
        while frame.f_back is not None and frame.f_globals.get("__name__", "").startswith(("torch.", "noisette.")):
            frame = frame.f_back
        return frame.f_code, frame.f_lasti

    def shared(self, func: Any, args: tuple[Any, ...], keywords: Mapping[str, Any]) -> Any:
        """What is drawn for all records of the batch."""
        self.count += 1
        device = args[0].device if args and isinstance(args[0], Tensor) else keywords.get("device")
        generator = torch.Generator(torch.get_default_device() if device is None else device)
        digest = hashlib.sha256(f"{self._seed} {self.count}".encode()).digest()
        generator.manual_seed(int.from_bytes(digest[:7], "little"))
        return func(*args, **keywords, generator=generator)

    def follow(
        self,
        func: Any,
        place: Place | None,
        args: tuple[Any, ...],
        keywords: Mapping[str, Any],
        outputs: Sequence[Tensor],
        differs: Callable[[Tensor], bool],
    ) -> None:
        """Note whether the outputs of an operation follow from draws alone; ``differs``: a tensor is not a constant."""
        self.any |= place is not None
        given = args[1:] if func in IN_PLACE_DRAWS else args  # what was in the first is gone
        found = [tensor for tensor in tensors((given, dict(keywords))) if differs(tensor)]
        known: list[Any] = [getattr(tensor, DRAWN, None) for tensor in found]
        places = frozenset().union(*known, [place] if place else []) if None not in known else None
        for tensor in args[:1] if func is Tensor.__setitem__ else outputs:
            if places or hasattr(tensor, DRAWN):
                setattr(tensor, DRAWN, places or None)

    def check(self, tensor: Tensor) -> None:
        """Before code takes a value out of a tensor.

        Raises:
            CallAgainError: it follows from random numbers alone, which are to be shared.
        """
        if (places := getattr(tensor, DRAWN, None)) and not places <= self.places:
            raise CallAgainError(shared=places)


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


@contextmanager
def shared_numbers_refused() -> Iterator[None]:
    """Within it a loss is called for a whole microbatch, and must not draw from Python's or NumPy's global generator.

    Numbers of torch are drawn for each example. A number of theirs would be shared by the examples of a microbatch, and
    which ones share it would depend on the others.

    Raises:
        NotVectorizedError: numbers were drawn.
    """
    before = _states_of_python_and_numpy()
    yield
    if _states_of_python_and_numpy() != before:
        raise NotVectorizedError(
            "The loss draws from the random generator of Python or NumPy: in one call for a whole microbatch, its "
            "examples would share the numbers; draw them by torch."
        )


def _states_of_python_and_numpy() -> tuple[object, ...]:
    numpy: Any = np.random.get_state(legacy=False)
    words = [part.tobytes() if isinstance(part, np.ndarray) else part for part in numpy["state"].values()]
    return random.getstate(), *words
