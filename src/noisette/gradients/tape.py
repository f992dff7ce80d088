"""Which operation used which trainable parameter in a forward pass, and where its output gradient will arrive.

The tape records operations, not layers. It sees every torch call inside the user's root module and sorts each tensor
into one of three kinds. A *weight* is computed from trainable parameters; a *constant* from what depends on no example
(buffers, ``arange``, frozen parameters); everything else is *data*. A call on a weight and data is a *use*. A call on
weights and constants alone derives a new weight.
"""

from __future__ import annotations

import weakref
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any, TypeVar

import torch
from torch import Tensor, nn
from torch.autograd.graph import get_gradient_edge
from torch.nn.utils import parametrize
from torch.overrides import TorchFunctionMode
from torch.utils.hooks import RemovableHandle

from noisette._internal.tensor_tree import leaves
from noisette.gradients.recording import DerivedWeight, Draft, Operation, Output, Recording, RootCall, Use
from noisette.gradients.reordering import MOVING, mark_of_move
from noisette.ranks.wrappers import canonical_parameters

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
        return Recording(tuple(draft.uses), dict(draft.derived), tuple(draft.calls), hooked, tuple(draft.moves))

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
            if data and func in MOVING:
                self._draft.moves.append(mark_of_move(func, args, kwargs))
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
