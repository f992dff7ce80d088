import random

import mpmath
import pytest
from hypothesis import given, settings, strategies
from support.exact_privacy import gaussian_delta

from noisette.accounting import Gaussian, GdpAccountant, GroupPrivacy, PoissonGaussian
from noisette.accounting.closed_forms import GdpCurve


def price(*releases, times=1):
    return GdpAccountant().compose(dict.fromkeys(releases, times))


def test_delta_of_thousands_of_curves():
    """From distances of a billionth to a thousand, thresholds from -6 to 37 standard deviations, and epsilon 0."""
    generator = random.Random(16)
    for number in range(3000):
        mu = 10 ** generator.uniform(-9, 3)
        epsilon = 0.0 if number % 20 == 0 else max(0.0, mu * (generator.uniform(-6, 37) + mu / 2))
        truth, ours = gaussian_delta(mu, epsilon), GdpCurve(mu).delta(epsilon=epsilon)
        assert truth <= ours <= truth * (1 + mpmath.mpf(1e-9)), (mu, epsilon)


def test_delta_where_the_two_terms_of_the_formula_nearly_cancel():
    mu = 0.003159697665406127
    epsilon = mu * (23.379349622943625 + mu / 2)
    assert gaussian_delta(mu, epsilon) <= GdpCurve(mu).delta(epsilon=epsilon)
    for distance in (1e-300, 1e-12, 0.00999, 0.01001):  # the last two: on both sides of the change of formula
        assert gaussian_delta(distance, 0) <= GdpCurve(distance).delta(epsilon=0.0)


@settings(max_examples=60, deadline=None)
@given(strategies.floats(-3, 1.5).map(lambda x: 10**x), strategies.floats(-250, -0.5).map(lambda x: 10**x))
def test_epsilon_is_exact_and_never_too_small(mu, delta):
    ours = price(Gaussian(1 / mu)).epsilon(delta=delta)
    if ours == 0:
        assert gaussian_delta(mu, 0) <= delta
    else:
        assert gaussian_delta(mu, ours) <= delta
        assert gaussian_delta(mu, ours * (1 - 1e-9)) > delta


def test_releases_over_all_records_are_one_for_every_kind_of_event():
    one = pytest.approx(price(Gaussian(1.0)).epsilon(delta=1e-6), rel=1e-12)
    assert price(PoissonGaussian(1.0, 10.0), times=100).epsilon(delta=1e-6) == one
    assert price(GroupPrivacy(Gaussian(5.0), records=5)).epsilon(delta=1e-6) == one
    assert price(GroupPrivacy(PoissonGaussian(1, 10.0), 5), times=4).epsilon(delta=1e-6) == one
    assert price(Gaussian(1 / 0.6), Gaussian(1 / 0.8)).epsilon(delta=1e-6) == one
