import math

import pytest

from noisette.accounting import MomentsAccountant, PoissonGaussian
from noisette.accounting.accountants.moments import log_moment
from noisette.accounting.asymptotic import leading_log_moment, noise_of_theorem, orders_of_lemma


@pytest.mark.parametrize(("rate", "noise"), [(0.01, 2.0), (0.01, 4.0), (0.005, 8.0), (1e-4, 1.0)])
def test_the_leading_term_is_about_twice_the_moment(rate, noise):
    event = PoissonGaussian(rate, noise)
    for order in list(orders_of_lemma(event))[:32]:
        ratio = log_moment(event, order) / leading_log_moment(event, order)
        assert 0.49 < ratio < (0.62 if noise > 1 else 0.9)


def test_the_orders_of_the_lemma_end_where_it_says():
    orders = orders_of_lemma(PoissonGaussian(0.01, 4.0))
    assert orders[0] == 1
    assert orders[-1] <= 16 * math.log(25) < orders[-1] + 1


def test_the_theorem_asks_for_more_noise_than_the_computed_moments():
    noise = noise_of_theorem(epsilon=1.26, delta=1e-5, sampling_rate=0.01, steps=10_000)
    assert noise == pytest.approx(5.39, abs=5e-3)
    assert MomentsAccountant().compose({PoissonGaussian(0.01, noise): 10_000}).epsilon(delta=1e-5) < 1.0
    assert MomentsAccountant().compose({PoissonGaussian(0.01, 4.0): 10_000}).epsilon(delta=1e-5) < 1.26


def test_by_the_leading_term_the_noise_of_the_theorem_is_just_enough():
    """Half of epsilon pays for the moment (but for 1 in the order and in the rate), the other half for delta."""
    noise = noise_of_theorem(epsilon=1.26, delta=1e-5, sampling_rate=0.01, steps=10_000)
    order = 2 * math.log(1e5) / 1.26
    leading = 10_000 * leading_log_moment(PoissonGaussian(0.01, noise), round(order))
    assert leading == pytest.approx(order * 1.26 / 2, rel=0.08)
    assert math.exp(-order * 1.26 / 2) == pytest.approx(1e-5)


@pytest.mark.parametrize(("rate", "noise"), [(0.01, 0.9), (0.01, 6.25), (0.1, 1.0), (1.0, 1.0)])
def test_events_outside_the_lemma_are_refused(rate, noise):
    with pytest.raises(
        ValueError, match=r"Lemma 3 asks for noise_multiplier >= 1 and sampling_rate < 1 / \(16 sigma\)"
    ):
        leading_log_moment(PoissonGaussian(rate, noise), 1)


@pytest.mark.parametrize("order", [0, 52, 1.5, "2"])
def test_orders_outside_the_lemma_are_refused(order):
    with pytest.raises((ValueError, TypeError), match="order"):
        leading_log_moment(PoissonGaussian(0.01, 4.0), order)


GOOD = {"epsilon": 1.26, "delta": 1e-5, "sampling_rate": 0.01, "steps": 10_000}


@pytest.mark.parametrize(
    ("name", "value"),
    [("epsilon", 0), ("epsilon", math.nan), ("delta", 0), ("delta", 1), ("sampling_rate", 0), ("steps", 0)],
)
def test_bad_numbers_have_no_noise_of_the_theorem(name, value):
    with pytest.raises(ValueError, match=name):
        noise_of_theorem(**(GOOD | {name: value}))


@pytest.mark.parametrize("epsilon", [0.1, 8.0])
def test_a_budget_outside_the_range_of_the_theorem_is_refused(epsilon):
    with pytest.raises(ValueError, match="Lemma 3"):
        noise_of_theorem(**(GOOD | {"epsilon": epsilon}))
