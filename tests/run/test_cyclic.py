"""Cyclic batches: groups in turn, each record for itself, and Poisson batches within a group."""

from __future__ import annotations

import numpy as np
import pytest
from scipy import stats

from noisette.core.batches import PoissonSampler
from noisette.core.noise import SecretKey
from noisette.run.sampling import CyclicPoissonSampler

KEY = SecretKey(bytes(range(32)))


def entered(sampler: CyclicPoissonSampler, steps: int) -> np.ndarray:
    """Which records are in which batch, (steps, records)."""
    found = np.zeros((steps, sampler.size), dtype=bool)
    for step in range(steps):
        indices = sampler.indices(step=sampler.first_step + step)
        assert (np.diff(indices) > 0).all()
        found[step, indices] = True
    return found


@pytest.mark.parametrize(
    ("rate", "bands", "first"), [(1.0, 1, 0), (0.4, 2, 5), (1.0, 7, 5), (0.05, 7, 0), (0.4, 300, 5)]
)
def test_a_record_is_in_at_most_one_of_so_many_consecutive_batches(rate: float, bands: int, first: int) -> None:
    found = entered(CyclicPoissonSampler(500, rate, bands, KEY, first), 3 * bands + 2)
    for start in range(2 * bands + 3):
        assert found[start : start + bands].sum(0).max() <= 1
    steps = np.arange(len(found))[:, None]
    groups = np.where(found, steps % bands, -1)
    assert all(len(set(column[column >= 0])) <= 1 for column in groups.T), "always in the same turn"
    if rate == 1:
        assert (found[:bands].sum(0) == 1).all()


def test_law() -> None:
    """Groups of all sizes equally often, batches of the declared rate, and records that do not know each other."""
    size, bands, rate, steps = 4000, 8, 0.3, 400
    sampler = CyclicPoissonSampler(size, rate, bands, KEY)
    found = entered(sampler, steps)
    groups = np.bincount(sampler._groups, minlength=bands)
    assert 1e-6 < stats.chisquare(groups).pvalue < 1 - 1e-6
    assert stats.binomtest(int(found.sum()), size * steps // bands, rate).pvalue > 1e-6
    assert stats.binomtest(int(found.sum()), size * steps, rate / bands).pvalue > 1e-6
    of_group = found[::bands, sampler._groups == 0]  # within its turns a record enters independently
    for again in (of_group[1:] & of_group[:-1], of_group[:, 1:] & of_group[:, :-1]):
        assert abs(again.mean() - rate**2) < 6 * (rate**2 * (1 - rate**2) / again.size) ** 0.5
    counts = of_group.sum(0)
    spread = stats.chisquare(counts, np.full(len(counts), counts.mean())).statistic / (1 - rate)
    assert 1e-6 < stats.chi2.cdf(spread, len(counts) - 1) < 1 - 1e-6


@pytest.mark.parametrize("rate", [0.3, 0.02])
def test_a_record_does_not_see_the_others(rate: float) -> None:
    long, short = (entered(CyclicPoissonSampler(size, rate, 5, KEY), 60) for size in (900, 600))
    np.testing.assert_array_equal(long[:, :600], short)


@pytest.mark.parametrize("rate", [0.3, 0.02, 1.0])
def test_one_band_is_poisson_sampling(rate: float) -> None:
    for step in range(5):
        np.testing.assert_array_equal(
            CyclicPoissonSampler(700, rate, 1, KEY).indices(step=step),
            PoissonSampler(700, rate, KEY).indices(step=step),
        )


def test_another_key_draws_other_groups() -> None:
    one, other = (CyclicPoissonSampler(1000, 1.0, 4, key)._groups for key in (KEY, SecretKey()))
    assert 150 < (one == other).sum() < 350
