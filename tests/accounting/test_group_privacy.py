"""The privacy cost of a release for a group of records."""

import itertools
import math

import numpy as np
import pytest
from scipy.integrate import quad
from scipy.special import logsumexp
from scipy.stats import binom, norm

from noisette.accounting import GroupPrivacy, PldAccountant, PoissonGaussian, RdpAccountant
from noisette.accounting.privacy_loss import Mixture
from noisette.accounting.rdp import ORDERS


def group(rate, noise, records):
    return GroupPrivacy(PoissonGaussian(rate, noise), records)


def group_divergences(event, orders):
    return RdpAccountant(orders=orders).compose({event: 1}).divergences


def epsilon(accountant, event, times=1, delta=1e-5):
    return accountant.compose({event: times}).epsilon(delta=delta)


def log_ratio(y, rate, noise, records):
    """ln of the density with the group over that without it: a binomial number of records shifts the sum."""
    i = np.arange(records + 1)
    return logsumexp(binom.logpmf(i, records, rate) + (2 * i * y - i**2) / (2 * noise**2))


def log_mean_power(power, rate, noise, records):
    """ln of the mean of the ratio's power over releases without the group, by adaptive quadrature."""

    def log_integrand(y):
        return power * log_ratio(y, rate, noise, records) + norm.logpdf(y, scale=noise)

    reach = np.linspace(-16 * noise - 5 * records, 16 * noise + max(power, 1) * records, 60)
    top = max(log_integrand(y) for y in reach)
    pieces = [
        quad(lambda y: math.exp(log_integrand(y) - top), *ends, epsabs=1e-15, epsrel=1e-12)[0]
        for ends in itertools.pairwise(reach)
    ]
    return top + math.log(math.fsum(pieces))


@pytest.mark.parametrize(
    ("rate", "noise", "records", "order"),
    [(0.01, 4.0, 3, 33), (0.3, 1.0, 2, 1.5), (0.9, 0.7, 4, 1.1), (0.05, 0.5, 2, 7.5), (1e-3, 2.0, 8, 5)],
)
def test_divergences_against_quadrature_in_both_directions(rate, noise, records, order):
    removed = log_mean_power(order, rate, noise, records) / (order - 1)
    added = log_mean_power(1 - order, rate, noise, records) / (order - 1)
    (ours,) = group_divergences(group(rate, noise, records), [order])
    assert ours == pytest.approx(max(removed, added), rel=1e-8, abs=1e-13)


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
