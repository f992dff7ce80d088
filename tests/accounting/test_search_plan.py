import math
from decimal import Context, localcontext
from itertools import islice, product

import numpy as np
import pytest

from noisette.accounting import Gaussian, GroupPrivacy, PldAccountant, PoissonGaussian, RdpAccountant, RepeatAndSelect
from noisette.accounting.repeated_runs import NumberOfRuns, compare_search, least_noise_search

BUDGET = {"epsilon": 3.0, "delta": 1e-5, "sampling_rate": 0.01, "steps": 1000}
ORDERS = [*np.arange(1.1, 11.0, 0.1).tolist(), *range(11, 65), *(80, 96, 128, 160, 192, 256, 320, 384, 512, 768, 1024)]


def delta_of_gaussian(mu, epsilon):
    """The exact delta of one Gaussian mechanism, by its two normal integrals."""

    def tail(x):
        return math.erfc(x / math.sqrt(2)) / 2

    return tail(epsilon / mu - mu / 2) - math.exp(epsilon) * tail(epsilon / mu + mu / 2)


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


def theorem_6(noise, mean, delta):
    """Papernot and Steinke 2022, Theorem 6 (Poisson), with the exact delta of the Gaussian: not above the RDP one."""
    found = []
    for a in ORDERS:
        hat = math.log1p(1 / (a - 1))
        found.append(a / (2 * noise**2) + mean * delta_of_gaussian(1 / noise, hat) + math.log(mean) / (a - 1))
    return epsilon_of(ORDERS, found, delta)


def price(noise, mean, shape, delta):
    search = RepeatAndSelect(((Gaussian(noise), 1),), mean, shape)
    return RdpAccountant().compose({search: 1}).epsilon(delta=delta)


@pytest.mark.parametrize("noise", [1.0, 4.0])
@pytest.mark.parametrize(("mean", "shape"), [(10.0, 0.0), (10.0, 0.5), (3.0, 1.0), (100.0, 3.0)])
def test_the_price_is_that_of_theorem_2(noise, mean, shape):
    for delta in (1e-5, 1e-8):
        assert price(noise, mean, shape, delta) == pytest.approx(theorem_2(noise, mean, shape, delta), rel=1e-4)


@pytest.mark.parametrize("mean", [1.0, 10.0, 50.0])
def test_the_price_is_at_least_that_of_theorem_6_with_an_exact_delta(mean):
    """The accountant converts divergences to a delta, which is an upper bound of the exact one."""
    for noise in (2.0, 8.0):
        exact, ours = theorem_6(noise, mean, 1e-6), price(noise, mean, math.inf, 1e-6)
        assert exact * (1 - 1e-9) <= ours <= exact * 1.4


# Exact privacy on a toy mechanism


@pytest.mark.parametrize(("shape", "mean"), [(0.5, 300.0), (1.0, 1000.0)])
def test_the_best_of_randomised_responses_keeps_its_bound_and_nearly_reaches_it(shape, mean):
    """Pure privacy: the best of runs of epsilon e costs at most (2 + shape) e, and nearly that in a bad case.

    A run has three outputs: mostly the worst; one that the record makes rarer; and a better rival, which the record
    makes more likely. The middle one is released if some run had it and none the rival. With F for the probability of
    at most so good an output, the best is at most so good with probability E[F^K], summed up over all numbers K.

    Source: Papernot and Steinke 2022, Corollary 3.
    """
    e = 0.02
    number = NumberOfRuns(mean, shape)
    with localcontext(Context(prec=30)):
        chances = np.array([float(chance) for _, chance in islice(number._chances(), 15_000)])
    powers = np.arange(1, len(chances) + 1)

    def at_most(probability):
        return float(chances @ np.exp(powers * math.log(probability)))

    grid = np.geomspace(1e-4, 0.3, 25).tolist()
    losses = []
    for rare, rival in product(grid, grid):
        without, shifted = (rare, rival), (rare * math.exp(-e), rival * math.exp(e))
        worst = [1 - sum(outputs) for outputs in (without, shifted)]
        if min(worst) > 0 and abs(math.log(worst[0] / worst[1])) <= e:
            middle = [at_most(1 - outputs[1]) - at_most(1 - sum(outputs)) for outputs in (without, shifted)]
            losses.append(abs(math.log(middle[0] / middle[1])))
    assert sum(chances) > 1 - 1e-4
    assert 0.85 * (2 + shape) * e < max(losses) <= (2 + shape) * e


# Plans


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


def test_best_of_is_cheaper_for_many_runs_and_releasing_all_for_one():
    run = {PoissonGaussian(0.01, 1.5): 1000}
    one, many = (compare_search(run, runs=runs, delta=1e-5) for runs in (1, 30))
    assert not one.best_of_is_cheaper
    assert many.best_of_is_cheaper
    assert many.release_all == PldAccountant().compose({PoissonGaussian(0.01, 1.5): 30_000}).epsilon(delta=1e-5)
    search = RepeatAndSelect(tuple(run.items()), 30.0, many.shape)
    assert many.best_of == RdpAccountant().compose({search: 1}).epsilon(delta=1e-5)
    with pytest.raises(TypeError, match="Gaussian or a PoissonGaussian"):
        compare_search({GroupPrivacy(Gaussian(1.0), 2): 1}, runs=2, delta=1e-5)
    with pytest.raises(ValueError, match=r"runs=0.*delta=2"):
        compare_search(run, runs=0, delta=2)
