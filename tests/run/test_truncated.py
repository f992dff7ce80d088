"""Truncated batches: the exact distribution, the coupling that is priced, and the declared number of records."""

from __future__ import annotations

from collections import Counter, defaultdict
from itertools import combinations
from math import comb

import pytest
from scipy import stats

from noisette import PrivacyError
from noisette.core.batches import PoissonSampler
from noisette.core.noise import SecretKey
from noisette.run.sampling import TruncatedPoissonSampler

KEY = SecretKey(bytes(range(32)))


def sampler(size: int, rate: float, largest: int, key: SecretKey = KEY) -> TruncatedPoissonSampler:
    return TruncatedPoissonSampler(size, rate, largest, most_records=1000, key=key)


@pytest.mark.parametrize(("rate", "largest"), [(0.4, 2), (0.7, 3), (1.0, 2), (0.6, 1)])
def test_exact_distribution(rate: float, largest: int) -> None:
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


def test_a_record_is_added_or_replaces_one() -> None:
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


def test_more_records_than_declared_are_refused() -> None:
    sampler(1000, 0.1, 5)
    with pytest.raises(PrivacyError, match=r"1001 records.*most_records=1000"):
        sampler(1001, 0.1, 5)


def test_number_of_subsets() -> None:
    """Full batches of all records: each subset is equally likely."""
    found = Counter(tuple(sampler(6, 1.0, 3).indices(step=step).tolist()) for step in range(8000))
    assert len(found) == comb(6, 3)
    assert stats.chisquare(list(found.values())).pvalue > 1e-6
