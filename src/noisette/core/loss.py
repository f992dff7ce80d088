"""The loss of one example: the contract, and what a loss may read: its arguments, buffers, and tensors from outside."""

from __future__ import annotations

import gc
import weakref
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence, Set
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass
from functools import cached_property
from typing import Any, Never, Protocol

import torch
from torch import Tensor, nn
from torch.nn.parallel import DataParallel, DistributedDataParallel
from torch.nn.utils.parametrize import ParametrizationList
from torch.nn.utils.spectral_norm import SpectralNorm
from torch.nn.utils.stateless import _reparametrize_module  # pyright: ignore[reportPrivateImportUsage]

from noisette.core.trees import leaves, map_leaves, tensors
from noisette.errors import PrivacyError, has_rows, warn


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


CALL = "_noisette_call"  # the attribute that tells of which call of a loss a tensor of an example is
Place = tuple[Any, int]  # a place in code: of a function, and of an instruction in it


@dataclass
class CallAgainError(Exception):
    """The loss has to be called once more, as something is known now."""

    own_for_each: Set[int] = frozenset()  # numbers of constants into which examples write
    shared: Set[Place] = frozenset()  # where random numbers are drawn that decide a branch
    own_weights: bool = False  # the loss asks for gradients itself, so each example needs copies of the weights


class Microbatch:
    """The arguments of a loss for b examples: nested values whose tensors have the examples on their first axis.

    ``tensors`` are those of the arguments, in a fixed order; they are alone where each is a tensor without a keyword.
    """

    def __init__(self, args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> None:
        self.args, self.kwargs = args, dict(kwargs)
        self.are_tensors_alone = not kwargs and all(isinstance(arg, Tensor) for arg in args)
        self.tensors: list[Tensor] = list(args) if self.are_tensors_alone else tensors((args, self.kwargs))
        self._versions = versions_of(self.tensors)

    @cached_property
    def count(self) -> int:
        """The number of examples; a PrivacyError if no tensor, or tensors of different lengths, tell it."""
        if {tensor.layout for tensor in self.tensors} - {torch.strided}:  # asked here, so that a step calls less
            has_rows(self.tensors)
        shapes = [tuple(tensor.shape) for tensor in self.tensors]
        if not shapes:
            raise PrivacyError("there is no tensor among the arguments: pass examples, a dictionary without *")
        if len({shape[:1] for shape in shapes}) > 1 or not shapes[0]:
            raise PrivacyError(
                f"expected tensors with one row per example, got the shapes {', '.join(map(str, shapes))}; make "
                "constants numbers of Python or buffers of the model, or declare them: accumulate(..., public=[tensor])"
            )
        return shapes[0][0]

    @cached_property
    def has_other_entries(self) -> bool:
        """Whether some argument is a sequence without tensors, such as a list of texts, or an array."""
        return not self.are_tensors_alone and any(map(_has_entries, leaves((self.args, self.kwargs), _has_entries)))

    def with_tensors(self, tensors: Sequence[Tensor]) -> Microbatch:
        """The same with these tensors, which stand for one example each.

        A sequence without tensors has entries of several examples: unless there is one, it refuses to be read.
        """
        if self.are_tensors_alone:
            return Microbatch(tuple(tensors), {})
        following, alone = iter(tensors), self.count == 1

        def of_one(leaf: Any) -> Any:
            if isinstance(leaf, Tensor):
                return next(following)
            return _Unreadable(leaf) if _has_entries(leaf) and not alone else leaf

        return Microbatch(*map_leaves(of_one, (self.args, self.kwargs), _has_entries))

    def of_rows(self, numbers: Sequence[int]) -> Microbatch:
        """The arguments of the examples with these numbers, in memory of their own."""
        return self.with_tensors([tensor[list(numbers)].detach() for tensor in self.tensors])

    def check_unwritten(self) -> None:
        """Check, before a loss is called once more, that its first call has left the arguments as they were."""
        if self._versions != versions_of(self.tensors):
            raise PrivacyError(
                "the loss writes into its arguments, and has to be called once more, because it cannot be vectorised "
                "as it is; let it write into a copy, such as x = x.clone()"
            )


def _has_entries(value: Any) -> bool:
    """Whether a value may have an entry for each example though it is no tensor; ``None`` for all of them is nothing.

    Its length does not matter: the number of examples is random, and an error must not be.
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

    Class weights computed from each batch would couple its examples; they are a new tensor in each step, unlike tables.
    """

    def __init__(self) -> None:
        self._since: set[int] | None = None  # ids of tensors made since the first batch; None without a run
        self._known: dict[int, tuple[Tensor, int]] = {}  # used in a call so far, and their versions
        self._made: dict[int, tuple[weakref.ref[Tensor], int]] = {}  # inside of calls, from constants alone
        self._columns: list[tuple[int, int]] = []  # where the records lie
        self._current: set[int] = set()  # made or used in this call
        self._public: dict[int, Tensor] = {}
        self._calls = 0
        self.watches = False  # calls make tensors that no mode sees, as torch.FloatTensor(...) and torch.from_numpy do
        self._is_watched: bool | None = None  # whether this call is; None where it cannot be made once more

    def before_first_batch(self, columns: Iterable[Tensor] = ()) -> None:
        """No record has been read yet, so no tensor that exists now was computed from a batch, but from the columns."""
        self._columns = [_memory_of(column) for column in columns]
        gc.collect(0)  # what exists leaves the youngest generation, in which all that is made from now on begins
        since = self._since = set()

        def remember(phase: str, _: object) -> None:
            if phase == "start":  # before a collection moves what is young to an older generation
                for each in gc.get_objects(0):  # a generator's frame would spoil a compiled graph that torch enters
                    if issubclass(type(each), Tensor):
                        since.add(id(each))

        gc.callbacks.append(remember)
        weakref.finalize(self, gc.callbacks.remove, remember)

    def begin(self, public: Iterable[Tensor], *, is_repeatable: bool = False) -> None:
        """A call of the loss begins, for which these tensors are declared public."""
        self._is_watched = False if is_repeatable else None
        self._calls += 1
        self._current.clear()
        self._public = {id(tensor): tensor for tensor in public}

    @contextmanager
    def watching(self) -> Iterator[None]:
        """Within it a call makes tensors, which it may use; once one was met that was not seen to be made."""
        self._is_watched = gc.isenabled()
        gc.collect(0)  # now the youngest generation is empty, and it keeps what is made
        gc.disable()
        try:
            yield
        finally:
            if self._is_watched:
                gc.enable()
            self._is_watched = False

    def _is_new(self, tensor: Tensor) -> bool:
        """Whether a tensor was made inside of this call; a CallAgainError where only another call can tell."""
        if self._is_watched is False and gc.isenabled():
            self.watches = True
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
        """Check that a tensor that the loss has reached, which is neither of the model nor made inside of the call, was
        there before the first batch, was not written to since, and holds no records.
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
                raise PrivacyError(f"{_described(tensor)}, made after the first batch was drawn. {_DECLARE_PUBLIC}")
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
    if type(tensor) not in (Tensor, nn.Parameter) or tensor.layout is not torch.strided or not tensor.numel():
        return 0, 0
    last = sum((size - 1) * stride for size, stride in zip(tensor.shape, tensor.stride(), strict=True))
    return tensor.data_ptr(), tensor.data_ptr() + (last + 1) * tensor.element_size()


def _described(tensor: Tensor) -> str:
    said = f"the loss uses a tensor of shape {tuple(tensor.shape)} that is neither an argument nor part of the model"
    if isinstance(tensor, nn.Parameter):
        said += " that was given (load_state_dict(assign=True) replaces parameters: begin anew, with assign=False)"
    return said


class ModelBuffers:
    """The buffers that a model had when the first records of a batch were read.

    Guarantee: what the loss of one example writes into buffers reaches no other example and is not released.
    """

    def __init__(self, model: nn.Module) -> None:
        self._model = model
        self._kept: dict[str, tuple[Tensor, int, Tensor]] | None = None  # the buffer, its version, and its values
        self.seed = torch.initial_seed()  # of the random numbers that all records of a batch share, on all ranks
        self._were_lent = False

    def begin_batch(self, seed: int = 0) -> None:
        """Remember the buffers and their values: the first records of a batch are about to be read."""
        self.seed = seed
        self._kept = {name: (b, version_of(b), b.detach().clone()) for name, b in self._model.named_buffers()}

    def end_batch(self) -> list[str]:
        """Put back the buffers that were written since the batch began; their names. If none, spectral norms go on."""
        kept, self._kept = self._kept or {}, None
        now = dict(self._model.named_buffers())
        written = [
            name for name, (b, version, _) in kept.items() if now.get(name) is not b or version_of(b) != version
        ] + sorted(now.keys() - kept.keys())
        for name in written:
            path, _, own = name.rpartition(".")
            module = self._model.get_submodule(path)
            if name in kept:
                module._buffers[own] = kept[name][2]
            else:
                del module._buffers[own]
        if kept and not written:  # without a buffer nothing iterates
            advance_spectral_norms(self._model)
        return written

    def values(self) -> dict[str, Tensor]:
        """The values that the batch computes with, by name; the model's own buffers outside of a batch."""
        if self._kept is None:
            return dict(self._model.named_buffers())
        return {name: values for name, (_, _, values) in self._kept.items()}

    @contextmanager
    def lent(self, copy: Callable[[Tensor], Tensor] = lambda x: x.detach().clone()) -> Iterator[None]:
        """Within it the model has copies of its buffers, made by this function; the first time counters are watched."""
        before = self.values()
        copies = {name: copy(values) for name, values in before.items()}
        with _reparametrize_module(self._model, copies) if copies else nullcontext():
            yield
            if self._kept is not None and not self._were_lent:
                _name_counters(before, dict(self._model.named_buffers()))
                self._were_lent = True


def _name_counters(before: Mapping[str, Tensor], now: Mapping[str, Tensor]) -> None:
    """Warn of each number among the buffers that the loss has counted up in vain, as it does for any example."""
    for name, b in before.items():
        after, kinds = now.get(name, b), (torch.int32, torch.int64)
        may_count = b.numel() == 1 and not b.is_meta and (b.is_floating_point() or b.dtype in kinds)
        with torch._C.DisableTorchFunction():
            if not may_count or "num_batches_tracked" in name or hasattr(after, CALL) or torch.equal(after, b):
                continue
        said = f"the loss counts in the buffer {name}, which stays as it is; count in the loop, before "
        warn(said + f"batch.microbatches(): model.get_buffer({name!r}).fill_(run.steps_taken)")


def version_of(tensor: Tensor) -> int:
    """The number of writes; tensors of inference mode have none."""
    return 0 if tensor.is_inference() else tensor._version


def versions_of(tensors: Iterable[Tensor]) -> list[int]:
    """The numbers of writes into each of the tensors."""
    return [version_of(tensor) for tensor in tensors]


@torch.no_grad()
def advance_spectral_norms(model: nn.Module) -> None:
    """One power iteration of each spectral norm in training mode; other parametrizations with buffers likewise.

    It reads the weights alone. In a batch all microbatches start from the same vectors, and so have the same weights.
    """
    for module in model.modules():
        if isinstance(module, ParametrizationList) and module.training and next(module.buffers(), None) is not None:
            module()
        for hook in module._forward_pre_hooks.values():
            if isinstance(hook, SpectralNorm):
                hook.compute_weight(module, do_power_iteration=module.training)


def is_sharded(tensor: object) -> bool:
    """Whether it is a tensor of which each rank holds a part."""
    return type(tensor).__name__ == "DTensor"


# What keeps a wrapper from exchanging anything: buffers in its call, gradients in a backward pass, and the first
# gradients of a graph that it was told is always the same.
_AT_REST = {
    "require_forward_param_sync": False,
    "require_backward_grad_sync": False,
    "_static_graph_delay_allreduce_enqueued": True,
}


class Unwrapped:
    """The module inside ``DistributedDataParallel``, whose exchange between ranks rests until :meth:`close`.

    A private run adds up the sums of the ranks itself. What the wrapper sends in each call would make ranks wait for
    each other that have different numbers of microbatches. ``nn.DataParallel`` is refused.
    """

    def __init__(self, model: nn.Module) -> None:
        if isinstance(model, DataParallel):
            raise PrivacyError(
                "nn.DataParallel copies the model into threads, whose uses of parameters cannot be recorded; start one "
                "process for each GPU with torchrun, and give the bound the model itself"
            )
        self.module: nn.Module = model.module if isinstance(model, DistributedDataParallel) else model
        self._before: list[tuple[nn.Module, str, bool]] = []
        for wrapper in [module for module in model.modules() if isinstance(module, DistributedDataParallel)]:
            for flag, value in _AT_REST.items():
                self._before.append((wrapper, flag, getattr(wrapper, flag, value)))
                setattr(wrapper, flag, value)

    def close(self) -> None:
        for wrapper, flag, before in self._before:
            setattr(wrapper, flag, before)
        self._before = []
