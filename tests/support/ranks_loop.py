"""The small private run that tests of ranks repeat on any number of processes."""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.nn import functional as F
from torch.nn.parallel import DistributedDataParallel

from noisette import AdaptiveClip, PerExampleClip, PrivateRun, privatize
from noisette.ranks.wrappers import canonical_name

RECORDS, STEPS = 60, 5
TERMS = {"steps": STEPS, "noise_multiplier": 1.1, "delta": 1e-3}


@dataclass
class Course:
    """What a run has released, and what it knows of itself."""

    grads: list[dict[str, Tensor]] = field(default_factory=list[dict[str, Tensor]])
    indices: list[list[int]] = field(default_factory=list[list[int]])
    weights: dict[str, Tensor] = field(default_factory=dict[str, Tensor])
    epsilon: float = 0.0
    events: str = ""


def records(dtype: torch.dtype = torch.float64) -> tuple[Tensor, Tensor]:
    maker = torch.Generator().manual_seed(1)
    x = torch.randn(RECORDS, 6, generator=maker, dtype=torch.float64)
    return x.to(dtype), (x.sum(1) > 0).long()


def network(dtype: torch.dtype = torch.float64) -> nn.Module:
    torch.manual_seed(2)
    return nn.Sequential(nn.Linear(6, 7), nn.LayerNorm(7), nn.Tanh(), nn.Linear(7, 2)).to(dtype)


def loss(model: nn.Module, x: Tensor, y: Tensor) -> Tensor:
    return F.cross_entropy(model(x), y)


def wrapped(model: nn.Module, kind: str) -> nn.Module:
    """The model as it is, or with a buffer in ``DistributedDataParallel``, which would send it in each call."""
    if kind == "ddp":
        model.register_buffer("extra", torch.zeros(3))
        return DistributedDataParallel(model) if dist.is_initialized() else model
    return model


def take_steps(
    kind: str = "plain",
    *,
    rate: float = 0.3,
    dtype: torch.dtype = torch.float64,
    ledger: Path | None = None,
    way: str = "accumulate",
    size: int = 7,
    adaptive: bool = False,
    momentum: float = 0.9,
) -> Course:
    """Train for some steps, and return what they released."""
    data = records(dtype)
    model = wrapped(network(dtype), kind)
    clip = PerExampleClip(model, clipping=AdaptiveClip(0.1)) if adaptive else PerExampleClip(model, 0.5)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.2, momentum=momentum)
    run = privatize(
        clip,
        optimizer,
        data,
        sampling_rate=rate,
        expected_batch_size=rate * RECORDS,
        ledger=ledger,
        separability="asserted" if way == "backward" else None,
        **TERMS,
    )
    with run:
        return course_of(run, model, way, size)


def course_of(run: PrivateRun, model: nn.Module, way: str = "accumulate", size: int = 7) -> Course:
    """Take the steps that are left."""
    course = Course()
    for batch in run.batches():
        course.indices.append(batch.indices.tolist())
        for x, y in batch.microbatches(size):
            if way == "accumulate":
                run.accumulate(loss, x, y)
            else:
                run.backward(F.cross_entropy(model(x), y, reduction="none"))
        run.optimizer.step()
        course.grads.append({name: p.grad.clone() for name, p in run.bound.parameters.items() if p.grad is not None})
    course.weights = {canonical_name(model, name): p.detach().clone() for name, p in model.named_parameters()}
    course.epsilon = run.epsilon(delta=1e-3)
    course.events = str(run.ledger.events)
    return course
