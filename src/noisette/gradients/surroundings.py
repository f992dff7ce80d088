"""What a forward pass computes under, apart from its arguments: random state, autocast, and gradients."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor


@dataclass(frozen=True)
class Surroundings:
    """The random state of torch and its lower precision at one moment, to compute the same once more."""

    cpu: Tensor
    cuda: dict[int, Tensor]  # random states by number of the device
    autocast: dict[str, torch.dtype]  # types of devices that compute in lower precision
    held: list[tuple[Any, Tensor]]  # torch's generators in a model, and their states

    @classmethod
    def now(cls, tensors: Sequence[Tensor], generators: Sequence[Any] = ()) -> Surroundings:
        """Those at this moment, on the processor, on the devices of these tensors, and of these generators."""
        devices = {tensor.device for tensor in tensors}
        cuda = sorted({device.index or 0 for device in devices if device.type == "cuda"})
        kinds = {device.type for device in devices if torch.is_autocast_enabled(device.type)}
        return cls(
            torch.get_rng_state(),
            {number: torch.cuda.get_rng_state(number) for number in cuda},
            {kind: torch.get_autocast_dtype(kind) for kind in kinds},
            [(generator, generator.get_state()) for generator in generators],
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
            for generator, state in self.held:
                stack.callback(generator.set_state, generator.get_state())
                generator.set_state(state)
            yield
