"""What every registered accountant has in common."""

import math
from contextlib import nullcontext

import pytest
from hypothesis import given, settings, strategies

from noisette.accounting import FixedSizeGaussian, Gaussian, GroupPrivacy, PoissonGaussian
from noisette.accounting.registry import ACCOUNTANTS
from noisette.errors import UnsupportedEventError
from noisette.training.recipe import accountant_names

FULL = PoissonGaussian(1.0, 4.0)  # the one kind of release that every accountant supports
every_accountant = pytest.mark.parametrize("accountant", ACCOUNTANTS.values(), ids=lambda a: a.name)


@every_accountant
def test_events_their_numbers_and_their_relations_are_checked(accountant):
    for times in (0, -1, 1.5, math.nan, "3", True):
        with pytest.raises((ValueError, TypeError), match="times"):
            accountant.compose({FULL: times})
    with pytest.raises(TypeError, match="PoissonGaussian"):
        accountant.compose({(0.01, 4.0): 1})
    for other in (FixedSizeGaussian(1, 2, 1.0), GroupPrivacy(Gaussian(1.0), 2)):
        with pytest.raises(ValueError, match=r"different neighbouring relations.*Gaussian: add or remove one record"):
            accountant.compose({Gaussian(1.0): 1, other: 1})


@every_accountant
def test_a_bad_delta_or_epsilon_is_refused_by_name(accountant):
    curve = accountant.compose({FULL: 1})
    for delta in (0, 1, -0.1, 2, math.nan, math.inf, "1e-5", None):
        with pytest.raises((ValueError, TypeError), match="delta"):
            curve.epsilon(delta=delta)
    for epsilon in (-0.1, math.nan, math.inf, "1", None):
        with pytest.raises((ValueError, TypeError), match="epsilon"):
            curve.delta(epsilon=epsilon)


@every_accountant
def test_those_that_support_sampled_batches_say_so_and_can_be_named_in_a_recipe(accountant):
    with nullcontext() if accountant.supports_sampling else pytest.raises(UnsupportedEventError, match="sampling_rate"):
        accountant.compose({PoissonGaussian(0.5, 1.0): 1})
    assert (accountant.name in accountant_names()) == accountant.supports_sampling


@every_accountant
def test_delta_at_epsilon_zero(accountant):
    """At most 1, and at least the advantage of an attacker: two Gaussians a quarter of a deviation apart."""
    delta = accountant.compose({Gaussian(4.0): 1}).delta(epsilon=0)
    assert math.erf(0.25 / math.sqrt(8)) * (1 - 1e-12) <= delta <= 1


@every_accountant
def test_no_release_costs_nothing(accountant):
    nothing = accountant.compose({})
    assert (nothing.epsilon(delta=1e-9), nothing.delta(epsilon=0.1)) == (0, 0)


rates = strategies.floats(-2, 0).map(lambda x: 10**x)
noises = strategies.floats(0, 1.5).map(lambda x: 10**x)
deltas = strategies.floats(-8, -3).map(lambda x: 10**x)


@every_accountant
@settings(max_examples=4, deadline=None)
@given(rates, noises, strategies.integers(1, 1000), deltas)
def test_costs_are_monotone(accountant, rate, noise, steps, delta):
    rate = rate if accountant.supports_sampling else 1.0

    def cost(rate, noise, steps, delta):
        return accountant.compose({PoissonGaussian(rate, noise): steps}).epsilon(delta=delta)

    base = cost(rate, noise, steps, delta)
    assert base >= 0  # and not NaN
    for larger in (
        (min(1.0, rate * 1.3), noise, steps, delta),
        (rate, noise / 1.3, steps, delta),
        (rate, noise, steps * 2, delta),
        (rate, noise, steps, delta / 2),
    ):
        assert cost(*larger) >= base * (1 - {"pld": 1e-3, "rdp": 1e-3}.get(accountant.name, 1e-9))


@every_accountant
def test_extreme_parameters_have_a_cost(accountant):
    for rate, noise in [(1e-300, 1e-300), (0.5, 0.05), (0.5, 1e300), (1.0, 1e-300), (1.0, 1e300), (1e-300, 1e4)]:
        if rate < 1 and not accountant.supports_sampling:
            continue
        run = accountant.compose({PoissonGaussian(rate, noise): 1000})
        assert all(run.epsilon(delta=delta) >= 0 for delta in (1e-300, 1e-5))
        assert all(0 <= run.delta(epsilon=epsilon) <= 1 for epsilon in (1e-300, 1.0, 1e300))
        if rate == 1 and noise < 1e-3:
            assert (run.epsilon(delta=1e-5), run.delta(epsilon=1.0)) == (math.inf, 1)
