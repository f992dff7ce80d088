import math

import numpy as np
import pytest

from noisette.accounting import Gaussian, GroupPrivacy, PldAccountant, PoissonGaussian, RdpAccountant, RepeatAndSelect
from noisette.accounting.repeated_runs import compare_search, least_noise_search

BUDGET = {"epsilon": 3.0, "delta": 1e-5, "sampling_rate": 0.01, "steps": 1000}
ORDERS = [*np.arange(1.1, 11.0, 0.1).tolist(), *range(11, 65), *(80, 96, 128, 160, 192, 256, 320, 384, 512, 768, 1024)]


def epsilon_of(orders, divergences, delta):
    """Canonne, Kamath and Steinke 2020, Proposition 12, written out."""
    return min(
        d + math.log1p(-1 / a) - (math.log(delta) + math.log(a)) / (a - 1)
        for a, d in zip(orders, divergences, strict=True)
    )


def theorem_2(noise, mean, shape, delta):
    """Papernot and Steinke 2022, Theorem 2, for one Gaussian release: divergence order / (2 noise^2)."""
    low, high = 1e-15, 1.0
    for _ in range(300):
        gamma = math.sqrt(low * high)
        of_gamma = (1 / gamma - 1) / (-math.log(gamma) if shape == 0 else (1 - gamma**shape) / shape)
        low, high = (gamma, high) if of_gamma > mean else (low, gamma)
    constant = min(
        (1 + shape) * (1 - 1 / a) * a / (2 * noise**2) + (1 + shape) * math.log(1 / gamma) / a for a in ORDERS
    )
    found = [a / (2 * noise**2) + constant + math.log(mean) / (a - 1) for a in ORDERS]
    return epsilon_of(ORDERS, found, delta)


def price(noise, mean, shape, delta):
    search = RepeatAndSelect(((Gaussian(noise), 1),), mean, shape)
    return RdpAccountant().compose({search: 1}).epsilon(delta=delta)


@pytest.mark.parametrize("noise", [1.0, 4.0])
@pytest.mark.parametrize(("mean", "shape"), [(10.0, 0.0), (10.0, 0.5), (3.0, 1.0), (100.0, 3.0)])
def test_the_price_is_that_of_theorem_2(noise, mean, shape):
    for delta in (1e-5, 1e-8):
        assert price(noise, mean, shape, delta) == pytest.approx(theorem_2(noise, mean, shape, delta), rel=1e-4)


@pytest.mark.parametrize("shape", [None, math.inf])
def test_least_noise_keeps_the_budget_and_less_would_not(shape):
    plan = least_noise_search(**BUDGET, mean=10.0, shape=shape)
    assert plan.epsilon <= 3.0
    assert (plan.event.mean, plan.delta) == (10.0, 1e-5)
    assert shape in (None, plan.event.shape)
    assert RdpAccountant().compose({plan.event: 1}).epsilon(delta=1e-5) == plan.epsilon
    less = PoissonGaussian(0.01, plan.noise_multiplier * 0.998)
    search = RepeatAndSelect(((less, 1000),), 10.0, plan.event.shape)
    assert RdpAccountant().compose({search: 1}).epsilon(delta=1e-5) > 3.0


def test_prior_events_count():
    before = {Gaussian(4.0): 1}
    plan = least_noise_search(**BUDGET, mean=5.0, shape=1.0, prior_events=before)
    assert RdpAccountant().compose({**before, plan.event: 1}).epsilon(delta=1e-5) == plan.epsilon <= 3.0
    assert plan.noise_multiplier > least_noise_search(**BUDGET, mean=5.0, shape=1.0).noise_multiplier


def test_a_search_that_no_noise_can_keep_within_the_budget_is_refused():
    with pytest.raises(ValueError, match="cannot guarantee epsilon"):
        least_noise_search(**BUDGET, mean=5.0, prior_events={Gaussian(0.3): 1})


@pytest.mark.parametrize(
    ("name", "value"), [("epsilon", 0), ("delta", 1), ("sampling_rate", 2), ("steps", 0), ("mean", 0.5), ("shape", -1)]
)
def test_bad_numbers_are_refused_by_name(name, value):
    with pytest.raises(ValueError, match=name):
        least_noise_search(**(BUDGET | {"mean": 2.0, name: value}))


