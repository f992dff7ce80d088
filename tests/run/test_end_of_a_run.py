"""A run ends with its last step, when it is closed or collected: optimizer and model are plain again."""

from __future__ import annotations

import gc
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn

import noisette
from noisette import Ledger, PrivacyError, PrivateRun, RdpAccountant
from small_loop import loss, start, take_steps

X, Y = torch.randn(12, 5, generator=torch.Generator().manual_seed(1)), torch.arange(12) % 3


@pytest.fixture(autouse=True)
def _no_other_run() -> None:
    """Runs that earlier tests have left are collected now, and not within a test."""
    gc.collect()


def parts() -> tuple[nn.Sequential, torch.optim.Optimizer]:
    model = nn.Sequential(nn.Linear(5, 6), nn.Dropout(0.1), nn.Tanh(), nn.Linear(6, 3))
    model.register_buffer("scale", torch.ones(()))
    return model, torch.optim.SGD(model.parameters(), lr=0.1)


def begin(model: nn.Module, optimizer: torch.optim.Optimizer, **changes: Any) -> PrivateRun:
    return start(
        model,
        (X, Y),
        optimizer=optimizer,
        sampling_rate=1.0,
        expected_batch_size=12,
        accountant=RdpAccountant(),
        **changes,
    )


def test_close_run_gives_reserved_steps_back_and_frees_the_ledger(tmp_path: Path) -> None:
    model, optimizer = parts()
    path = tmp_path / "ledger.jsonl"
    lost = begin(model, optimizer, steps=100, ledger=path)
    take_steps(lost, steps=1)
    assert sum(Ledger.read(path).events.values()) == 5  # steps of a ledger on disk are reserved by fives
    noisette.close_run(optimizer)
    with Ledger(path) as ledger:
        assert ledger.events == {lost.event: 1}
        take_steps(begin(model, optimizer, ledger=ledger))
        assert sum(ledger.events.values()) == 4


def test_a_run_that_was_interrupted_within_a_batch_is_closed_without_its_handle() -> None:
    """Random numbers and buffers are those from before the batch, and another run takes the steps that are left."""
    model, optimizer = parts()
    lost = begin(model, optimizer)
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
    second = begin(model, optimizer, ledger=lost.ledger)
    take_steps(second)
    assert lost.ledger.events == {second.event: 3}


def test_a_run_that_is_collected_leaves_the_optimizer_plain() -> None:
    model, optimizer = parts()
    run = begin(model, optimizer)
    batch = next(run.batches())
    for x, y in batch.microbatches(5):
        run.accumulate(loss, x, y)
    run.optimizer.step()
    del run
    gc.collect()
    assert not optimizer._optimizer_step_pre_hooks
    assert batch.bounded, "a batch that is kept keeps no run alive"
