"""A small model and its training loop, for tests of loops and optimizers."""

from collections.abc import Callable, Mapping
from pathlib import Path
from types import MappingProxyType
from typing import Any, NamedTuple

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from noisette import Ledger, PerExampleClip, PrivateRun, privatize
from noisette.core.batches import Batch
from noisette.core.noise import GaussianNoise
from oracle import clipped_sum

C, RECORDS = 0.5, 40
X = torch.randn(RECORDS, 5, generator=torch.Generator().manual_seed(1), dtype=torch.float64)
Y = torch.arange(RECORDS) % 3


def small_model() -> nn.Sequential:
    torch.manual_seed(4)
    return nn.Sequential(nn.Linear(5, 6), nn.Tanh(), nn.Linear(6, 3)).double()


def small_pair(kind: Callable[..., Any] = torch.optim.SGD, lr: float = 0.3) -> tuple[nn.Sequential, Any]:
    model = small_model()
    return model, kind(model.parameters(), lr=lr)


def small_run(model: nn.Module, optimizer: Any, *, steps: int = 3, dataset: Any = (X, Y), **clip: Any) -> PrivateRun:
    """A run over all records in each step, with noise too small to matter."""
    declared = {"expected_batch_size": RECORDS, "sampling_rate": 1.0, "steps": steps, "noise_multiplier": 1e-9}
    return privatize(PerExampleClip(model, C, **clip), optimizer, dataset, **declared)


def start(
    model: nn.Module,
    dataset: Any = (X, Y),
    *,
    optimizer: torch.optim.Optimizer | None = None,
    clip: Mapping[str, Any] | PerExampleClip = MappingProxyType({"max_grad_norm": C}),
    **declared: Any,
) -> PrivateRun:
    """A run of three steps with half of the records in each, unless it is declared otherwise; ``None`` for not at all.

    ``clip`` is the bound, or what it is made with.
    """
    numbers = {"sampling_rate": 0.5, "expected_batch_size": RECORDS / 2, "steps": 3, "noise_multiplier": 1.0} | declared
    bound = clip if isinstance(clip, PerExampleClip) else PerExampleClip(model, **clip)
    if optimizer is None:
        optimizer = torch.optim.SGD([p for p in model.parameters() if p.requires_grad], lr=0.1)
    try:
        return privatize(bound, optimizer, dataset, **{k: value for k, value in numbers.items() if value is not None})
    except BaseException:
        bound.close()
        raise


def loss(model: nn.Module, x: Tensor, y: Tensor) -> Tensor:
    return F.cross_entropy(model(x), y)


def square(model: nn.Module, x: Tensor) -> Tensor:
    return model(x).square().sum()


class Step(NamedTuple):
    """What a step has drawn, as this process counts records, and what it has released, by name."""

    indices: np.ndarray
    grads: dict[str, Tensor]


def take_steps(
    run: PrivateRun, of: Callable[..., Tensor] = loss, *, size: Any = 16, steps: int | None = None, **batches: Any
) -> list[Step]:
    """Take so many steps with this loss, or those that are left."""
    taken = []
    for batch in run.batches(**batches):
        for part in batch.microbatches(size):
            run.accumulate(of, *(part if isinstance(part, tuple | list) else (part,)))
        run.optimizer.step()
        grads = {name: p.grad.clone() for name, p in run.bound.parameters.items() if p.grad is not None}
        taken.append(Step(batch.indices.copy(), grads))
        run.optimizer.zero_grad()
        if len(taken) == steps:
            break
    return taken


def scale_noise(patch: pytest.MonkeyPatch, factor: float) -> None:
    """All noise is multiplied by this."""
    whole = GaussianNoise.add_

    def add(source: GaussianNoise, tensors: Any, *, std: float = 1.0, **others: Any) -> None:
        whole(source, tensors, std=std * factor, **others)

    patch.setattr(GaussianNoise, "add_", add)


def paid(folder: Path) -> int:
    """How many releases the ledger in this folder counts."""
    return sum(Ledger.read(folder / "ledger.jsonl").events.values())


def losses(model: nn.Module, x: Tensor, y: Tensor) -> Tensor:
    return F.cross_entropy(model(x), y, reduction="none")


def process(run: PrivateRun, batch: Batch, size: int = 16) -> None:
    """Lines 2 and 3 of the algorithm for all microbatches of a batch."""
    for x, y in batch.microbatches(size):
        run.accumulate(loss, x, y)


def flat(model: nn.Module) -> Tensor:
    return torch.cat([p.detach().flatten() for p in model.parameters()])


def clipped_by(model: nn.Module, bound: float, of: Callable[..., Tensor], *batches: Any, **clip: Any) -> Tensor:
    """The clipped sum of microbatches, each the arguments of the loss, as one vector in double precision."""
    made = PerExampleClip(model, bound, **clip)
    for batch in batches:
        made.accumulate(of, *batch)
    [total] = made.pop_sums()
    made.close()
    return torch.cat([g.double().flatten() for g in total.grads])


def clipped_mean(model: nn.Module, x: Tensor = X, y: Tensor = Y) -> dict[str, Tensor]:
    """The clipped sum over the expected batch size, from one example at a time; frozen parameters are left out."""
    return {name: total / RECORDS for name, total in clipped_sum(model, loss, (x, y), C).sums.items()}
