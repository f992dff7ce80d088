"""All accountants on one set of plans: the oracle tables, their order by tightness, and monotonicity."""

import pytest
from hypothesis import given, settings, strategies

from noisette.accounting import GdpAccountant, MomentsAccountant, PldAccountant, PoissonGaussian, RdpAccountant

PAPER = MomentsAccountant(orders=range(1, 33))

# rate, noise, steps, delta: moments up to order 32, up to order 255, RDP, PLD; from an independent script.
TABLE = [
    (0.01, 4, 100, 1e-5, 0.3706, 0.1316, 0.0897, 0.0795),
    (0.01, 4, 1000, 1e-5, 0.4684, 0.3962, 0.3012, 0.2721),
    (0.01, 4, 10000, 1e-5, 1.2586, 1.2586, 1.0355, 0.9469),
    (0.01, 4, 40000, 1e-5, 2.5759, 2.5759, 2.2097, 2.0334),
    (0.01, 2, 10000, 1e-5, 2.7354, 2.7354, 2.3529, 2.1628),
    (0.01, 1, 1000, 1e-5, 2.5383, 2.5383, 2.1014, 1.8282),
    (0.01, 1.1, 10000, 1e-5, 6.2798, 6.2798, 5.6320, 5.1926),
    (256 / 60000, 1.1, 14062, 1e-5, 3.0091, 3.0091, 2.5966, 2.3817),
    (256 / 60000, 0.7, 10546, 1e-5, 7.1226, 7.1226, 6.3181, 5.6394),
    (0.001, 1, 100000, 1e-6, 2.3170, 2.3170, 2.0040, 1.8620),
    (0.02, 0.8, 500, 1e-5, 6.1468, 6.1468, 5.3701, 4.6680),
    (0.5, 2, 100, 1e-5, 16.7588, 16.7588, 15.3925, 14.2845),
    (1, 4, 1, 1e-5, 1.2309, 1.2309, 1.0126, 0.9263),
    (1, 10, 100, 1e-5, 5.3026, 5.3026, 4.7285, 4.3772),
    (32 / 60000, 7.1, 18750, 1e-5, 0.3615, 0.0589, 0.0320, 0.0283),
    (128 / 96000, 0.621, 37500, 1e-5, 5.9911, 5.9911, 5.2377, 4.5205),
]


def price(accountant, rate, noise, steps, delta):
    return accountant.compose({PoissonGaussian(rate, noise): steps}).epsilon(delta=delta)


@pytest.mark.parametrize(("rate", "noise", "steps", "delta", "paper", "moments", "rdp", "pld"), TABLE)
def test_oracle_table(rate, noise, steps, delta, paper, moments, rdp, pld):
    plan = (rate, noise, steps, delta)
    assert price(PAPER, *plan) == pytest.approx(paper, abs=5e-4)
    assert price(MomentsAccountant(orders=range(1, 256)), *plan) == pytest.approx(moments, abs=5e-4)
    assert price(RdpAccountant(), *plan) == pytest.approx(rdp, abs=5e-4)
    assert price(PldAccountant(), *plan) == pytest.approx(pld, rel=1e-3 if pld >= 0.1 else 2e-3)


rates = strategies.floats(-2, 0).map(lambda x: 10**x)
noises = strategies.floats(0, 1.5).map(lambda x: 10**x)
steps = strategies.integers(1, 1000)
deltas = strategies.floats(-8, -3).map(lambda x: 10**x)


@settings(max_examples=8, deadline=None)
@given(rates, noises, steps, deltas)
def test_the_tighter_accountant_never_has_the_larger_epsilon(rate, noise, steps, delta):
    moments = price(MomentsAccountant(), rate, noise, steps, delta)
    rdp = price(RdpAccountant(), rate, noise, steps, delta)
    assert 0 <= price(PldAccountant(), rate, noise, steps, delta) <= rdp * (1 + 1e-6)
    assert rdp <= moments * (1 + 1e-6) + 1e-9


@settings(max_examples=6, deadline=None)
@given(noises, steps, deltas)
def test_over_all_records_the_distribution_agrees_with_the_closed_form(noise, steps, delta):
    events = {PoissonGaussian(1.0, noise): steps}
    accountants = PldAccountant(), GdpAccountant(), RdpAccountant()
    pld, exact, rdp = (accountant.compose(events).epsilon(delta=delta) for accountant in accountants)
    assert pld >= exact * (1 - 1e-9) - 1e-12
    assert pld <= exact * (1 + 1e-3) + 1e-6 or (exact > 300 and pld == rdp)
