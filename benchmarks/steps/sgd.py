"""What all measured steps share: plain SGD, one clipping norm, one noise multiplier."""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor, nn

Step = Callable[[], None]
Method = Callable[[nn.Module, Tensor, Tensor], Step]  # (model, inputs, targets) -> one training step on them

LEARNING_RATE = 0.01
MAX_GRAD_NORM = 1.0
NOISE_MULTIPLIER = 1.0


def step_of(optimizer: torch.optim.Optimizer, backward: Callable[[], object]) -> Step:
    """One step of an optimizer on the gradients of ``backward``."""

    def step() -> None:
        backward()
        optimizer.step()
        optimizer.zero_grad()

    return step
