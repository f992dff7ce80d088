"""The privacy cost of a release for a group of records."""

import numpy as np
import pytest
from support.exact_privacy import loss_of

from noisette.accounting import GroupPrivacy, PldAccountant, PoissonGaussian, RdpAccountant
from noisette.accounting.privacy_loss import Mixture
from noisette.accounting.rdp import ORDERS


def group(rate, noise, records):
    return GroupPrivacy(PoissonGaussian(rate, noise), records)


def group_divergences(event, orders):
    return RdpAccountant(orders=orders).compose({event: 1}).divergences


def epsilon(accountant, event, times=1, delta=1e-5):
    return accountant.compose({event: times}).epsilon(delta=delta)


@pytest.mark.parametrize(
    ("rate", "noise", "records", "order"),
    [(0.01, 4.0, 3, 33), (0.3, 1.0, 2, 1.5), (0.9, 0.7, 4, 1.1), (0.05, 0.5, 2, 7.5), (1e-3, 2.0, 8, 5)],
)
def test_divergences_against_quadrature_in_both_directions(rate, noise, records, order):
    event = group(rate, noise, records)
    both = [loss_of(event).log_moment(np.array([power]))[0] / (order - 1) for power in (order, 1 - order)]
    (ours,) = group_divergences(event, [order])
    assert ours == pytest.approx(max(both), rel=1e-8, abs=1e-13)


@pytest.mark.parametrize("accountant", [RdpAccountant(), PldAccountant()], ids=lambda a: a.name)
@pytest.mark.parametrize(
    ("rate", "noise", "steps"), [(0.01, 4.0, 1000), (0.02, 0.8, 500), (0.5, 2.0, 100), (1.0, 7.0, 3)]
)
def test_a_group_of_one_is_one_record(accountant, rate, noise, steps):
    alone = epsilon(accountant, PoissonGaussian(rate, noise), steps)
    assert epsilon(accountant, group(rate, noise, 1), steps) == pytest.approx(alone, rel=1e-6)


def test_where_the_integral_would_be_long_the_group_is_in_every_batch():
    assert group_divergences(group(0.5, 0.002, 3), [1024.0])[0] == 1024 * (3 / 0.002) ** 2 / 2
    assert np.isinf(group_divergences(group(0.5, 1e-4, 3), ORDERS)).all()


@pytest.mark.parametrize("order", [1.1, 2.0, 40.0])
def test_a_tiny_divergence_is_not_rounded_to_zero_or_below(order):
    for noise in np.geomspace(0.4, 1e4, 40).tolist():
        (ours,) = Mixture.of(group(1e-15, noise, 12)).divergences(np.array([order]))
        assert ours > 0
    assert ours < 1e-13 / (order - 1)
