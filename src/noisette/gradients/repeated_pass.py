"""A forward pass that can be run again, so that its activations need not be kept for a second backward pass."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, replace
from functools import partial

import torch
from torch import Tensor, nn

from noisette.gradients.per_example import LocatedRecording


def repeatable(record: Callable[[], LocatedRecording], model: nn.Module) -> LocatedRecording:
    """The forward pass that ``record`` makes, with what repeats it under the same random state.

    A pass that writes into buffers is not repeated: it would write twice, and start from other values.

    Args:
        record: runs the forward pass.
        model: whose buffers the pass may write into.
    """
    buffers = list(model.buffers())
    versions = _versions(buffers)
    state = _RandomState.now(sorted({p.device.index or 0 for p in model.parameters() if p.device.type == "cuda"}))
    autocast = _Autocast.now(sorted({p.device.type for p in model.parameters()}))
    forward = record()
    if _versions(buffers) != versions or [*map(id, model.buffers())] != [*map(id, buffers)]:
        return forward
    return replace(forward, repeat=partial(_again, record, state, autocast))


def _again(record: Callable[[], LocatedRecording], state: _RandomState, autocast: _Autocast) -> LocatedRecording:
    """The forward pass once more; afterwards random numbers go on as if it had not been."""
    with state.restored(), autocast.restored():
        return record()


def _versions(tensors: Sequence[Tensor]) -> list[int]:
    """The number of writes into each tensor; tensors of inference mode have none."""
    return [0 if tensor.is_inference() else tensor._version for tensor in tensors]


@dataclass(frozen=True)
class _RandomState:
    """What the next random numbers of torch follow from."""

    cpu: Tensor
    cuda: dict[int, Tensor]  # by number of the device

    @classmethod
    def now(cls, devices: Sequence[int]) -> _RandomState:
        """The state at this moment, of the processor and of these GPUs."""
        return cls(torch.get_rng_state(), {device: torch.cuda.get_rng_state(device) for device in devices})

    @contextmanager
    def restored(self) -> Iterator[None]:
        """Within it random numbers follow from this state."""
        with torch.random.fork_rng(list(self.cuda)):
            torch.set_rng_state(self.cpu)
            for device, state in self.cuda.items():
                torch.cuda.set_rng_state(state, device)
            yield


@dataclass(frozen=True)
class _Autocast:
    """Which devices compute in lower precision, and in which."""

    dtypes: dict[str, torch.dtype]

    @classmethod
    def now(cls, devices: Sequence[str]) -> _Autocast:
        return cls({kind: torch.get_autocast_dtype(kind) for kind in devices if torch.is_autocast_enabled(kind)})

    @contextmanager
    def restored(self) -> Iterator[None]:
        with ExitStack() as stack:
            for kind, dtype in self.dtypes.items():
                stack.enter_context(torch.autocast(kind, dtype))
            yield
