import math

import pytest
from support.exact_privacy import gaussian_delta

from noisette.accounting import GroupPrivacy, PldAccountant, PoissonGaussian, RdpAccountant
from noisette.accounting.pld import least_epsilon


def test_a_rare_large_loss_uses_its_distribution():
    """Every divergence is in the thousands; yet the group is in a batch less often than delta."""
    rare = {GroupPrivacy(PoissonGaussian(1e-4, 0.5), records=60): 1}
    assert RdpAccountant().compose(rare).epsilon(delta=0.01) > 500
    assert PldAccountant().compose(rare).epsilon(delta=0.01) == 0


@pytest.mark.parametrize("steps", [2, 100, 10_000, 10**6])
@pytest.mark.parametrize("epsilon", [0.5, 1.0, 1.4, 2.0])
def test_rounding_stays_below_its_allowance(steps, epsilon):
    """A rate just below 1 is nearly the exact Gaussian; at epsilon 2 its delta is 8e-25."""
    run = PldAccountant().compose({PoissonGaussian(1 - 1e-12, 5 * math.sqrt(steps)): steps})
    truth = float(gaussian_delta(0.2, epsilon))
    assert truth * (1 - 1e-6) <= run.delta(epsilon=epsilon) <= truth * 1.01


def test_ten_million_releases_of_much_noise_have_a_cost():
    """The computation would not end if the library composed so small a distribution in one call."""
    release = PoissonGaussian(sampling_rate=0.01, noise_multiplier=300.0)
    price = PldAccountant().compose({release: 10**7}).epsilon(delta=1e-5)
    assert price == pytest.approx(RdpAccountant().compose({release: 10**7}).epsilon(delta=1e-5), rel=0.2)
    assert 0 <= PldAccountant().compose({}).epsilon(delta=1e-300) < 10


def test_a_tiny_epsilon_is_found_in_few_questions():
    few = iter(range(100))
    assert least_epsilon(lambda x: (1 + 1e8 * x) ** -2 + 0 * next(few), 1e-2, 1e-6) == pytest.approx(9e-8, rel=1e-5)


def test_several_kinds_of_release():
    for steps, epsilon in [(10, 0.5043), (1000, 0.6645), (10_000, 1.5285)]:
        events = {PoissonGaussian(1.0, 7.0): 1, PoissonGaussian(0.01, 4 / math.sqrt(2)): steps}
        ours = PldAccountant().compose(events).epsilon(delta=1e-5)
        assert ours == pytest.approx(epsilon, rel=1e-3)
        reversed_events = dict(reversed(events.items()))
        assert PldAccountant().compose(reversed_events).epsilon(delta=1e-5) == pytest.approx(ours, rel=1e-9)
