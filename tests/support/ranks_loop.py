"""The small private run that tests of ranks repeat on any number of processes."""

import tempfile
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.nn.parallel import DistributedDataParallel

import noisette
from noisette import AdaptiveClip, CyclicPoisson, Ledger, PerExampleClip, Poisson, PrivateRun, Ranks
from noisette.ranks.process_group import canonical_name
from small_loop import loss, start

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
    x = torch.randn(RECORDS, 6, generator=torch.Generator().manual_seed(1), dtype=torch.float64)
    return x.to(dtype), (x.sum(1) > 0).long()


def network(dtype: torch.dtype = torch.float64) -> nn.Module:
    torch.manual_seed(2)
    return nn.Sequential(nn.Linear(6, 7), nn.LayerNorm(7), nn.Tanh(), nn.Linear(7, 2)).to(dtype)


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
    adaptive: bool = False,
    expected: float | None = None,
    spoilt: bool = False,
    parts: Sequence[tuple[int, slice]] | None = None,
    bands: int | None = None,
) -> Course:
    data = records(dtype)
    if spoilt:  # a record in three has a gradient that is not finite
        data[0][::3] = float("nan")
    if parts is not None:  # of each rank: the place of its first record, and the records that it holds
        first, held = parts[dist.get_rank()]
        data = noisette.OwnRecords((data[0][held], data[1][held]), first=first, of=RECORDS)
    model = wrapped(network(dtype), kind)
    clip = PerExampleClip(model, clipping=AdaptiveClip(0.1)) if adaptive else PerExampleClip(model, 0.5)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.2, momentum=0.9)
    declared = {"sampling_rate": rate, "expected_batch_size": rate * RECORDS if expected is None else expected, **TERMS}
    declared |= {"allow_large_delta": True}
    sampling = CyclicPoisson(bands) if bands else Poisson()
    with start(model, data, optimizer=optimizer, clip=clip, sampling=sampling, **declared) as run:
        return course_of(run, model)


def whole(tensor: Any) -> Tensor:
    return (tensor.full_tensor() if hasattr(tensor, "full_tensor") else tensor).clone()


def course_of(run: PrivateRun, model: nn.Module, size: Any = 7, loss: Callable[..., Tensor] = loss) -> Course:
    course = Course()
    for batch in run.batches():
        course.indices.append(batch.indices.tolist())
        for rows in batch.microbatches(size):
            run.accumulate(loss, *rows)
        run.optimizer.step()
        course.grads.append({name: whole(p.grad) for name, p in run.bound.parameters.items() if p.grad is not None})
    course.weights = {canonical_name(model, name): whole(p.detach()) for name, p in model.named_parameters()}
    course.epsilon = run.epsilon(delta=1e-3)
    course.events = str(run.ledger.events)
    return course


def differences(course: Course, truth: Course) -> list[float]:
    """The largest differences of each parameter's gradient in each step."""
    return [
        float((found[name] - grad).abs().max())
        for found, expected in zip(course.grads, truth.grads, strict=True)
        for name, grad in expected.items()
    ]


def in_small_buckets(**settings: Any) -> Course:
    """:func:`take_steps` where few values are exchanged at once."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("noisette.ranks.joint_sums._BUCKET", 10)
        return take_steps(**settings)


# What one rank does otherwise than the others, and how the message names it.
DIFFERENCES = {
    "steps": "differ in: steps",
    "lr": "optimizer",
    "weights": "values of parameters",
    "records": "number of records",
    "bound": "clipping norms",
    "names": "names, shapes and types of parameters",
    "ledger": "has opened the ledger",
}


def differ(difference: str) -> None:
    """Start a run in which rank 1 differs from rank 0."""
    other = dist.get_rank() == 1
    model, data = network(), records()
    if other and difference == "weights":
        with torch.no_grad():
            next(model.parameters())[0] += 1e-9
    if other and difference == "names":
        model = nn.Sequential(model)
    if other and difference == "records":
        data = data[0][1:], data[1][1:]
    with tempfile.TemporaryDirectory() as place:
        noisette.privatize(
            PerExampleClip(model, 0.4 if other and difference == "bound" else 0.5),
            torch.optim.SGD(model.parameters(), lr=0.3 if other and difference == "lr" else 0.2),
            data,
            sampling_rate=0.3,
            expected_batch_size=18.0,
            ledger=Ledger(Path(place, "ledger.jsonl")) if other and difference == "ledger" else None,
            **TERMS | ({"steps": 6} if other and difference == "steps" else {}),
        )


def drawn_words() -> list[int]:
    """The first words of the keystream of the key that ranks share."""
    words = np.zeros(4, dtype=np.uint64)
    Ranks().key().fill(words, purpose="test", name="", step=0)
    return words.tolist()


def components(*sizes: int) -> list[tuple[list[list[float]], str]]:
    """Private principal components of so many rows, and what the ledger holds of them."""
    found = []
    for rows in sizes:
        data = np.random.default_rng(0).normal(size=(rows, 5)) * [9, 5, 1, 1, 1]
        fitted = noisette.PrivatePCA(2, noise_multiplier=4.0).fit(data)
        found.append((fitted.components_.tolist(), str(fitted.ledger.events)))
    return found
