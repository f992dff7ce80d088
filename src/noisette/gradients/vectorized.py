"""The loss of one example, vectorised over a batch by ``torch.func.vmap`` and recorded by the tape.

Inside ``vmap`` no code can see more than one example, so nothing about model and loss has to be checked: whatever they
compute, they compute for each example alone.
"""

from __future__ import annotations

import warnings
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property, partial
from typing import Any

import torch
from torch import Tensor, nn
from torch.autograd.graph import get_gradient_edge

from noisette._internal.tensor_tree import leaves, map_leaves, tensors
from noisette.errors import PrivacyError
from noisette.gradients import vmap_internals as internals
from noisette.gradients.outside_tensors import OutsideTensors
from noisette.gradients.recomputed_blocks import Blocks
from noisette.gradients.recording import Output, Recording, RootCall
from noisette.gradients.tape import Tape, autocast_of
from noisette.gradients.vectorized_errors import explained
from noisette.gradients.vectorized_recorder import VectorizedRecorder, WrittenIntoError

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
    recompute: bool = True,
) -> VectorizedLoss:
    """The losses of a batch, with the uses of the weights; every use has its examples on the first axis.

    Args:
        tape: of the model.
        loss: the loss of one example.
        batch: its arguments for b examples.
        outside: the tensors from outside that the loss used before.
        public: tensors from outside that are declared public.
        recompute: whether checkpointed parts of the model are recomputed, or keep their activations.

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
                blocks = Blocks(recorder) if recompute else None
                losses = vectorized_losses(loss, tape.root, batch, recorder.begin, blocks)
            outside.end()
            recorder.end()
            return VectorizedLoss(losses, replace(tape.pop(), calls=_repeatable(tape, loss, batch, losses)))
        except WrittenIntoError as written:
            own_for_each.add(written.factory)


def _repeatable(tape: Tape, loss: Loss, batch: Microbatch, losses: Tensor) -> tuple[RootCall, ...]:
    """The whole loss as the one call of the model, for engines that repeat calls."""
    if not losses.requires_grad:
        return ()
    output = Output(losses, get_gradient_edge(losses), losses._version)
    module = _LossModule(tape.root, loss, batch)
    return (RootCall(module, tuple(batch.tensors), {}, {0: output}, autocast_of([losses]), tape.silent, "model."),)


class _LossModule(nn.Module):
    """The loss as a module, which takes the tensors among its arguments."""

    def __init__(self, model: nn.Module, loss: Loss, batch: Microbatch) -> None:
        super().__init__()
        self.model = model
        self.loss = loss
        self.batch = batch

    def forward(self, *tensors: Tensor) -> Tensor:
        one = self.batch.with_tensors(tensors)
        with internals.as_if_compiled():
            return self.loss(self.model, *one.args, **one.kwargs).reshape(1)
