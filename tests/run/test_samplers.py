"""The samplers of a run beside Poisson batches, against the exact distributions that are priced."""

from collections import Counter, defaultdict
from itertools import combinations, product
from math import comb

import numpy as np
import pytest
from scipy import stats

from noisette import PrivacyError
from noisette.core.batches import PoissonSampler
from noisette.core.noise import SecretKey
from noisette.run.sampling import BallsInBinsSampler, CyclicPoissonSampler, TruncatedPoissonSampler

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
def test_each_pass_has_each_record_once(bins):
    chosen(BallsInBinsSampler(200, bins, KEY), passes=3)


@pytest.mark.parametrize("bins", [2, 3])
def test_every_assignment_is_equally_likely(bins):
    """All assignments of three records are enumerated."""
    found = Counter(map(tuple, chosen(BallsInBinsSampler(3, bins, KEY), passes=5000).tolist()))
    every = list(product(range(bins), repeat=3))
    assert stats.chisquare([found[assignment] for assignment in every]).pvalue > 1e-6


def test_law_of_bins():
    """Bins equally often for each record, sizes that vary as they should, and passes that do not know each other."""
    found = chosen(BallsInBinsSampler(100, 5, KEY), passes=400)
    for table in (found, found.T):
        counts = np.array([np.bincount(row, minlength=5) for row in table])
        chi = ((counts - counts.sum(1, keepdims=True) / 5) ** 2 / (counts.sum(1, keepdims=True) / 5)).sum()
        assert 1e-6 < stats.chi2.cdf(chi, 4 * len(table)) < 1 - 1e-6
    for again in ((found[1:] == found[:-1]), (found[:, 1:] == found[:, :-1])):
        assert abs(again.mean() - 0.2) < 6 * (0.16 / again.size) ** 0.5


def entered(sampler: CyclicPoissonSampler, steps: int) -> np.ndarray:
    """Which records are in which batch, (steps, records)."""
    found = np.zeros((steps, sampler.size), dtype=bool)
    for step in range(steps):
        indices = sampler.indices(step=sampler.first_step + step)
        assert (np.diff(indices) > 0).all()
        found[step, indices] = True
    return found


@pytest.mark.parametrize(("rate", "bands", "first"), [(1.0, 1, 0), (1.0, 7, 5), (0.05, 7, 0), (0.4, 300, 5)])
def test_a_record_is_in_at_most_one_of_so_many_consecutive_batches(rate, bands, first):
    found = entered(CyclicPoissonSampler(500, rate, KEY, bands, first), 3 * bands + 2)
    for start in range(2 * bands + 3):
        assert found[start : start + bands].sum(0).max() <= 1
    groups = np.where(found, np.arange(len(found))[:, None] % bands, -1)
    assert all(len(set(column[column >= 0])) <= 1 for column in groups.T), "always in the same turn"
    if rate == 1:
        assert (found[:bands].sum(0) == 1).all()


def test_law_of_groups():
    """Groups of all sizes equally often, batches of the declared rate, and records that do not know each other."""
    size, bands, rate, steps = 4000, 8, 0.3, 400
    sampler = CyclicPoissonSampler(size, rate, KEY, bands)
    found = entered(sampler, steps)
    assert 1e-6 < stats.chisquare(np.bincount(sampler._groups, minlength=bands)).pvalue < 1 - 1e-6
    assert stats.binomtest(int(found.sum()), size * steps // bands, rate).pvalue > 1e-6
    assert stats.binomtest(int(found.sum()), size * steps, rate / bands).pvalue > 1e-6
    of_group = found[::bands, sampler._groups == 0]  # within its turns a record enters independently
    for again in (of_group[1:] & of_group[:-1], of_group[:, 1:] & of_group[:, :-1]):
        assert abs(again.mean() - rate**2) < 6 * (rate**2 * (1 - rate**2) / again.size) ** 0.5
    counts = of_group.sum(0)
    spread = stats.chisquare(counts, np.full(len(counts), counts.mean())).statistic / (1 - rate)
    assert 1e-6 < stats.chi2.cdf(spread, len(counts) - 1) < 1 - 1e-6


@pytest.mark.parametrize("rate", [0.3, 0.02])
def test_a_record_does_not_see_the_others(rate):
    long, short = (entered(CyclicPoissonSampler(size, rate, KEY, 5), 60) for size in (900, 600))
    np.testing.assert_array_equal(long[:, :600], short)
    long, short = (chosen(BallsInBinsSampler(size, 4, KEY), 2) for size in (50, 30))
    np.testing.assert_array_equal(long[:, :30], short)


@pytest.mark.parametrize("rate", [0.3, 0.02, 1.0])
def test_one_band_is_poisson_sampling(rate):
    for step in range(5):
        np.testing.assert_array_equal(
            CyclicPoissonSampler(700, rate, KEY, 1).indices(step=step),
            PoissonSampler(700, rate, KEY).indices(step=step),
        )


def test_another_key_draws_other_groups():
    one, other = (CyclicPoissonSampler(1000, 1.0, key, 4)._groups for key in (KEY, SecretKey()))
    assert 150 < (one == other).sum() < 350


def sampler(size: int, rate: float, largest: int, key: SecretKey = KEY) -> TruncatedPoissonSampler:
    return TruncatedPoissonSampler(size, rate, key, largest, most_records=1000)


@pytest.mark.parametrize(("rate", "largest"), [(0.4, 2), (0.7, 3), (1.0, 2), (0.6, 1)])
def test_exact_distribution(rate, largest):
    """Every Poisson batch of four records is enumerated, and every subset that it may be cut to."""
    probability: defaultdict[tuple[int, ...], float] = defaultdict(float)
    for size in range(5):
        for drawn in combinations(range(4), size):
            left = list(combinations(drawn, min(size, largest)))
            for batch in left:
                probability[batch] += rate**size * (1 - rate) ** (4 - size) / len(left)
    assert sum(probability.values()) == pytest.approx(1)
    batches = sampler(4, rate, largest)
    found = Counter(tuple(batches.indices(step=step).tolist()) for step in range(8000))
    possible = [batch for batch, p in probability.items() if p]
    assert found.keys() <= set(possible)
    expected = [8000 * probability[batch] for batch in possible]
    assert stats.chisquare([found[batch] for batch in possible], expected).pvalue > 1e-6


def test_a_record_is_added_or_replaces_one():
    """The coupling that is priced: below the largest size a record is added; otherwise it may replace one other."""
    less, more, plain = sampler(20, 0.5, 10), sampler(21, 0.5, 10), PoissonSampler(20, 0.5, KEY)
    seen = Counter()
    for step in range(2000):
        without, with_it = (set(s.indices(step=step).tolist()) for s in (less, more))
        added, displaced = with_it - without, without - with_it
        assert added <= {20}
        full = len(plain.indices(step=step)) >= 10
        assert len(displaced) == (1 if full and added else 0)
        seen[full, bool(added)] += 1
    assert len(seen) == 4
    assert seen[False, True] / (seen[False, True] + seen[False, False]) == pytest.approx(0.5, abs=0.06)


def test_more_records_than_declared_are_refused():
    sampler(1000, 0.1, 5)
    with pytest.raises(PrivacyError, match=r"1001 records.*most_records=1000"):
        sampler(1001, 0.1, 5)


def test_number_of_subsets():
    """Full batches of all records: each subset is equally likely."""
    found = Counter(tuple(sampler(6, 1.0, 3).indices(step=step).tolist()) for step in range(8000))
    assert len(found) == comb(6, 3)
    assert stats.chisquare(list(found.values())).pvalue > 1e-6
