"""The order of an operation's rows is measured anew where one position to an example becomes several.

With one position the rows are those of the examples, whichever of both comes first. What was found then says nothing of
longer inputs: rows of other examples would be taken for an example's own, and clipped by their norm.
"""

from __future__ import annotations

from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.optim import SGD

import noisette
from noisette import PerExampleClip, PrivacyError, privatize
from small_loop import C, X, Y, losses, small_model, small_run

ENGINES = [
    noisette.engines.BookKeeping(),
    noisette.engines.TwoPass(),
    noisette.engines.TwoPasses(),
    noisette.engines.MultiLoss(),
]


class TimeFirst(nn.Module):
    """Applies a layer to (positions * examples) rows, and averages over the positions."""

    def __init__(self) -> None:
        super().__init__()
        self.hidden, self.out = nn.Linear(5, 6), nn.Linear(6, 3)

    def forward(self, x: Tensor) -> Tensor:
        b, t, _ = x.shape
        rows = self.hidden(x.transpose(0, 1).reshape(t * b, 5))
        return self.out(torch.tanh(rows).view(t, b, 6).mean(0))


def clipped_sum(model: nn.Module, records: list[tuple[Tensor, Tensor]]) -> Tensor:
    """The sum of clipped gradients, each from a call of its own; a record is a batch of one with a label."""
    total = torch.zeros(sum(p.numel() for p in model.parameters()), dtype=torch.float64)
    for x, y in records:
        grads = torch.autograd.grad(F.cross_entropy(model(x), y), list(model.parameters()))
        one = torch.cat([g.flatten() for g in grads])
        total += one * min(1.0, C / float(one.norm()))
    return total


@pytest.mark.parametrize("engine", ENGINES, ids=lambda e: type(e).__name__)
@pytest.mark.parametrize("lengths", [(1, 4), (1, 2, 7), (3, 1, 3), (8, 1, 2)], ids=str)
def test_inputs_of_another_length_in_a_later_batch(engine: Any, lengths: tuple[int, ...]) -> None:
    torch.manual_seed(6)
    model = TimeFirst().double()
    x = torch.randn(12, 8, 5, dtype=torch.float64) * torch.logspace(-1, 1, 12).double()[:, None, None]
    y = torch.arange(12) % 3
    optimizer = SGD(model.parameters(), lr=0.0)
    declared = {"expected_batch_size": 1, "sampling_rate": 1.0, "steps": len(lengths), "noise_multiplier": 1e-9}
    with privatize(
        PerExampleClip(model, C, engine=engine), optimizer, (x, y), **declared, separability="asserted"
    ) as run:
        for t, batch in zip(lengths, run.batches(), strict=True):
            truth = clipped_sum(model, [(x[k : k + 1, :t], y[k : k + 1]) for k in range(12)])
            for inputs, labels in batch.microbatches(6):
                run.backward(losses(model, inputs[:, :t], labels))
            optimizer.step()
            found = torch.cat([p.grad.flatten() for p in model.parameters()])
            torch.testing.assert_close(found, truth, rtol=1e-6, atol=1e-7)


@pytest.mark.parametrize("engine", ENGINES, ids=lambda e: type(e).__name__)
@pytest.mark.parametrize("views", [2, 5])
def test_views_of_all_records_one_after_the_other_are_exact_or_refused(engine: Any, views: int) -> None:
    """``x.repeat(views)``, and the mean over the views of a record; the first batch has one view."""
    model = small_model()
    optimizer = SGD(model.parameters(), lr=0.0)
    shifts = torch.linspace(-0.5, 0.5, views, dtype=torch.float64)
    records = [(x + shifts[:, None], y.expand(views)) for x, y in zip(X, Y, strict=True)]
    truth = clipped_sum(model, records) / len(X)
    with small_run(model, optimizer, steps=2, engine=engine) as run:
        batches = run.batches()
        for x, y in next(batches).microbatches(10):
            run.backward(losses(model, x, y))
        optimizer.step()
        for x, y in next(batches).microbatches(10):
            rows = x.repeat(views, 1) + shifts.repeat_interleave(len(x))[:, None]
            try:
                run.backward(losses(model, rows, y.repeat(views)).view(views, len(x)).mean(0))
            except PrivacyError:
                return
        optimizer.step()
    found = torch.cat([p.grad.flatten() for p in model.parameters()])
    torch.testing.assert_close(found, truth, rtol=1e-6, atol=1e-7)
