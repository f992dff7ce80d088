"""A private loop with accelerate: the page's code runs, gradients are exact, and what breaks it is refused."""

from typing import Any

import pytest
import torch
from torch import Tensor, nn

import noisette
from oracle import clipped_sum
from page_code import blocks, names_of
from small_loop import loss

accelerate = pytest.importorskip("accelerate", reason="accelerate is not installed")


def records(size: int) -> tuple[Tensor, Tensor]:
    x = torch.randn(size, 4, dtype=torch.float64)
    return x, (x[:, 0] > 0).long()


def private(optimizer: Any, model: nn.Module, data: Any, *, noise: float = 1.0) -> noisette.PrivateRun:
    declared = {"sampling_rate": 1.0, "expected_batch_size": 10, "steps": 3, "noise_multiplier": noise}
    return noisette.privatize(noisette.PerExampleClip(model, 0.3), optimizer, data, **declared)


def prepared() -> tuple[Any, nn.Module, torch.optim.Optimizer]:
    accelerator = accelerate.Accelerator(cpu=True)
    model = accelerator.prepare(nn.Linear(4, 2).double())
    return accelerator, model, torch.optim.SGD(model.parameters(), lr=0.1)


def test_code_of_the_page_runs() -> None:
    x, y = records(1000)
    names = names_of(*blocks("docs/how-to/accelerate.md"), given={"records": (x.float(), y)})
    run = names["run"]
    assert run.steps_taken == sum(run.ledger.events.values()) == 20
    assert 2.5 < run.epsilon(delta=1e-4) <= 3.0


def test_step_of_the_wrapper_is_exact() -> None:
    accelerator, model, optimizer = prepared()
    wrapper, data = accelerator.prepare(optimizer), records(10)
    before = {name: p.detach().clone() for name, p in model.named_parameters()}
    truth = clipped_sum(model, loss, data, 0.3)
    with private(optimizer, model, data, noise=1e-6) as run:
        batch = next(run.batches())
        for x, y in batch.microbatches(4):
            run.accumulate(loss, x, y)
        wrapper.step()
        assert (run.steps_taken, sum(run.ledger.events.values())) == (1, 1)
    for name, p in model.named_parameters():
        torch.testing.assert_close((before[name] - p.detach()) * 10 / 0.1, truth.sums[name], rtol=0, atol=1e-5)


def test_step_that_the_wrapper_skips_is_refused() -> None:
    accelerator, model, optimizer = prepared()
    wrapper = accelerator.prepare(optimizer)
    accelerator.gradient_accumulation_steps = 2
    with private(optimizer, model, records(10)) as run:
        batches = run.batches()
        with accelerator.accumulate(model):
            for x, y in next(batches).microbatches(10):
                run.accumulate(loss, x, y)
            wrapper.step()
        assert run.steps_taken == 0
        with pytest.raises(noisette.PrivacyError):
            next(batches)
