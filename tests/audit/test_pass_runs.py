"""Runs of balls-in-bins batches, attacked by the likelihood ratio of a whole pass."""

from __future__ import annotations

import numpy as np
import pytest
from scipy.special import logsumexp

from noisette import BallsInBins
from noisette.audit import certified_epsilon
from noisette.run.sampling import BallsInBinsSampler
from row_attack import row_steps

RECORDS, BINS, STEPS, DELTA, NOISE = 60_000, 60, 60, 0.03, 0.7


def attack() -> tuple[float, float]:
    """The epsilon that is certified and the one that is guaranteed: a record is in one batch of each pass."""
    guaranteed, steps = 0.0, []
    for run, moved in row_steps(
        RECORDS,
        1,
        noise=NOISE,
        sampling=BallsInBins(),
        sampling_rate=1 / BINS,
        expected_batch_size=RECORDS / 2 / BINS,
        steps=STEPS,
    ):
        steps.append(moved / NOISE - NOISE**-2 / 2)
        guaranteed = run.epsilon(delta=DELTA)
    passes = np.array(steps).reshape(-1, BINS, RECORDS)
    total = (logsumexp(passes, axis=1) - np.log(BINS)).sum(0)
    half = RECORDS // 2
    return certified_epsilon(total[:half], total[half:], delta=DELTA, alpha=1e-6), guaranteed


def test_the_guarantee_holds_and_the_attack_has_power() -> None:
    certified, guaranteed = attack()
    assert 0.0 < certified < guaranteed, "the price is a bound, and not a tight one"


def test_records_that_are_in_every_batch_are_told(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(BallsInBinsSampler, "indices", lambda self, step: np.arange(self.size))
    certified, guaranteed = attack()
    assert certified > guaranteed
