"""Computing the same once more: a forward pass, or the checkpointed parts of one, with the random numbers of the first.

``torch.utils.checkpoint`` would run a block after ``vmap`` has ended. Here it runs again within ``vmap``, for the same
examples and in the same surroundings, and what was recorded of it gets its arguments back.
"""

from __future__ import annotations

import weakref
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, replace
from typing import Any, ClassVar

import torch
from torch import Tensor
from torch.autograd.graph import saved_tensors_hooks

from noisette.core import vmap
from noisette.core.forms import Use
from noisette.core.loss import versions_of
from noisette.core.steps import RandomStates
from noisette.core.trace import ForwardPass, Recorder
from noisette.core.trees import tensors
from noisette.errors import PrivacyError


@dataclass(frozen=True)
class Surroundings:
    """What code computes under, apart from its arguments: the states of random generators, and lower precision."""

    random: RandomStates
    others: tuple[Any, ...]  # the states of Python's and NumPy's
    autocast: dict[str, torch.dtype]  # types of devices that compute in lower precision

    @classmethod
    def now(cls, tensors: Sequence[Tensor]) -> Surroundings:
        kinds = {tensor.device.type for tensor in tensors}
        lower = {kind: torch.get_autocast_dtype(kind) for kind in kinds if torch.is_autocast_enabled(kind)}
        return cls(RandomStates.now(), vmap.other_numbers(), lower)

    @contextmanager
    def restored(self) -> Iterator[None]:
        """Within it they are as they were, and gradients are enabled; afterwards random numbers go on as before."""
        with ExitStack() as stack:
            stack.callback(RandomStates.now().restore)
            stack.callback(vmap.go_on_with, vmap.other_numbers())
            stack.enter_context(torch.enable_grad())
            for kind, dtype in self.autocast.items():
                stack.enter_context(torch.autocast(kind, dtype))
            self.random.restore()
            vmap.go_on_with(self.others)
            yield


def repeatable(record: Callable[[], ForwardPass], tensors: Sequence[Tensor]) -> ForwardPass:
    """The forward pass that ``record`` makes, with what makes the same once more.

    ``record`` leaves the buffers of the model as they are; ``tensors`` are those on whose devices it computes.
    """
    surroundings = Surroundings.now(tensors)

    def again() -> ForwardPass:
        with surroundings.restored():
            return record()

    return replace(record(), repeat=again)


_DIFFERS = (
    "a function in torch.utils.checkpoint did not do the same when it was recomputed; it must depend on nothing but "
    "its arguments, the weights and torch's random numbers"
)


@dataclass(eq=False)
class _Saved:
    """In place of a tensor that the graph would keep; it holds the tensor once the block has been recomputed."""

    tensor: Tensor | None = None


@dataclass(frozen=True)
class _UseInBlock(Use):
    """A use without its arguments, which come back when its block is recomputed."""

    block: _Block
    number: int
    is_recomputed: ClassVar[bool] = True

    def whole(self) -> Use:
        return self.block.use(self)


def recompute(
    recorder: Recorder, function: Callable[..., Any], args: tuple[Any, ...], keywords: dict[str, Any]
) -> Iterator[None]:
    """What ``torch.utils.checkpoint`` does inside of ``vmap`` before a function of these arguments runs, and after."""
    if recorder.is_in_block:  # a block within a block is part of it
        yield
        return
    recording = recorder.recording
    block = _Block(_again(recorder, function, args, keywords))
    uses, derived = len(recording.uses), len(recording.derived)
    recorder.is_in_block = True
    try:
        with saved_tensors_hooks(block.pack, block.unpack):
            yield
    finally:
        recorder.is_in_block = False
    if len(recording.derived) == derived:  # a derived weight would be another one when it is recomputed
        recording.uses[uses:] = [block.without_arguments(use) for use in recording.uses[uses:]]


class _Block:
    """One call of a checkpointed function: what its graph saves and its uses hold, once it has been recomputed."""

    def __init__(self, again: Again) -> None:
        self._again: Again | None = again
        self._saved: list[weakref.ref[_Saved]] = []  # the graph holds them, and frees them as its nodes are done
        self._uses = 0  # without arguments
        self._recomputed: dict[int, Use] = {}

    def pack(self, tensor: Tensor) -> _Saved:
        saved = _Saved()
        self._saved.append(weakref.ref(saved))
        return saved

    def unpack(self, saved: _Saved) -> Tensor:
        self._recompute()
        assert saved.tensor is not None
        return saved.tensor

    def without_arguments(self, use: Use) -> Use:
        self._uses += 1
        fields = vars(use) | {"args": (), "kwargs": {}, "versions": ()}
        return _UseInBlock(**fields, block=self, number=self._uses - 1)

    def use(self, kept: _UseInBlock) -> Use:
        """The use with its arguments, which are given away once."""
        self._recompute()
        again = self._recomputed.pop(kept.number, None)
        if again is None:
            raise PrivacyError(
                "this engine passes twice over one graph with checkpoints, which are recomputed once; let it repeat "
                "the forward pass, as noisette.engines.ReweightGP does by forward.repeat, or turn the checkpoints off"
            )
        return replace(again, outputs=kept.outputs, edges=kept.edges, upstream=kept.upstream)

    def _recompute(self) -> None:
        """Run the function once more, for what it saves and for the arguments of its uses, if it does the same."""
        if self._again is None:
            return
        again, self._again = self._again, None  # nothing of the call is held afterwards: the graph leads back to here
        saved = iter(self._saved)

        def fill(tensor: Tensor) -> None:
            place = next(saved, None)
            if place is None:
                raise PrivacyError(_DIFFERS)
            if (holder := place()) is not None:
                holder.tensor = tensor.detach()

        uses = again(fill)
        if next(saved, None) is not None or (self._uses and len(uses) != self._uses):
            raise PrivacyError(_DIFFERS)
        if self._uses:
            self._recomputed = dict(enumerate(uses))


Again = Callable[[Callable[[Tensor], None]], list[Use]]  # it gives away each tensor that a graph saves


def _again(recorder: Recorder, function: Callable[..., Any], args: tuple[Any, ...], keywords: dict[str, Any]) -> Again:
    """What runs a function once more, with its arguments and what else its values follow from."""
    before = recorder.made_so_far()
    with torch._C.DisableTorchFunction(), vmap.outside():  # nothing here is a part of the loss
        given = [vmap.unwrapped(tensor) for tensor in tensors((args, keywords))]
        versions = versions_of(given)
        surroundings = Surroundings.now(given)

    def again(save: Callable[[Tensor], None]) -> list[Use]:
        if versions != versions_of(given):
            raise PrivacyError("an argument of a checkpointed function was changed in place after the call")
        hooks, recording = saved_tensors_hooks(save, _refuse), recorder.again(before)
        with surroundings.restored(), hooks, recording as uses:
            function(*args, **keywords)
        return uses

    return again


def _refuse(nothing: None) -> Tensor:
    raise PrivacyError("a checkpointed function takes gradients itself, so it cannot be recomputed")
