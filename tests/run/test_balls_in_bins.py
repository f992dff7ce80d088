"""Passes over the data: each record is in one batch of a pass, drawn uniformly, independently and anew in each pass."""

from __future__ import annotations

from collections import Counter
from itertools import product

import numpy as np
import pytest
from scipy import stats

from noisette.core.noise import SecretKey
from noisette.run.sampling import BallsInBinsSampler

KEY = SecretKey(bytes(range(32)))


def chosen(sampler: BallsInBinsSampler, passes: int) -> np.ndarray:
    """The bin of each record in each pass, (passes, records)."""
    found = np.full((passes, sampler.size), -1)
    for step in range(passes * sampler.bins):
        passed, place = divmod(step, sampler.bins)
        at = sampler.indices(step=sampler.first_step + step)
        assert (found[passed, at] == -1).all(), "in one batch of a pass"
        found[passed, at] = place
    assert (found >= 0).all(), "in a batch of each pass"
    return found


@pytest.mark.parametrize("bins", [1, 2, 3, 7, 64])
def test_each_pass_has_each_record_once(bins: int) -> None:
    chosen(BallsInBinsSampler(200, bins, KEY), passes=3)


@pytest.mark.parametrize("bins", [2, 3])
def test_every_assignment_is_equally_likely(bins: int) -> None:
    """All assignments of three records are enumerated."""
    found = Counter(map(tuple, chosen(BallsInBinsSampler(3, bins, KEY), passes=5000).tolist()))
    every = list(product(range(bins), repeat=3))
    assert stats.chisquare([found[assignment] for assignment in every]).pvalue > 1e-6


def test_law() -> None:
    """Bins equally often for each record, sizes that vary as they should, and passes that do not know each other."""
    found = chosen(BallsInBinsSampler(100, 5, KEY), passes=400)
    for table in (found, found.T):
        counts = np.array([np.bincount(row, minlength=5) for row in table])
        chi = ((counts - counts.sum(1, keepdims=True) / 5) ** 2 / (counts.sum(1, keepdims=True) / 5)).sum()
        assert 1e-6 < stats.chi2.cdf(chi, 4 * len(table)) < 1 - 1e-6
    for again in ((found[1:] == found[:-1]), (found[:, 1:] == found[:, :-1])):
        assert abs(again.mean() - 0.2) < 6 * (0.16 / again.size) ** 0.5


def test_a_record_does_not_see_the_others() -> None:
    long, short = (chosen(BallsInBinsSampler(size, 4, KEY), 2) for size in (50, 30))
    np.testing.assert_array_equal(long[:, :30], short)


def test_a_resumed_run_begins_a_new_pass() -> None:
    chosen(BallsInBinsSampler(100, 8, SecretKey(), first_step=13), passes=2)
