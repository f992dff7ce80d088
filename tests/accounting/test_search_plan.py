import math
from functools import cache

import mpmath
import numpy as np
import pytest
from dp_accounting import dp_event
from dp_accounting.rdp import RdpAccountant as LibraryAccountant
from dp_accounting.rdp.rdp_privacy_accountant import _compute_rdp_repeat_and_select as library_search

from noisette.accounting import Gaussian, PoissonGaussian, RdpAccountant, RepeatAndSelect
from noisette.accounting.rdp import of_best
from noisette.accounting.repeated_runs import NumberOfRuns, least_noise_search

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
    for _ in range(150):
        gamma = math.sqrt(low * high)
        of_gamma = (1 / gamma - 1) / (-math.log(gamma) if shape == 0 else (1 - gamma**shape) / shape)
        low, high = (gamma, high) if of_gamma > mean else (low, gamma)
    constant = min(
        (1 + shape) * (1 - 1 / a) * a / (2 * noise**2) + (1 + shape) * math.log(1 / gamma) / a for a in ORDERS
    )
    return epsilon_of(ORDERS, [a / (2 * noise**2) + constant + math.log(mean) / (a - 1) for a in ORDERS], delta)


def price(noise, mean, shape, delta):
    return RdpAccountant().compose({RepeatAndSelect(((Gaussian(noise), 1),), mean, shape): 1}).epsilon(delta=delta)


@pytest.mark.parametrize("noise", [1.0, 4.0])
@pytest.mark.parametrize(("mean", "shape"), [(10.0, 0.0), (10.0, 0.5), (3.0, 1.0), (100.0, 3.0)])
def test_the_price_is_that_of_theorem_2(noise, mean, shape):
    for delta in (1e-5, 1e-8):
        assert price(noise, mean, shape, delta) == pytest.approx(theorem_2(noise, mean, shape, delta), rel=1e-4)


# The theorems, for mechanisms of few results: the best of the runs by enumeration of their number

FEW_ORDERS = np.array([1.05, 1.3, 1.5, 2, 2.5, 4, 8, 16, 64, 256, 4096])


@cache
def chances(mean, shape):
    """Of each number of runs, until 1e-13 is left."""
    runs, found = NumberOfRuns(mean, shape), []
    while math.fsum(found) < 1 - 1e-13:
        found.append(float(runs.probability(len(found))))
    return np.array(found)


def highest(results, number):
    """The probabilities of the highest of so many results, where 0 is that of no run: n runs are below with F^n."""
    below = np.append(0.0, np.cumsum(results))
    return np.diff(number @ np.minimum(below, 1.0) ** np.arange(len(number))[:, None], prepend=0.0)


def divergences(p, q):
    """The larger of both directions, at each order."""
    p, q = p[p + q > 0], q[p + q > 0]
    logs = [np.outer(FEW_ORDERS, np.log(a)) + np.outer(1 - FEW_ORDERS, np.log(b)) for a, b in ((p, q), (q, p))]
    return np.maximum(*(np.logaddexp.reduce(log, axis=1) for log in logs)) / (FEW_ORDERS - 1)


@pytest.mark.parametrize("mean", [1.0, 1.5, 3.0, 10.0])
@pytest.mark.parametrize("shape", [0.0, 0.5, 1.0, 3.0, math.inf])
def test_no_search_over_a_mechanism_of_few_results_costs_more_than_its_price(mean, shape):
    random, number, tightest = np.random.default_rng(7), chances(mean, shape), 0.0
    for _ in range(150):
        p = random.dirichlet(np.full(random.integers(2, 5), 10 ** random.uniform(-0.5, 1))) + 1e-3
        q = p * np.exp(random.normal(size=len(p)) * 10 ** random.uniform(-2, 0.3))
        p, q = p / p.sum(), q / q.sum()
        shown, of_run = divergences(highest(p, number), highest(q, number)), divergences(p, q)
        bound = of_best(FEW_ORDERS, of_run, mean, shape)
        assert (shown <= bound * (1 + 1e-9) + 1e-9).all()
        some = np.where(random.random(len(of_run)) < 0.5, math.inf, of_run)  # orders of which nothing is known
        assert (of_best(FEW_ORDERS, some, mean, shape) >= bound).all()
        tightest = max(tightest, float(np.max(shown / bound)))
    assert tightest > 0.55, "a price that leaves out a term is exceeded"


# The library has the same theorems, but not all orders of a run: it drops some, and is above the exact divergence of
# others that are not whole.


@pytest.mark.parametrize(("mean", "shape"), [(10.0, 0.0), (5.0, 0.5), (1000.0, 1.0), (8.0, math.inf), (1.0, math.inf)])
@pytest.mark.parametrize(("rate", "noise", "steps"), [(0.01, 1.1, 100), (0.3, 0.5, 5)])
def test_the_price_is_that_of_the_library_on_exact_divergences(mean, shape, rate, noise, steps):
    run = {PoissonGaussian(rate, noise): steps, Gaussian(9.0): 1}
    ours = RdpAccountant().compose({RepeatAndSelect(tuple(run.items()), mean, shape): 1})
    same = epsilon_of(ORDERS, library_search(ORDERS, RdpAccountant().compose(run).divergences, mean, shape), 1e-6)
    assert ours.epsilon(delta=1e-6) == pytest.approx(same, rel=1e-7)
    step = dp_event.PoissonSampledDpEvent(rate, dp_event.GaussianDpEvent(noise))
    whole = dp_event.ComposedDpEvent([dp_event.SelfComposedDpEvent(step, steps), dp_event.GaussianDpEvent(9.0)])
    library = LibraryAccountant(ORDERS).compose(dp_event.RepeatAndSelectDpEvent(whole, mean, shape)).get_epsilon(1e-6)
    assert 0.8 * library < ours.epsilon(delta=1e-6) <= library * (1 + 1e-7)


@pytest.mark.parametrize("order", [1.1, 1.3, 1.6])
def test_divergences_that_the_library_drops_are_exact(order):
    rate, noise = 0.3, 0.5
    step = dp_event.PoissonSampledDpEvent(rate, dp_event.GaussianDpEvent(noise))
    assert LibraryAccountant([order]).compose(step).rdp == math.inf
    with mpmath.workdps(30):
        mean = mpmath.quad(
            lambda x: mpmath.npdf(x) * (1 - rate + rate * mpmath.exp(x / noise - 1 / noise**2 / 2)) ** order,
            mpmath.linspace(-20, 25, 46),
        )
        exact = float(mpmath.log(mean) / (order - 1))
    ours = RdpAccountant(orders=(order,)).compose({PoissonGaussian(rate, noise): 1}).divergences
    assert ours == pytest.approx(exact, rel=1e-9)
    assert ours >= exact


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
