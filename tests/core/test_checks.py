"""Numbers of NumPy are numbers, and truth values are none."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest
import torch

import noisette
from noisette import errors as checks


@pytest.mark.parametrize("two", [2, np.int64(2), np.uint8(2)])
def test_whole_numbers(two: object) -> None:
    checks.count(steps=two)
    checks.whole(steps=two)
    checks.positive(epsilon=two)
    json.dumps(checks.plain(two))


@pytest.mark.parametrize("half", [0.5, np.float32(0.5), np.float64(0.5), np.float16(0.5)])
def test_fractions(half: object) -> None:
    checks.positive(epsilon=half)
    checks.probability(rate=half)
    checks.open_fraction(delta=half)
    with pytest.raises(TypeError, match="whole number"):
        checks.count(steps=half)
    json.dumps(checks.plain(half))


@pytest.mark.parametrize("no_number", [True, np.bool_(True), "2", 2j, None, torch.tensor(2.0)])
def test_what_is_no_number(no_number: object) -> None:
    for check in (checks.positive, checks.count, checks.whole):
        with pytest.raises(TypeError, match="to be a"):
            check(given=no_number)


def test_a_run_declared_in_numbers_of_numpy(tmp_path: Path) -> None:
    model = torch.nn.Linear(2, 1)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    with noisette.privatize(
        noisette.PerExampleClip(model, max_grad_norm=1.0),
        optimizer,
        torch.ones(8, 2),
        expected_batch_size=np.int64(2),
        public_size=np.int64(8),
        steps=np.int32(1),
        noise_multiplier=np.float32(1.5),
        delta=np.float32(1e-3),
        ledger=tmp_path / "ledger.jsonl",
    ) as run:
        for batch in run.batches():
            for x in batch.microbatches(8):
                run.accumulate(lambda m, x: m(x).sum(), x)
            optimizer.step()
        run.save(tmp_path / "saved")
    with noisette.Ledger(tmp_path / "ledger.jsonl") as ledger:
        [event] = ledger.events
    assert "np." not in repr(event)
