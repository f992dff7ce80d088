"""What all measured steps share: their data, plain SGD, one clipping norm, one noise multiplier."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from itertools import chain, repeat
from typing import NamedTuple

import torch
from torch import Tensor, nn


class Data(NamedTuple):
    """The records of a run, or the batch that every step has where no ``batch_size`` is given."""

    inputs: Tensor
    targets: Tensor
    batch_size: int | None = None  # expected

    @property
    def size(self) -> int:
        """The expected number of examples of a batch."""
        return len(self.targets) if self.batch_size is None else self.batch_size

    @property
    def sampling_rate(self) -> float:
        """The probability of a record to be in a batch."""
        return self.size / len(self.targets)

    def batches(self, loader: Iterable[tuple[Tensor, Tensor]] | None = None) -> Iterator[tuple[Tensor, Tensor]]:
        """Batches without end: the one that is at hand, or those of a loader, or rows of shuffled records."""
        if self.batch_size is None:
            return repeat((self.inputs, self.targets))
        return chain.from_iterable(repeat(self._shuffled() if loader is None else loader))

    def _shuffled(self) -> Iterator[tuple[Tensor, Tensor]]:
        while True:
            for rows in torch.randperm(len(self.targets)).split(self.size):
                yield self.inputs[rows], self.targets[rows]


Step = Callable[[], None]
Method = Callable[[nn.Module, Data], Step]  # one training step of the model after the other

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
