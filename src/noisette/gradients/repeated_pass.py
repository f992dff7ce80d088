"""A forward pass that can be run again, so that its activations need not be kept for a second backward pass."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import partial

from torch import Tensor, nn

from noisette._internal.random_state import held_by_torch
from noisette.core.backward import LocatedRecording
from noisette.gradients.surroundings import Surroundings


def repeatable(record: Callable[[], LocatedRecording], model: nn.Module) -> LocatedRecording:
    """The forward pass that ``record`` makes, with what repeats it in the same surroundings.

    A pass that writes into buffers is not repeated: it would write twice, and start from other values.

    Args:
        record: runs the forward pass.
        model: whose buffers the pass may write into, and from whose generators it may draw.
    """
    buffers = list(model.buffers())
    generators = held_by_torch(model.modules())
    versions, surroundings = _versions(buffers), Surroundings.now(list(model.parameters()), generators)
    forward, after = record(), list(model.buffers())
    if _versions(after) != versions or any(one is not other for one, other in zip(buffers, after, strict=True)):
        return forward
    return replace(forward, repeat=partial(_again, record, surroundings))


def _again(record: Callable[[], LocatedRecording], surroundings: Surroundings) -> LocatedRecording:
    with surroundings.restored():
        return record()


def _versions(tensors: Sequence[Tensor]) -> list[int]:
    """The number of writes into each tensor; tensors of inference mode have none."""
    return [0 if tensor.is_inference() else tensor._version for tensor in tensors]
