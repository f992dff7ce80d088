"""What a run, a batch and a ledger show of themselves: what was declared, and nothing that was drawn."""

from __future__ import annotations

import re
import warnings

import pytest
import torch

import noisette
from noisette.core.batches import Batch
from noisette.run.loading import JointBatch


def a_run(steps: int = 2) -> tuple[noisette.PrivateRun, torch.optim.Optimizer]:
    model = torch.nn.Linear(3, 2)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    run = noisette.privatize(
        noisette.PerExampleClip(model, max_grad_norm=1.0),
        optimizer,
        (torch.zeros(977, 3),),
        sampling_rate=0.5,
        expected_batch_size=500,
        steps=steps,
        noise_multiplier=3.0,
    )
    return run, optimizer


def test_batches_show_the_declared_size_alone() -> None:
    run, optimizer = a_run()
    shown = []
    for batch in run.batches():
        shown.append(repr(batch))
        optimizer.zero_grad()
        for (x,) in batch.microbatches(1000):
            run.accumulate(lambda model, x: model(x).sum(1), x)
        optimizer.step()
    assert shown == ["<Batch: expected size 500>"] * 2
    assert JointBatch.__repr__ is Batch.__repr__  # a dataclass would write its own, with the indices


def test_a_run_shows_what_was_declared_and_how_far_it_is() -> None:
    run, _ = a_run()
    text = repr(run)
    assert "0 of 2" in text
    assert "noise_multiplier=3.0" in text
    assert "500" in text
    assert "977" not in text + run._repr_html_()  # the number of rows
    assert run._repr_html_().startswith("<table>")


def test_names_are_escaped_in_a_notebook() -> None:
    ledger = noisette.Ledger(dataset="<script>")
    assert "<script>" not in ledger._repr_html_()
    assert "releases none" in repr(ledger)
    ledger.charge(noisette.Gaussian(noise_multiplier=2.0), 3)
    assert re.search(r"3 x Gaussian\(.*2\.0", repr(ledger))


def test_a_finished_run_says_so_when_it_is_looped_over_again() -> None:
    run, optimizer = a_run(steps=1)
    with warnings.catch_warnings():
        warnings.simplefilter("error")  # nothing is said of a run that is not finished
        for batch in run.batches():
            for (x,) in batch.microbatches(1000):
                run.accumulate(lambda model, x: model(x).sum(1), x)
            optimizer.step()
    with pytest.warns(UserWarning, match="finished: all of its 1 steps.*noisette.privatize"):
        assert list(run.batches()) == []
