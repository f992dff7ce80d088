"""Training without privacy, for a baseline: the steps of a private run with nothing clipped and no noise."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor
from torch.optim import Optimizer

from noisette.core.release import GradientBound
from noisette.nn.views import Loss


@dataclass(frozen=True)
class PlainBatch:
    """The records of one step."""

    tensors: Sequence[Tensor]
    indices: Tensor

    def microbatches(self, size: int) -> Iterator[list[Tensor]]:
        """The batch in parts of at most ``size`` records; an empty batch has none."""
        for part in self.indices.split(size):
            if len(part):
                yield [tensor[part] for tensor in self.tensors]


@dataclass
class PlainRun:
    """What the loop of a recipe needs of a run, without privacy: Poisson batches and the mean of their gradients.

    Guarantee: none.
    """

    bound: GradientBound  # which is not used as one
    optimizer: Optimizer
    tensors: Sequence[Tensor]
    sampling_rate: float
    expected_batch_size: int
    steps: int
    steps_spent: int = 0

    def batches(self) -> Iterator[PlainBatch]:
        """The batch of each step, which each record enters with the sampling rate."""
        for _ in range(self.steps):
            chosen = torch.rand(len(self.tensors[0])) < self.sampling_rate
            self.steps_spent += 1
            yield PlainBatch(self.tensors, chosen.nonzero().squeeze(1).to(self.tensors[0].device))

    def accumulate(self, losses: Loss, *batch: Tensor) -> None:
        """Add the gradients of the records of a microbatch, over the declared batch size."""
        (losses(self.bound.model, *batch).sum() / self.expected_batch_size).backward()
