"""Certified bounds and simulated costs hold with the stated probability, and are as tight as the theory allows."""

import math

import numpy as np
import pytest
from scipy.stats import binom, norm

from noisette import PldAccountant
from noisette.accounting import GroupPrivacy, PoissonGaussian, TruncatedPoissonGaussian, UserLevel
from noisette.accounting.events import BallsInBinsGaussian, BandedGaussian, Event, FixedSizeGaussian, Gaussian, Laplace
from noisette.audit import Verdict, audit_cost, certificate, certified_epsilon, certified_mu, epsilon_of
from noisette.audit.certificate import rate_at_most


@pytest.mark.parametrize("trials", [1, 7, 100, 3000])
@pytest.mark.parametrize("rate", [0.003, 0.1, 0.5, 0.97])
def test_upper_confidence_limits_cover_the_rate(trials, rate):
    """The exact probability, over all counts, that the upper limit is below the rate."""
    alpha, hits = 0.01, np.arange(trials + 1)
    below = np.array([rate_at_most(int(k), trials, alpha=alpha) < rate for k in hits])
    assert binom.pmf(hits[below], trials, rate).sum() <= alpha * (1 + 1e-9)
    assert rate_at_most(trials, trials, alpha=alpha) == 1.0


def test_certified_mu_is_close_to_the_true_mu_and_not_above_it():
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
def test_number_of_scores_that_refutes_a_guarantee(factor):
    """The guarantee is mu = 1; a tenth of the scores proves close to nothing."""
    random = np.random.default_rng(7)

    def refuted(n: int) -> bool:
        inside, outside = random.normal(factor, 1, n), random.normal(0, 1, n)
        return certified_mu(inside, outside, threshold=0.5, alpha=1e-9) > 1

    assert sum(refuted(NEEDED[factor]) for _ in range(20)) == 20
    assert sum(refuted(NEEDED[factor] // 10) for _ in range(20)) <= 2


def test_nothing_is_certified_for_equally_distributed_scores():
    """At a false alarm of one in a hundred, 300 audits give at most 19; the binomial tail beyond is 1e-10."""
    random, alarms = np.random.default_rng(1), np.zeros(2)
    for _ in range(300):
        inside, outside = random.normal(size=(2, 50))
        alarms[0] += certified_mu(inside, outside, threshold=0.0, alpha=1e-2) > 0
        alarms[1] += certified_epsilon(inside, outside, delta=1e-5, alpha=1e-2) > 0
    assert alarms.max() <= 19


FEW = [(np.full(n, 9.0), np.full(m, -9.0)) for n, m in ((0, 0), (0, 5), (5, 0), (1, 1), (1, 1000))]
TIES = [(np.full(3000, value),) * 2 for value in (0.0, 0.5, 1.0)]  # at the threshold, or on one side of it


@pytest.mark.parametrize(("inside", "outside"), FEW + TIES)
def test_a_few_scores_and_ties_prove_nothing(inside, outside):
    for threshold in (0.0, 0.5):
        assert certified_mu(inside, outside, threshold=threshold, alpha=1e-9) == 0
    assert certified_epsilon(inside, outside, delta=1e-5, alpha=1e-9) == 0


def test_epsilon_of_mu_is_the_closed_form():
    for mu, delta in ((1.0, 1e-5), (0.25, 1e-2), (3.0, 1e-9)):
        epsilon = epsilon_of(mu, delta=delta)
        closed = norm.cdf(-epsilon / mu + mu / 2) - math.exp(epsilon) * norm.cdf(-epsilon / mu - mu / 2)
        assert closed == pytest.approx(delta, rel=1e-9)
    assert epsilon_of(0.0, delta=1e-5) == 0


def test_certified_epsilon_is_close_to_the_true_epsilon_and_not_above_it():
    """Ideal scores of mu = 1 at a delta of one percent; the bound assumes no shape of the mechanism."""
    random, truth = np.random.default_rng(3), epsilon_of(1.0, delta=1e-2)
    for sign in (1, -1):
        inside, outside = sign * random.normal(1, 1, 400_000), sign * random.normal(0, 1, 400_000)
        assert 0.85 * truth < certified_epsilon(inside, outside, delta=1e-2, alpha=1e-6) < truth


@pytest.mark.parametrize(("delta", "least"), [(1e-9, 0.95), (0.4, 0.8)])
def test_certified_epsilon_of_randomised_response(delta, least):
    """Two answers only, right with probability 3/4: delta is subtracted from the true positive rate."""
    inside, outside = (np.random.default_rng(4).random((2, 200_000)) < [[0.75], [0.25]]).astype(float)
    truth = math.log((0.75 - delta) / 0.25)
    assert least * truth < certified_epsilon(inside, outside, delta=delta, alpha=1e-6) < truth


def test_thresholds_are_chosen_on_other_scores_than_those_that_prove():
    """Every second score distinguishes in from out, and the others are uninformative."""
    inside, outside = np.zeros(2_000), np.zeros(2_000)
    inside[::2] = 1
    assert certified_epsilon(inside, outside, delta=1e-5, alpha=1e-6) == 0


def delta_of_gaussian(mu: float, epsilon: float) -> float:
    """Delta of a Gaussian mechanism whose means are ``mu`` deviations apart (Balle and Wang 2018, theorem 8)."""
    return float(norm.cdf(mu / 2 - epsilon / mu) - math.exp(epsilon) * norm.cdf(-mu / 2 - epsilon / mu))


def delta_of_batch(rate: float, sigma: float, epsilon: float) -> float:
    """Delta of one Poisson batch, when a record is removed: the rate times that of the Gaussian at a larger epsilon."""
    return rate * delta_of_gaussian(1 / sigma, math.log(1 + math.expm1(epsilon) / rate))


EXACT: dict[str, tuple[dict[Event, int], float, float]] = {
    "two kinds": ({Gaussian(4.0): 9, PoissonGaussian(1.0, 2.0): 2}, 4.0, delta_of_gaussian((17 / 16) ** 0.5, 4.0)),
    "a group of six": ({GroupPrivacy(Gaussian(12.0), 6): 4}, 6.0, delta_of_gaussian(1.0, 6.0)),
    "one Poisson batch": ({PoissonGaussian(0.02, 0.8): 1}, 1.0, delta_of_batch(0.02, 0.8, 1.0)),
    "one round of bands": ({BandedGaussian(0.01, 0.8, 5): 3}, 1.0, delta_of_batch(0.05, 0.8, 1.0)),
}


@pytest.mark.parametrize(("events", "epsilon", "delta"), EXACT.values(), ids=EXACT)
def test_limits_enclose_costs_in_closed_form(events, epsilon, delta):
    audit = audit_cost(events, epsilon=epsilon, delta=delta)
    assert 0.4 * delta < audit.least <= delta <= audit.most < 2 * delta
    assert audit.verdict is Verdict.CONSISTENT
    assert audit_cost(events, epsilon=epsilon, delta=0.3 * delta).verdict is Verdict.VIOLATION


def test_the_lower_limit_exceeds_the_true_delta_at_the_stated_rate():
    """At one in ten for both directions, which are equal here; the binomial tail beyond 35 of 100 is 1e-10."""
    truth = delta_of_gaussian(1.0, 3.0)
    settings = {"epsilon": 3.0, "delta": truth, "samples": 500, "false_alarm": 0.1}
    assert sum(audit_cost({Gaussian(1.0): 1}, **settings).least > truth for _ in range(100)) < 36


FULL, STEP = TruncatedPoissonGaussian(0.01, 1.1, 100, 10_000), PoissonGaussian(0.01, 4.0)
# What was released, and releases whose cost is stated for it: a factor, a parameter or a kind of batches is wrong.
WRONG: dict[str, tuple[dict[Event, int], dict[Event, int]]] = {
    "a smaller sampling rate": ({PoissonGaussian(0.01, 1.3): 6000}, {PoissonGaussian(0.0097, 1.3): 6000}),
    "more noise": ({PoissonGaussian(0.01, 1.3): 6000}, {PoissonGaussian(0.01, 1.32): 6000}),
    "fewer steps": ({PoissonGaussian(0.1, 1.0): 100}, {PoissonGaussian(0.1, 1.0): 95}),
    "a part is forgotten": ({PoissonGaussian(0.1, 1.0): 100, Gaussian(3.0): 1}, {PoissonGaussian(0.1, 1.0): 100}),
    "full batches that gain a record": ({FULL: 500}, {PoissonGaussian(0.01, 1.1): 500}),
    "each step of a band by itself": ({BandedGaussian(0.01, 1.1, 8): 800}, {PoissonGaussian(0.01, 1.1): 800}),
    "a user with one record": ({UserLevel(STEP, 3): 1000}, {UserLevel(STEP, 1): 1000}),
    "a replaced record that is added": ({FixedSizeGaussian(100, 1000, 4.0): 100}, {PoissonGaussian(0.1, 4.0): 100}),
}


LONG = ("full batches that gain a record", "a user with one record", "more noise")


@pytest.mark.parametrize("case", [pytest.param(case, marks=pytest.mark.slow if case in LONG else []) for case in WRONG])
def test_a_cost_that_is_too_small_is_refuted_and_the_right_one_is_not(case):
    released, stated = WRONG[case]
    right, wrong = (PldAccountant().compose(events).epsilon(delta=1e-6) for events in (released, stated))
    assert audit_cost(released, epsilon=right, delta=1e-6).findings == ()
    [finding] = audit_cost(released, epsilon=wrong, delta=1e-6).findings
    assert finding.startswith(f"at epsilon={wrong:.4g} delta is ")


def test_a_record_that_is_added_is_simulated_too():
    """Its delta is an integral, and never the larger one of a single batch."""
    u, epsilon = np.linspace(-12, 12, 100_001), 0.3
    without, inside = norm.pdf(u), 0.6 * norm.pdf(u - 1) + 0.4 * norm.pdf(u)
    delta = float(np.maximum(without - math.exp(epsilon) * inside, 0).sum() * (u[1] - u[0]))
    losses = certificate._losses(PoissonGaussian(0.6, 1.0), 1, removed=False)
    least, most = certificate._limits([losses], epsilon, 20_000, 1e-9, np.random.default_rng())
    assert 0.8 * delta < least < delta < most < 1.25 * delta


def test_kinds_that_are_not_simulated_are_named():
    audit = audit_cost({Laplace(2.0): 3, BallsInBinsGaussian(3, 2.0): 3, Gaussian(1.0): 1}, epsilon=1.0, delta=1e-5)
    assert audit.left_out == ("Laplace", "balls-in-bins Gaussian")
    assert audit.verdict is Verdict.VIOLATION, "the Gaussian release alone costs more"
    assert audit_cost({Laplace(2.0): 3}, epsilon=0.0, delta=1e-5).least == 0


@pytest.mark.parametrize("sigma", [1e-4, 1e4])
@pytest.mark.parametrize("kind", [Gaussian, lambda s: PoissonGaussian(1e-6, s)])
def test_the_smallest_and_the_largest_noise_are_simulated(kind, sigma):
    for epsilon in (0.0, 1.0, 1e4):
        audit = audit_cost({kind(sigma): 3}, epsilon=epsilon, delta=1e-9, samples=100)
        assert 0 <= audit.least <= audit.most <= 1
