import math

import mpmath
import numpy as np
import pytest
from scipy import stats

from noisette.accounting.repeated_runs import NumberOfRuns, gamma_of
from noisette.core.noise import SecretKey

CASES = [(4.0, 1.0), (10.0, 0.0), (6.0, 0.5), (7.0, math.inf), (1.0, math.inf), (2.5, 40.0)]


def pmf(mean, shape, numbers):
    """The probabilities by scipy's distributions; gamma by its root search in the mean."""
    if math.isinf(shape):
        return stats.poisson.pmf(numbers, mean)
    low, high = 1e-12, 1.0
    for _ in range(200):
        gamma = (low + high) / 2
        of_gamma = stats.logser.mean(1 - gamma) if shape == 0 else shape * (1 - gamma) / gamma / (1 - gamma**shape)
        low, high = (gamma, high) if of_gamma > mean else (low, gamma)
    if shape == 0:
        return stats.logser.pmf(numbers, 1 - gamma)
    whole = stats.nbinom.pmf(numbers, shape, gamma)
    return np.where(np.asarray(numbers) == 0, 0.0, whole / (1 - gamma**shape))


@pytest.mark.parametrize(("mean", "shape"), CASES)
def test_probabilities_are_those_of_scipy(mean, shape):
    numbers = np.arange(40)
    ours = [NumberOfRuns(mean, shape).probability(k) for k in numbers.tolist()]
    assert ours == pytest.approx(pmf(mean, shape, numbers).tolist(), rel=1e-9, abs=1e-300)


@pytest.mark.parametrize(("mean", "shape"), CASES)
def test_draws_have_the_distribution(mean, shape):
    """A chi-square test of 4000 draws with fixed keys, over numbers of at least 25 expected draws each."""
    drawn = NumberOfRuns(mean, shape)
    numbers = [drawn.draw(SecretKey(key.to_bytes(32))) for key in range(4000)]
    expected = 4000 * pmf(mean, shape, np.arange(max(numbers) + 1))
    kept = [k for k in range(len(expected)) if expected[k] >= 25]
    observed = np.array([numbers.count(k) for k in kept] + [sum(k not in kept for k in numbers)])
    assert stats.chisquare(observed, np.append(expected[kept], 4000 - expected[kept].sum())).pvalue > 1e-3
    assert min(numbers) >= (0 if math.isinf(shape) else 1)
    assert (min(numbers) == 0) is ((mean, shape) == (1.0, math.inf))


@pytest.mark.parametrize(("mean", "shape"), [(1.0 + 1e-12, 0.0), (3.0, 1e-300), (1e5, 0.0), (9.0, 1e9)])
def test_extreme_parameters(mean, shape):
    drawn = NumberOfRuns(mean, shape)
    assert drawn.draw(SecretKey(bytes(32))) >= 1
    assert 0 < drawn.probability(1) <= 1


def test_the_mean_is_never_above_the_one_that_is_priced():
    for mean, shape in CASES:
        if math.isfinite(shape) and mean > 1:
            with mpmath.workdps(90):
                gamma = mpmath.mpf(str(gamma_of(mean, shape)))
                exact = (1 - gamma) / gamma / (-mpmath.log(gamma) if shape == 0 else (1 - gamma**shape) / shape)
                assert mean * (1 - mpmath.mpf(10) ** -50) <= exact <= mean


def test_one_run_on_average_is_one_run():
    for shape in (0.0, 0.5, 1.0, 9.0):
        one = NumberOfRuns(1.0, shape)
        assert one.probability(1) == 1
        assert {one.draw(SecretKey()) for _ in range(20)} == {1}
