"""A small model and its training loop, for tests of loops and optimizers."""

from __future__ import annotations

from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from noisette import PerExampleClip, PrivateRun, privatize
from noisette.core.batches import Batch
from oracle import clipped_sum

C, RECORDS = 0.5, 40
X = torch.randn(RECORDS, 5, generator=torch.Generator().manual_seed(1), dtype=torch.float64)
Y = torch.arange(RECORDS) % 3


def small_model() -> nn.Sequential:
    torch.manual_seed(4)
    return nn.Sequential(nn.Linear(5, 6), nn.Tanh(), nn.Linear(6, 3)).double()


def small_run(model: nn.Module, optimizer: Any, *, steps: int = 3, dataset: Any = (X, Y), **clip: Any) -> PrivateRun:
    """A run over all records in each step, with noise too small to matter."""
    return privatize(
        PerExampleClip(model, C, **clip),
        optimizer,
        dataset,
        expected_batch_size=RECORDS,
        sampling_rate=1.0,
        steps=steps,
        noise_multiplier=1e-9,
    )


def loss(model: nn.Module, x: Tensor, y: Tensor) -> Tensor:
    return F.cross_entropy(model(x), y)


def losses(model: nn.Module, x: Tensor, y: Tensor) -> Tensor:
    return F.cross_entropy(model(x), y, reduction="none")


def process(run: PrivateRun, batch: Batch, size: int = 16) -> None:
    """Lines 2 and 3 of the algorithm for all microbatches of a batch."""
    for x, y in batch.microbatches(size):
        run.accumulate(loss, x, y)


def flat(model: nn.Module) -> Tensor:
    """All parameters as one vector."""
    return torch.cat([p.detach().flatten() for p in model.parameters()])


def clipped_mean(model: nn.Module, x: Tensor = X, y: Tensor = Y) -> dict[str, Tensor]:
    """The clipped sum over the expected batch size, from one example at a time; frozen parameters are left out."""
    return {name: total / RECORDS for name, total in clipped_sum(model, loss, (x, y), C).sums.items()}
