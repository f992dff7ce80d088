"""Rows of an operation belong to their examples, however a model arranges positions and whatever came before.

With one position to an example the rows are those of the examples, whichever of both comes first. Later batches have
more positions: rows of other examples must not be taken for an example's own, and clipped by their norm.
"""

from __future__ import annotations

from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.optim import SGD

import noisette
from noisette import PerExampleClip, privatize
from small_loop import C, X, Y, small_model

ENGINES = [noisette.engines.BookKeeping(), noisette.engines.Vmap(), noisette.engines.PerExampleLoop()]


class TimeFirst(nn.Module):
    """Applies a layer to (positions * examples) rows, and averages over the positions."""

    def __init__(self) -> None:
        super().__init__()
        self.hidden, self.out = nn.Linear(5, 6), nn.Linear(6, 3)

    def forward(self, x: Tensor) -> Tensor:
        b, t, _ = x.shape
        rows = self.hidden(x.transpose(0, 1).reshape(t * b, 5))
        return self.out(torch.tanh(rows).view(t, b, 6).mean(0))


def loss(model: nn.Module, x: Tensor, y: Tensor) -> Tensor:
    return F.cross_entropy(model(x), y)


def clipped_sum(model: nn.Module, records: list[tuple[Tensor, Tensor]]) -> Tensor:
    """The sum of clipped gradients, each from a call of its own; a record is a batch of one with a label."""
    total = torch.zeros(sum(p.numel() for p in model.parameters()), dtype=torch.float64)
    for x, y in records:
        grads = torch.autograd.grad(loss(model, x, y), list(model.parameters()))
        one = torch.cat([g.flatten() for g in grads])
        total += one * min(1.0, C / float(one.norm()))
    return total


def run_of(model: nn.Module, engine: Any, dataset: Any, steps: int) -> noisette.PrivateRun:
    declared = {"expected_batch_size": 1, "sampling_rate": 1.0, "steps": steps, "noise_multiplier": 1e-9}
    return privatize(PerExampleClip(model, C, engine=engine), SGD(model.parameters(), lr=0.0), dataset, **declared)


def released(model: nn.Module) -> Tensor:
    return torch.cat([p.grad.flatten() for p in model.parameters()])


@pytest.mark.parametrize("engine", ENGINES, ids=lambda e: type(e).__name__)
@pytest.mark.parametrize("lengths", [(1, 4), (1, 2, 7), (3, 1, 3), (8, 1, 2)], ids=str)
def test_inputs_of_another_length_in_a_later_batch(engine: Any, lengths: tuple[int, ...]) -> None:
    torch.manual_seed(6)
    model = TimeFirst().double()
    x = torch.randn(12, 8, 5, dtype=torch.float64) * torch.logspace(-1, 1, 12).double()[:, None, None]
    y = torch.arange(12) % 3
    with run_of(model, engine, (x, y), len(lengths)) as run:
        for t, batch in zip(lengths, run.batches(), strict=True):
            truth = clipped_sum(model, [(x[k : k + 1, :t], y[k : k + 1]) for k in range(12)])
            for inputs, labels in batch.microbatches(6):
                run.accumulate(loss, inputs[:, :t], labels)
            run.optimizer.step()
            torch.testing.assert_close(released(model), truth, rtol=1e-6, atol=1e-7)


@pytest.mark.parametrize("engine", ENGINES, ids=lambda e: type(e).__name__)
@pytest.mark.parametrize("views", [2, 5])
def test_views_one_after_the_other(engine: Any, views: int) -> None:
    """``x.repeat(views)``, and the mean over the views of a record; the first batch has one view."""
    model = small_model()
    shifts = torch.linspace(-0.5, 0.5, views, dtype=torch.float64)

    def of_views(model: nn.Module, x: Tensor, y: Tensor) -> Tensor:
        rows = x.repeat(views, 1) + shifts.repeat_interleave(len(x))[:, None]
        return F.cross_entropy(model(rows), y.repeat(views), reduction="none").view(views, len(x)).mean(0).sum()

    truth = clipped_sum(model, [(x + shifts[:, None], y.expand(views)) for x, y in zip(X, Y, strict=True)])
    with run_of(model, engine, (X, Y), 2) as run:
        for now, batch in zip((loss, of_views), run.batches(), strict=True):
            for x, y in batch.microbatches(10):
                run.accumulate(now, x, y)
            run.optimizer.step()
    torch.testing.assert_close(released(model), truth, rtol=1e-6, atol=1e-7)
