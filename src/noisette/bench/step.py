"""What a method is, and the settings that all methods share."""

from __future__ import annotations

from collections.abc import Callable

from torch import Tensor, nn

Step = Callable[[], None]
Method = Callable[[nn.Module, Tensor, Tensor], Step]  # (model, inputs, targets) -> one training step on them

LEARNING_RATE = 0.01
MAX_GRAD_NORM = 1.0
NOISE_MULTIPLIER = 1.0
