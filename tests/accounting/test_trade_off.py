"""The bounds on attacks against closed forms, and against an attack that is carried out."""

import math

import numpy as np
import pytest
from scipy.stats import norm

from noisette.accounting import Gaussian, GdpAccountant, PldAccountant, PoissonGaussian
from noisette.accounting.interface import TradeOff


class RandomisedResponse:
    """The exact curve of an answer that is turned round with probability 1 / (1 + e^2)."""

    def delta(self, *, epsilon):
        return max(0.0, (math.exp(2) - math.exp(epsilon)) / (1 + math.exp(2)))

    def epsilon(self, *, delta):
        return max(0.0, math.log(math.exp(2) - delta * (1 + math.exp(2))))


@pytest.mark.parametrize("mu", [0.05, 0.5, 1.0, 3.0, 6.0])
@pytest.mark.parametrize("accountant", [GdpAccountant(), PldAccountant()])
def test_bounds_of_one_gaussian_are_its_closed_form(mu, accountant):
    attack = TradeOff(accountant.compose({Gaussian(1 / mu): 1}))
    total_variation = 2 * norm.cdf(mu / 2) - 1
    assert total_variation <= attack.advantage <= total_variation * 1.0001
    assert attack.accuracy == (1 + attack.advantage) / 2
    for rate in (1e-10, 1e-8, 1e-6, 1e-4, 1e-3, 1e-2, 0.1, 0.3, 0.5, 0.9):
        exact = norm.cdf(norm.ppf(rate) + mu)
        assert exact <= attack.true_positive_rate(rate) <= min(1, exact * 1.01)
        assert attack.false_negative_rate(rate) == 1 - attack.true_positive_rate(rate)


@pytest.mark.parametrize("mu", [0.5, 1.0, 2.0])
@pytest.mark.parametrize("exceeded", [0.3, 0.01, 1e-3])
def test_the_belief_is_exceeded_as_rarely_as_stated(mu, exceeded):
    belief = TradeOff(GdpAccountant().compose({Gaussian(1 / mu): 1})).posterior(exceeded=exceeded)
    loss = math.log(belief / (1 - belief))
    # The privacy loss of the record's own outputs is normal: mean mu^2 / 2, standard deviation mu.
    assert norm.sf((loss - mu**2 / 2) / mu) <= exceeded
    assert loss <= mu**2 / 2 + mu * norm.isf(exceeded) + 1.3 * max(1, mu)


def test_randomised_response_is_bounded_exactly():
    attack, truth = TradeOff(RandomisedResponse()), math.exp(2) / (1 + math.exp(2))
    assert attack.advantage == pytest.approx(2 * truth - 1, rel=1e-9)
    assert attack.accuracy == pytest.approx(truth, rel=1e-9)
    assert attack.posterior(exceeded=0.01) == pytest.approx(truth, rel=1e-4)
    for rate in (0.0, 1e-3, 1e-2, 1 - truth):
        assert attack.true_positive_rate(rate) == pytest.approx(math.exp(2) * rate, rel=1e-4, abs=2e-6)
    assert attack.true_positive_rate(1.0) == 1


def test_the_best_attack_on_sampled_gaussians_stays_below_and_comes_near():
    """The likelihood ratio of all steps, the strongest attack there is (Neyman and Pearson), simulated."""
    rate, noise, steps, trials = 0.2, 1.0, 10, 60_000
    attack = TradeOff(PldAccountant().compose({PoissonGaussian(rate, noise): steps}))
    random = np.random.default_rng(1)

    def scores(member):
        total = np.zeros(trials)
        for _ in range(steps):
            seen = noise * random.standard_normal(trials) + (random.random(trials) < rate) * member
            total += np.log(1 - rate + rate * np.exp((seen - 0.5) / noise**2))
        return total

    outside, inside = np.sort(scores(0)), scores(1)
    for level in (1e-3, 1e-2, 0.1):
        found = np.mean(inside > outside[-round(level * trials)])
        error = 5 * math.sqrt(found * (1 - found) / trials) + 5 * math.sqrt(level / trials) * found / level
        assert found <= attack.true_positive_rate(level) + error
        assert attack.true_positive_rate(level) <= found * 1.05 + error
    cut = np.median(np.concatenate([outside, inside]))
    advantage = np.mean(inside > cut) - np.mean(outside > cut)
    assert 0.9 * attack.advantage <= advantage <= attack.advantage + 0.01


def test_a_further_delta_is_added():
    curve = GdpAccountant().compose({Gaussian(1.0): 1})
    alone, more = TradeOff(curve), TradeOff(curve, beside=0.1)
    assert more.true_positive_rate(0.3) == pytest.approx(alone.true_positive_rate(0.3) + 0.1, rel=0.02)
    assert alone.advantage + 0.09 < more.advantage <= alone.advantage + 0.1 + 1e-12


@pytest.mark.parametrize("rate", [-0.1, 1.1, math.nan])
def test_rates_outside_the_unit_interval_are_refused(rate):
    with pytest.raises(ValueError, match="false_positive_rate"):
        TradeOff(RandomisedResponse()).true_positive_rate(rate)
    with pytest.raises(ValueError, match="exceeded"):
        TradeOff(RandomisedResponse()).posterior(exceeded=rate)
