"""Computing the same once more: a forward pass, or a part of it, with the random numbers and precision of the first."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, replace

import torch
from torch import Tensor

from noisette.core.backward import ForwardPass


@dataclass(frozen=True)
class Surroundings:
    """What code computes under, apart from its arguments: torch's random state, and lower precision."""

    cpu: Tensor
    cuda: dict[int, Tensor]  # random states by number of the device
    autocast: dict[str, torch.dtype]  # types of devices that compute in lower precision

    @classmethod
    def now(cls, tensors: Sequence[Tensor]) -> Surroundings:
        """Those at this moment, on the processor and on the devices of these tensors."""
        devices = {tensor.device for tensor in tensors}
        cuda = sorted({device.index or 0 for device in devices if device.type == "cuda"})
        kinds = {device.type for device in devices if torch.is_autocast_enabled(device.type)}
        return cls(
            torch.get_rng_state(),
            {number: torch.cuda.get_rng_state(number) for number in cuda},
            {kind: torch.get_autocast_dtype(kind) for kind in kinds},
        )

    @contextmanager
    def restored(self) -> Iterator[None]:
        """Within it they are as they were, and gradients are enabled; afterwards random numbers go on as before."""
        with ExitStack() as stack:
            stack.enter_context(torch.random.fork_rng(list(self.cuda)))
            stack.enter_context(torch.enable_grad())
            for kind, dtype in self.autocast.items():
                stack.enter_context(torch.autocast(kind, dtype))
            torch.set_rng_state(self.cpu)
            for number, state in self.cuda.items():
                torch.cuda.set_rng_state(state, number)
            yield


def repeatable(record: Callable[[], ForwardPass], tensors: Sequence[Tensor]) -> ForwardPass:
    """The forward pass that ``record`` makes, with what makes the same once more.

    Args:
        record: runs the forward pass; it leaves the buffers of the model as they are.
        tensors: those on whose devices the pass computes.
    """
    surroundings = Surroundings.now(tensors)

    def again() -> ForwardPass:
        with surroundings.restored():
            return record()

    return replace(record(), repeat=again)
