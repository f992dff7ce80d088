"""Certified bounds hold with the stated probability, and are as tight as the theory allows."""

from __future__ import annotations

import math

import numpy as np
import pytest
from scipy.stats import binom, norm

from noisette.audit import certified_epsilon, certified_mu, epsilon_of
from noisette.audit.certificate import rate_at_most


@pytest.mark.parametrize("trials", [1, 7, 100, 3000])
@pytest.mark.parametrize("rate", [0.003, 0.1, 0.5, 0.97])
def test_upper_confidence_limits_cover_the_rate(trials: int, rate: float) -> None:
    """The exact probability, over all counts, that the upper limit is below the rate."""
    alpha = 0.01
    hits = np.arange(trials + 1)
    below = np.array([rate_at_most(int(k), trials, alpha=alpha) < rate for k in hits])
    assert binom.pmf(hits[below], trials, rate).sum() <= alpha * (1 + 1e-9)
    assert rate_at_most(trials, trials, alpha=alpha) == 1.0


def test_certified_mu_is_close_to_the_true_mu_and_not_above_it() -> None:
    """Scores of an ideal Gaussian mechanism with mu = 1, at a false alarm of 1e-9."""
    random = np.random.default_rng(20230)
    for scores, least in ((2_048, 0.3), (204_800, 0.93)):
        found = [
            certified_mu(random.normal(1, 1, scores // 2), random.normal(0, 1, scores // 2), threshold=0.5, alpha=1e-9)
            for _ in range(20)
        ]
        assert least < min(found)
        assert max(found) < 1


# Scores on each side with which a guarantee that is too small by this factor is refuted, up to three deviations.
NEEDED = {2.0: 814, 1.25: 10_671}


@pytest.mark.parametrize("factor", NEEDED)
def test_number_of_scores_that_refutes_a_guarantee(factor: float) -> None:
    """The guarantee is mu = 1; a tenth of the scores proves close to nothing."""
    random = np.random.default_rng(7)

    def refuted(n: int) -> bool:
        inside, outside = random.normal(factor, 1, n), random.normal(0, 1, n)
        return certified_mu(inside, outside, threshold=0.5, alpha=1e-9) > 1

    assert sum(refuted(NEEDED[factor]) for _ in range(20)) == 20
    assert sum(refuted(NEEDED[factor] // 10) for _ in range(20)) <= 2


def test_nothing_is_certified_for_equally_distributed_scores() -> None:
    """At a false alarm of one in a hundred, 300 audits give at most 19; the binomial tail beyond is 1e-10."""
    random = np.random.default_rng(1)
    alarms = np.zeros(2)
    for _ in range(300):
        inside, outside = random.normal(size=(2, 50))
        alarms[0] += certified_mu(inside, outside, threshold=0.0, alpha=1e-2) > 0
        alarms[1] += certified_epsilon(inside, outside, delta=1e-5, alpha=1e-2) > 0
    assert alarms.max() <= 19


FEW = [(np.full(n, 9.0), np.full(m, -9.0)) for n, m in ((0, 0), (0, 5), (5, 0), (1, 1), (1, 1000))]
TIES = [(np.full(3000, value),) * 2 for value in (0.0, 0.5, 1.0)]  # at the threshold, or on one side of it


@pytest.mark.parametrize(("inside", "outside"), FEW + TIES)
def test_a_few_scores_and_ties_prove_nothing(inside: np.ndarray, outside: np.ndarray) -> None:
    for threshold in (0.0, 0.5):
        assert certified_mu(inside, outside, threshold=threshold, alpha=1e-9) == 0
    assert certified_epsilon(inside, outside, delta=1e-5, alpha=1e-9) == 0


def test_epsilon_of_mu_is_the_closed_form() -> None:
    for mu, delta in ((1.0, 1e-5), (0.25, 1e-2), (3.0, 1e-9)):
        epsilon = epsilon_of(mu, delta=delta)
        closed = norm.cdf(-epsilon / mu + mu / 2) - math.exp(epsilon) * norm.cdf(-epsilon / mu - mu / 2)
        assert closed == pytest.approx(delta, rel=1e-9)
    assert epsilon_of(0.0, delta=1e-5) == 0


def test_certified_epsilon_is_close_to_the_true_epsilon_and_not_above_it() -> None:
    """Ideal scores of mu = 1 at a delta of one percent; the bound assumes no shape of the mechanism."""
    random = np.random.default_rng(3)
    truth = epsilon_of(1.0, delta=1e-2)
    for sign in (1, -1):
        inside, outside = sign * random.normal(1, 1, 400_000), sign * random.normal(0, 1, 400_000)
        assert 0.85 * truth < certified_epsilon(inside, outside, delta=1e-2, alpha=1e-6) < truth


@pytest.mark.parametrize(("delta", "least"), [(1e-9, 0.95), (0.4, 0.8)])
def test_certified_epsilon_of_randomised_response(delta: float, least: float) -> None:
    """Two answers only, right with probability 3/4: delta is subtracted from the true positive rate."""
    random = np.random.default_rng(4)
    inside, outside = (random.random((2, 200_000)) < [[0.75], [0.25]]).astype(float)
    truth = math.log((0.75 - delta) / 0.25)
    assert least * truth < certified_epsilon(inside, outside, delta=delta, alpha=1e-6) < truth


def test_thresholds_are_chosen_on_other_scores_than_those_that_prove() -> None:
    """Every second score distinguishes in from out, and the others are uninformative."""
    inside, outside = np.zeros(2_000), np.zeros(2_000)
    inside[::2] = 1
    assert certified_epsilon(inside, outside, delta=1e-5, alpha=1e-6) == 0
