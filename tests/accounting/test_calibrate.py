import math

import pytest
from hypothesis import given, settings, strategies

from noisette import MomentsAccountant, PldAccountant, RdpAccountant, epsilon_for, noise_multiplier_for, steps_for
from noisette.accounting.events import PoissonGaussian

# Examples in a batch, in the data set, steps, epsilon at delta 1e-5; the noise by moments at the orders of an older
# library, by RDP, and by PLD.
TABLE = [
    (32, 60_000, 18_750, 0.05, 7.1046, 4.7967, 4.2901),
    (256, 60_000, 7031, 1, 1.9124, 1.6257, 1.5193),
    (600, 60_000, 6000, 3, 1.5089, 1.3640, 1.2903),
    (600, 60_000, 6000, 0.1, 37.459, 26.362, 23.849),
    (300, 96_000, 3840, 7, 0.5849, 0.5587, 0.5329),
    (16, 50_000, 125_000, 4, 0.5800, 0.5516, 0.5234),
    (4000, 50_000, 1250, 2, 7.1613, 6.1687, 5.7250),
]
# The orders of TF-Privacy in early 2020, which are larger by 1 than those of moments.
OLDER = MomentsAccountant(
    orders=[order - 1 for order in (1.25, 1.5, 1.75, 2, 2.25, 2.5, 3, 3.5, 4, 4.5, *range(5, 64), 128, 256, 512)]
)


@pytest.mark.parametrize(("batch", "size", "steps", "epsilon", "older", "rdp", "pld"), TABLE)
def test_oracle_table(batch, size, steps, epsilon, older, rdp, pld):
    plan = {"delta": 1e-5, "sampling_rate": batch / size, "steps": steps}
    assert noise_multiplier_for(epsilon=epsilon, accountant=OLDER, **plan) == pytest.approx(older, rel=1e-3)
    assert noise_multiplier_for(epsilon=epsilon, accountant=RdpAccountant(), **plan) == pytest.approx(rdp, rel=2e-3)
    assert noise_multiplier_for(epsilon=epsilon, **plan) == pytest.approx(pld, rel=5e-3)


def check_every_knob(accountant, epsilon, delta, rate, noise, steps, prior_events):
    """Each result keeps the budget, and a slightly larger one does not."""
    budget = {"epsilon": epsilon, "delta": delta, "accountant": accountant, "prior_events": prior_events}

    def price(rate, noise, steps):
        run = dict(prior_events)
        run[PoissonGaussian(rate, noise)] = run.get(PoissonGaussian(rate, noise), 0) + steps
        return accountant.compose(run).epsilon(delta=delta)

    if price(rate, 1e6, steps) <= epsilon:
        found = noise_multiplier_for(**budget, sampling_rate=rate, steps=steps)
        assert price(rate, found, steps) <= epsilon
        assert found == 1e-3 or epsilon < price(rate, found * (1 - 1e-3), steps)
    found = steps_for(**budget, sampling_rate=rate, noise_multiplier=noise)
    assert found == 0 or price(rate, noise, found) <= epsilon
    assert found == 10**9 or epsilon < price(rate, noise, found + 1)


@pytest.mark.parametrize(
    "accountant", [PldAccountant(), RdpAccountant(), MomentsAccountant()], ids=lambda accountant: accountant.name
)
@pytest.mark.parametrize(
    "prior_events", [{}, {PoissonGaussian(1.0, 20.0): 1, PoissonGaussian(0.02, 1.5): 100}], ids=len
)
def test_every_result_keeps_the_budget_and_is_nearly_the_best(accountant, prior_events):
    check_every_knob(accountant, 3.0, 1e-5, 0.02, 1.5, 1000, prior_events)


@settings(max_examples=15, deadline=None)
@given(
    epsilon=strategies.floats(-1, 1.5).map(lambda x: 10**x),
    delta=strategies.floats(-10, -2).map(lambda x: 10**x),
    rate=strategies.floats(-5, 0).map(lambda x: 10**x),
    noise=strategies.floats(-0.5, 2).map(lambda x: 10**x),
    steps=strategies.floats(0, 6).map(lambda x: int(10**x)),
)
def test_every_result_keeps_the_budget_for_random_plans(epsilon, delta, rate, noise, steps):
    check_every_knob(MomentsAccountant(orders=[2**k for k in range(11)]), epsilon, delta, rate, noise, steps, {})


def test_epsilon_is_that_of_the_accountant():
    plan = {"sampling_rate": 0.01, "noise_multiplier": 4.0, "steps": 10_000}
    before = {PoissonGaussian(1.0, 7.0): 1, PoissonGaussian(0.01, 4.0): 5}
    run = RdpAccountant().compose({PoissonGaussian(1.0, 7.0): 1, PoissonGaussian(0.01, 4.0): 10_005})
    beside = {"accountant": RdpAccountant(), "prior_events": before}
    assert epsilon_for(delta=1e-5, **plan, **beside) == run.epsilon(delta=1e-5)
    assert epsilon_for(delta=1e-5, **plan) == pytest.approx(0.947, abs=1e-3)


def test_a_spent_budget_allows_no_steps():
    spent = BUDGET | {"accountant": RdpAccountant(), "prior_events": {PoissonGaussian(1.0, 1.0): 1}}
    assert steps_for(sampling_rate=0.01, noise_multiplier=4.0, **spent) == 0
    with pytest.raises(ValueError, match=r"the prior events alone cost epsilon=4\.729, which leaves nothing"):
        noise_multiplier_for(steps=10, sampling_rate=0.01, **spent)


def test_a_budget_that_is_never_spent_gives_the_limit_of_the_search():
    plan = {"epsilon": 1.0, "delta": 1e-5, "accountant": MomentsAccountant()}
    assert steps_for(sampling_rate=1e-12, noise_multiplier=1e6, **plan) == 10**9
    assert noise_multiplier_for(epsilon=1e9, delta=0.9, sampling_rate=1e-9, steps=1) == 1e-3


@pytest.mark.parametrize("epsilon", [1e-300, 1e-3, 1e5, 1e300])
@pytest.mark.parametrize("delta", [1e-300, 1 - 1e-15])
def test_extreme_budgets_have_a_result_or_an_error(epsilon, delta):
    budget = {"epsilon": epsilon, "delta": delta, "accountant": MomentsAccountant(orders=[1, 32, 1024])}
    for tiny, huge in [(1e-300, 1e300), (1e-300, 1e-300), (1.0, 1e300), (1.0, 1e-300)]:
        assert 0 <= steps_for(sampling_rate=tiny, noise_multiplier=huge, **budget) <= 10**9
        try:
            assert noise_multiplier_for(steps=10**6, sampling_rate=tiny, **budget) > 0
        except ValueError as refusal:
            if "cannot guarantee" not in str(refusal):
                raise


BUDGET = {"epsilon": 1.0, "delta": 1e-5}
PLAN = {"sampling_rate": 0.01, "noise_multiplier": 4.0, "steps": 100}
QUESTIONS = [
    (noise_multiplier_for, BUDGET | {name: PLAN[name] for name in ("sampling_rate", "steps")}),
    (steps_for, BUDGET | {name: PLAN[name] for name in ("sampling_rate", "noise_multiplier")}),
    (epsilon_for, PLAN | {"delta": 1e-5}),
]
BAD = {
    "epsilon": [-1.0, math.nan, math.inf, "1"],
    "delta": [0, 1, -1e-5, math.nan, "1e-5"],
    "sampling_rate": [0, -0.1, 1.5, math.nan, None],
    "noise_multiplier": [0, -1.0, math.nan, math.inf, "1"],
    "steps": [0, -5, 10.0, "10", True],
    "prior_events": [{PoissonGaussian(0.1, 1.0): 0}, {"a step": 1}],
}


@pytest.mark.parametrize(("ask", "good"), QUESTIONS, ids=[ask.__name__ for ask, _ in QUESTIONS])
def test_bad_numbers_are_refused_by_name(ask, good):
    for name in good:
        for value in BAD[name]:
            with pytest.raises((ValueError, TypeError), match=name):
                ask(**(good | {name: value}))
    for value in BAD["prior_events"]:
        with pytest.raises((ValueError, TypeError), match=r"times|event"):
            ask(**good, prior_events=value)
