"""What a run, a batch and a ledger show of themselves: what was declared, and nothing that was drawn."""

from __future__ import annotations

import re
import warnings

import pytest
import torch
from torch import nn

import noisette
from noisette.core.batches import Batch
from noisette.run.loading import JointBatch
from small_loop import square, start, take_steps


def a_run(steps: int = 2) -> noisette.PrivateRun:
    return start(nn.Linear(3, 2), torch.zeros(977, 3), steps=steps, expected_batch_size=500, noise_multiplier=3.0)


def test_batches_show_the_declared_size_alone() -> None:
    assert repr(next(a_run().batches())) == "<Batch: expected size 500>"
    assert JointBatch.__repr__ is Batch.__repr__  # a dataclass would write its own, with the indices


def test_a_run_shows_what_was_declared_and_how_far_it_is() -> None:
    run = a_run()
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
    run = a_run(steps=1)
    with warnings.catch_warnings():
        warnings.simplefilter("error")  # nothing is said of a run that is not finished
        take_steps(run, square, size=1000)
    with pytest.warns(UserWarning, match="finished: all of its 1 steps.*noisette.privatize"):
        assert list(run.batches()) == []
