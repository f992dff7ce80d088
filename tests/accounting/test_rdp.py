import math
from itertools import product

import numpy as np
import pytest
from dp_accounting import NeighboringRelation, dp_event
from dp_accounting.rdp import RdpAccountant as LibraryAccountant
from scipy.optimize import brentq
from scipy.stats import norm
from support.exact_privacy import loss_of

from noisette import MomentsAccountant, RdpAccountant
from noisette.accounting.events import FixedSizeGaussian, Gaussian, PoissonGaussian, RepeatAndSelect


def test_a_tiny_cost_is_not_rounded_to_zero():
    """At so small a delta, one release at so small a rate does cost something."""
    assert RdpAccountant().compose({PoissonGaussian(1e-9, 1e4): 1}).epsilon(delta=1e-12) > 0


def test_orders_are_numbers_above_one_or_of_moments_above_zero():
    bad = (), (0,), (1, -3), (math.nan,), (math.inf,), ("2",), (True,)
    for kind, orders in [*product((RdpAccountant, MomentsAccountant), bad), (RdpAccountant, (2, 1))]:
        with pytest.raises((TypeError, ValueError), match="order"):
            kind(orders=orders)


def divergence_of_mixtures(rate, first, second, noise, order):
    """Of (1 - rate) N(0) + rate N(first) from (1 - rate) N(0) + rate N(second), by quadrature."""

    def log_mixture(y, mean):
        return np.logaddexp(math.log1p(-rate) + norm.logpdf(y, 0, noise), math.log(rate) + norm.logpdf(y, mean, noise))

    def log_integrand(y):
        return order * log_mixture(y, first) + (1 - order) * log_mixture(y, second)

    ys = np.linspace(-4 * order - 15 * noise, 4 * order + 15 * noise, 100_001)
    logs = log_integrand(ys)
    return (np.log(np.exp(logs - logs.max()).sum() * (ys[1] - ys[0])) + logs.max()) / (order - 1)


@pytest.mark.parametrize(
    ("size", "noise", "order"),
    [(2, 0.7, 1.5), (2, 5.0, 32), (20, 1.0, 2), (20, 2.0, 8), (1000, 0.7, 3), (99, 20.0, 32)],
)
def test_a_batch_of_fixed_size_costs_at_least_what_two_data_sets_show(size, noise, order):
    """The replaced example shifts the sum from one side to the other, or joins the others on one side.

    Had the price taken the noise in units of a replaced record's sensitivity, it would be below at little noise.
    """
    event = FixedSizeGaussian(batch_size=max(1, size // 4), size=size, noise_multiplier=noise)
    rate = event.batch_size / event.size
    price = RdpAccountant(orders=(order,)).compose({event: 1}).divergences[0]
    apart = divergence_of_mixtures(rate, 1.0, -1.0, noise, order)
    joined = divergence_of_mixtures(rate, 2.0, 0.0, noise, order)
    joining = divergence_of_mixtures(rate, 0.0, 2.0, noise, order)
    assert price >= max(apart, joined, joining) * (1 - 1e-9)


@pytest.mark.parametrize(
    ("batch", "size", "noise"), [(1, 10_000, 1.0), (100, 10_000, 40.0), (100, 10_000, 2.0), (3, 4, 0.5), (7, 7, 3.0)]
)
def test_a_batch_of_fixed_size_costs_what_the_exact_pair_does_or_up_to_twice_as_much(batch, size, noise):
    """The exact pair is integrated; the bound for any mechanism is larger: Wang et al. 2019, Theorem 27."""
    event, orders = FixedSizeGaussian(batch, size, noise), (1.2, 2, 4.5, 32, 256)
    prices = RdpAccountant(orders=orders).compose({event: 1}).divergences
    pair = np.array([loss_of(event).log_moment(np.array([order]))[0] / (order - 1) for order in orders])
    assert (prices >= pair * (1 - 1e-9) - 1e-12).all()
    assert (prices <= 2 * pair * (1 + 1e-9) + 1e-10).all()
    sampled = dp_event.SampledWithoutReplacementDpEvent(size, batch, dp_event.GaussianDpEvent(noise / 2))
    library = LibraryAccountant(orders, NeighboringRelation.REPLACE_ONE).compose(sampled).rdp
    assert (prices <= library * (1 + 1e-9) + 1e-10).all()


@pytest.mark.parametrize(("shape", "mean"), [(1.0, 5.0), (1.0, 100.0), (math.inf, 3.0), (0.0, 20.0)])
@pytest.mark.parametrize("shift", [0.5, -0.5])
def test_a_search_costs_at_least_what_its_best_run_shows(shape, mean, shift):
    """Each run releases a score with Gaussian noise and the highest is released: its exact delta at our epsilon.

    The highest of a random number of scores is distributed as the generating function of that number, at the normal
    distribution of one score.
    """
    if shape == 1:
        q = 1 / mean
        slope = lambda f: q / (1 - (1 - q) * f) ** 2  # noqa: E731
    elif shape == 0:
        q = brentq(lambda q: (1 / q - 1) / -math.log(q) - mean, 1e-9, 1 - 1e-9)
        slope = lambda f: (1 - q) / (1 - (1 - q) * f) / -math.log(q)  # noqa: E731
    else:
        slope = lambda f: mean * np.exp(mean * (f - 1))  # noqa: E731
    ys = np.linspace(-12, 12, 200_001)
    here = slope(norm.cdf(ys)) * norm.pdf(ys)
    there = slope(norm.cdf(ys - shift)) * norm.pdf(ys - shift)
    run = RdpAccountant().compose({RepeatAndSelect(((Gaussian(1 / abs(shift)), 1),), mean, shape): 1})
    shown = np.maximum(0, here - math.exp(run.epsilon(delta=1e-3)) * there).sum() * (ys[1] - ys[0])
    assert shown <= 1e-3
    assert run.epsilon(delta=1e-3) > RdpAccountant().compose({Gaussian(1 / abs(shift)): 1}).epsilon(delta=1e-3)


@pytest.mark.parametrize(
    ("rate", "order"),
    [(0.5, 1.1), (0.5, 1.5), (0.9, 1.3), (0.05, 1.7), (1e-3, 1.9), (0.02, 2.7), (0.3, 7.5), (0.01, 10.9), (0.1, 40)],
)
def test_divergences_of_poisson_batches_are_exact(rate, order):
    ours = RdpAccountant(orders=(1.01, order, 64)).compose({PoissonGaussian(rate, 1.0): 1}).divergences[1]
    truth = max(divergence_of_mixtures(rate, 1.0, 0.0, 1.0, order), divergence_of_mixtures(rate, 0.0, 1.0, 1.0, order))
    assert ours == pytest.approx(truth, rel=1e-8, abs=5e-12)  # what the sum over the grid resolves


def test_delta_of_the_oracle_table():
    run = RdpAccountant().compose({PoissonGaussian(0.01, 4.0): 10_000})
    assert run.delta(epsilon=1.0) == pytest.approx(1.764e-5, rel=2e-3)
    assert run.delta(epsilon=1.26) == pytest.approx(1.836e-7, rel=2e-3)


def test_fixed_size_batches_with_hardly_any_noise_have_no_finite_cost():
    event = FixedSizeGaussian(batch_size=10, size=100, noise_multiplier=5e-4)
    assert RdpAccountant().compose({event: 10}).epsilon(delta=1e-5) == math.inf
