"""A run ends with its last step, when it is closed or collected: optimizer and model are plain again."""

from __future__ import annotations

import gc
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

import noisette
from noisette import Ledger, PerExampleClip, PrivacyError, PrivateRun, privatize

X, Y = torch.randn(12, 5, generator=torch.Generator().manual_seed(1)), torch.arange(12) % 3
STEPS = 3


@pytest.fixture(autouse=True)
def _no_other_run() -> None:
    """Runs that earlier tests have left are collected now, and not within a test."""
    gc.collect()


def loss(model: nn.Module, x: Tensor, y: Tensor) -> Tensor:
    return F.cross_entropy(model(x), y)


def parts() -> tuple[nn.Sequential, torch.optim.Optimizer]:
    model = nn.Sequential(nn.Linear(5, 6), nn.Dropout(0.1), nn.Tanh(), nn.Linear(6, 3))
    model.register_buffer("scale", torch.ones(()))
    return model, torch.optim.SGD(model.parameters(), lr=0.1)


def start(model: nn.Module, optimizer: torch.optim.Optimizer, **changes: Any) -> PrivateRun:
    declared = {"sampling_rate": 1.0, "expected_batch_size": 12, "steps": STEPS, "noise_multiplier": 1.0} | changes
    return privatize(PerExampleClip(model, 1.0), optimizer, (X, Y), accountant=noisette.RdpAccountant(), **declared)


def take(run: PrivateRun, steps: int = STEPS) -> Any:
    """Take so many steps; the last batch, as a variable of a loop would hold it."""
    batches = run.batches()
    for _ in range(steps):
        batch = next(batches)
        for x, y in batch.microbatches(5):
            run.accumulate(loss, x, y)
        run.optimizer.step()
        run.optimizer.zero_grad()
    return batch


def test_close_run_gives_reserved_steps_back_and_frees_the_ledger(tmp_path: Path) -> None:
    model, optimizer = parts()
    path = tmp_path / "ledger.jsonl"
    lost = start(model, optimizer, steps=100, ledger=path)
    take(lost, 1)
    assert sum(Ledger.read(path).events.values()) == 5  # steps of a ledger on disk are reserved by fives
    noisette.close_run(optimizer)
    with Ledger(path) as ledger:
        assert ledger.events == {lost.event: 1}
        take(start(model, optimizer, ledger=ledger))
        assert sum(ledger.events.values()) == 4


def test_a_run_that_was_interrupted_within_a_batch_is_closed_without_its_handle() -> None:
    """Random numbers and buffers are those from before the batch, and another run takes the steps that are left."""
    model, optimizer = parts()
    lost = start(model, optimizer)
    torch.manual_seed(3)
    expected = torch.rand(2)
    torch.manual_seed(3)
    with suppress(KeyboardInterrupt):
        for batch in lost.batches():
            for x, y in batch.microbatches(5):
                model.get_buffer("scale").fill_(float(x[0, 0]))
                lost.accumulate(loss, x, y)
                raise KeyboardInterrupt
    with pytest.raises(PrivacyError, match=r"close this run and start another with noisette\.privatize"):
        next(lost.batches())
    noisette.close_run(model)
    assert float(model.get_buffer("scale")) == 1.0
    assert torch.equal(torch.rand(2), expected)
    second = start(model, optimizer, ledger=lost.ledger)
    take(second)
    assert lost.ledger.events == {second.event: 3}


def test_a_run_that_is_collected_leaves_the_optimizer_plain() -> None:
    model, optimizer = parts()
    run = start(model, optimizer)
    batch = take(run, 1)
    del run
    gc.collect()
    assert not optimizer._optimizer_step_pre_hooks
    assert batch.bounded, "a batch that is kept keeps no run alive"
