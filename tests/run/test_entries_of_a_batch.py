"""Entries of a batch that are no tensors: none reaches more than one example."""

from __future__ import annotations

import datetime
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

import noisette
from noisette import PerExampleClip, PrivacyError, PrivateRun, privatize

C, RECORDS = 0.3, 7
X = torch.randn(RECORDS, 4, generator=torch.Generator().manual_seed(1), dtype=torch.float64)
Y = torch.arange(RECORDS) % 3


class Visit:
    """An object of the data set."""

    def __init__(self, number: int) -> None:
        self.number = number


TEXTS = [f"text {k}" * (1 + k) for k in range(RECORDS)]
DAYS = [datetime.date(2024, 1, 1) + datetime.timedelta(days=k) for k in range(RECORDS)]
VISITS = [Visit(k) for k in range(RECORDS)]
# Entries of the records, and a number that a loss makes of the entry of one of them.
KINDS: dict[str, tuple[Any, Callable[[Any], float]]] = {
    "texts": (TEXTS, len),
    "numbers": ([0.5 * k for k in range(RECORDS)], float),
    "dates": (DAYS, lambda day: day.day),
    "objects": (VISITS, lambda visit: visit.number),
    "dictionaries": ([{"age": k} for k in range(RECORDS)], lambda entry: entry["age"]),
    "an array of numbers": (np.arange(RECORDS) / 2, float),
}


def net() -> nn.Module:
    torch.manual_seed(2)
    return nn.Linear(4, 3).double()


def start(model: nn.Module, dataset: Any = (X, Y), engine: Any = None, **changes: Any) -> PrivateRun:
    optimizer = torch.optim.SGD(model.parameters(), lr=0.0)
    declared = {"sampling_rate": 1.0, "expected_batch_size": 1, "steps": 1, "noise_multiplier": 1e-9} | changes
    clip = PerExampleClip(model, C, engine=engine)
    return privatize(clip, optimizer, dataset, accountant=noisette.RdpAccountant(), **declared)


def released(run: PrivateRun) -> Tensor:
    return torch.cat([p.grad.flatten() for p in run.bound.parameters.values() if p.grad is not None])


def truth(model: nn.Module, weights: list[float]) -> Tensor:
    """The clipped sum of weighted losses by plain autograd, one example at a time."""
    total = torch.zeros(())
    for k, weight in enumerate(weights):
        value = weight * F.cross_entropy(model(X[k : k + 1]), Y[k : k + 1])
        gradient = torch.cat([g.flatten() for g in torch.autograd.grad(value, list(model.parameters()))])
        total = total + gradient * min(1.0, C / max(float(gradient.norm()), 1e-300))
    return total


@pytest.mark.parametrize("kind", KINDS)
def test_entries_that_the_loss_reads_are_refused_and_microbatches_of_one_work(kind: str) -> None:
    entries, number = KINDS[kind]

    def loss(model: nn.Module, x: Tensor, y: Tensor, entry: Any) -> Tensor:
        return number(entry[0]) * F.cross_entropy(model(x), y)

    with start(net()) as run:
        for x, y in next(run.batches()).microbatches(RECORDS):
            with pytest.raises(PrivacyError, match=r"entries of several examples.*batch\.microbatches\(1\)"):
                run.accumulate(loss, x, y, entries)
            run.accumulate(lambda model, x, y, entry: F.cross_entropy(model(x), y), x, y, entries)  # nobody reads them
        run.optimizer.step()
        torch.testing.assert_close(released(run), truth(net(), [1.0] * RECORDS), rtol=1e-7, atol=1e-7)
    expected = truth(net(), [number(entry) for entry in entries])
    with start(net()) as run:
        for k, (x, y) in enumerate(next(run.batches()).microbatches(1)):
            run.accumulate(loss, x, y, entries[k : k + 1])
        run.optimizer.step()
        torch.testing.assert_close(released(run), expected, rtol=1e-7, atol=1e-7)


READS: dict[str, Callable[[Any], Any]] = {
    "length": len,
    "an item": lambda entries: entries[-1],
    "a loop": lambda entries: [text.upper() for text in entries],
    "membership": lambda entries: "text 0" in entries,
    "truth": bool,
    "comparison": lambda entries: entries == ["text 0"],
    "its text": str,
    "an array": np.asarray,
    "a method": lambda entries: entries.count("text 0"),
}


@pytest.mark.parametrize("read", READS.values(), ids=READS)
def test_each_way_to_read_is_refused(read: Callable[[Any], Any]) -> None:
    def loss(model: nn.Module, x: Tensor, y: Tensor, entries: Any) -> Tensor:
        read(entries)
        return F.cross_entropy(model(x), y)

    with start(net()) as run:
        for x, y in next(run.batches()).microbatches(RECORDS):
            with pytest.raises(PrivacyError, match="the loss reads a list with entries of several examples"):
                run.accumulate(loss, x, y, TEXTS)
            break


def test_nothing_and_plain_constants_reach_the_loss() -> None:
    model = net()

    def loss(model: nn.Module, batch: dict[str, Any], scale: float, *, mode: str, mask: Tensor | None) -> Tensor:
        assert mask is None
        assert batch["masks"] == [None, None]
        assert mode == "mean"
        return scale * F.cross_entropy(model(batch["x"]), batch["y"])

    with start(model) as run:
        for x, y in next(run.batches()).microbatches(4):
            run.accumulate(loss, {"x": x, "y": y, "masks": [None, None]}, 0.5, mode="mean", mask=None)
        run.optimizer.step()
        torch.testing.assert_close(released(run), truth(model, [0.5] * RECORDS), rtol=1e-7, atol=1e-7)


def weighted(model: nn.Module, batch: dict[str, Any]) -> Tensor:
    return len(batch["text"][0]) * F.cross_entropy(model(batch["x"]), batch["y"])
