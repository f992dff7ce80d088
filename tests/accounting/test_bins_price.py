"""Passes in which each record is in one batch: against integrals, another library, and their own finer grids."""

import math

import numpy as np
import pytest
from scipy.special import ndtr

from noisette.accounting import BallsInBinsGaussian, Gaussian, PldAccountant, PoissonGaussian, balls_in_bins
from noisette.accounting.balls_in_bins import pass_directions
from noisette.accounting.privacy_loss import directions_of


def cost(events, delta):
    return PldAccountant().compose(events).epsilon(delta=delta)


def excess_of(direction, epsilon):
    return direction.masses @ np.maximum(0, -np.expm1(np.minimum(epsilon - direction.losses, 0)))


def one_pass(bins, noise, epsilon):
    """Delta of each direction, of two bins or three: a sum over all but the last, a closed form over the last."""
    mu, z = 1 / noise, np.linspace(-11, 11, 9001 if bins == 2 else 3001)
    weight, ratio = np.exp(-(z**2) / 2) / np.exp(-(z**2) / 2).sum(), np.exp(mu * z - mu**2 / 2)
    if bins == 3:
        weight, ratio = np.outer(weight, weight).ravel(), np.add.outer(ratio, ratio).ravel()

    def excess(limit):
        """The mean of (Y - limit)+ for the ratio Y of the last bin."""
        with np.errstate(divide="ignore", invalid="ignore"):
            d = np.where(limit > 0, -np.log(np.maximum(limit, 1e-300)) / mu + mu / 2, np.inf)
        return np.where(limit > 0, ndtr(d) - limit * ndtr(d - mu), 1 - limit)

    removed = weight @ excess(bins * math.exp(epsilon) - ratio) / bins
    above = bins * math.exp(-epsilon) - ratio
    added = weight @ (excess(above) - 1 + above) * math.exp(epsilon) / bins
    return added, removed


@pytest.mark.parametrize(("bins", "noise"), [(2, 1.0), (2, 0.3), (3, 2.0), (3, 0.6)])
@pytest.mark.parametrize("epsilon", [0.1, 0.5, 2.0])
def test_a_pass_of_few_bins_costs_what_the_integral_says(bins, noise, epsilon):
    for ours, exact in zip(pass_directions(bins, noise, 1e-12), one_pass(bins, noise, epsilon), strict=True):
        delta = ours.lost + excess_of(ours, epsilon)
        assert exact * (1 - 1e-6) - 1e-12 <= delta <= exact * (1 + 1e-3) + 1e-11


# bins, passes, noise, delta: the lower and the upper end of PLD_accounting 2.0.
TABLE = [
    (2, 1, 1.0, 1e-5, 3.65570, 3.73677),
    (3, 4, 2.0, 1e-6, 2.78077, 2.85729),
    (10, 10, 2.0, 1e-5, 2.09827, 2.18482),
    (20, 3, 0.7, 1e-5, 5.35097, 5.41327),
    (100, 10, 1.5, 1e-7, 1.10172, 1.15020),
    (1000, 1, 0.5, 1e-5, 3.12551, 3.14607),
    (8, 2, 1.2, 1e-6, 2.58844, 2.64567),
    (200, 2, 1.0, 1e-8, 1.07029, 1.11022),
]


@pytest.mark.parametrize(("bins", "passes", "noise", "delta", "lower", "upper"), TABLE)
def test_passes_cost_what_another_library_computes(bins, passes, noise, delta, lower, upper):
    ours = cost({BallsInBinsGaussian(bins, noise): bins * passes}, delta)
    assert lower <= ours <= upper
    assert ours < cost({PoissonGaussian(1 / bins, noise): bins * passes}, delta)


def test_a_coarser_grid_costs_more_and_never_less(monkeypatch):
    fine, fewer = (pass_directions(bins, 1.0, 1e-12) for bins in (30, 1000))
    for name, coarse in (("WIDTH", 16), ("MOST_VALUES", 50)):
        with monkeypatch.context() as patch:
            patch.setattr(balls_in_bins, name, coarse)
            coarser = pass_directions(30, 1.0, 1e-12), pass_directions(1000, 1.0, 1e-12)
        for one, other in zip((*fine, *fewer), (*coarser[0], *coarser[1]), strict=True):
            for epsilon in (0.01, 0.3, 2.0):
                less, more = excess_of(one, epsilon), excess_of(other, epsilon)
                assert less * (1 - 1e-9) <= more <= less * 3 + 1e-12


@pytest.mark.parametrize("passes", [1, 3])
def test_one_bin_is_a_batch_of_all_records_and_little_noise_tells_the_bin(passes):
    for event in (BallsInBinsGaussian(1, 2.0), BallsInBinsGaussian(20, 0.04)):
        assert cost({event: event.bins * passes}, 1e-6) == cost({Gaussian(event.noise_multiplier): passes}, 1e-6)
    assert 0.9 * cost({Gaussian(0.06): 1}, 1e-6) < cost({BallsInBinsGaussian(20, 0.06): 20}, 1e-6)
    assert cost({BallsInBinsGaussian(20, 0.06): 20}, 1e-6) < cost({Gaussian(0.06): 1}, 1e-6)


@pytest.mark.parametrize("bins", [7, 10**6])
@pytest.mark.parametrize("noise", [0.5, 1e4])
def test_extreme_passes_have_a_complete_distribution(bins, noise):
    directions_of.cache_clear()
    for one in directions_of(BallsInBinsGaussian(bins, noise), 1e-15):
        assert 1 <= one.masses.sum() + one.lost <= 1 + 1e-4
        assert (one.masses * np.exp(-one.losses)).sum() <= 1 + 1e-4
    assert cost({BallsInBinsGaussian(bins, noise): bins}, 1e-300) > 0


@pytest.mark.parametrize(
    ("passes", "rate", "noise", "lower", "upper"),
    [({10: 20}, 0.1, 1.0, 2.79896, 2.86305), ({6: 6, 7: 14}, 0.15, 1.5, 2.03393, 2.10918)],
)
def test_passes_over_parts_of_twenty_batches_cost_what_another_library_computes(passes, rate, noise, lower, upper):
    allocated = {BallsInBinsGaussian(bins, noise): steps for bins, steps in passes.items()}
    assert lower <= cost(allocated, 1e-5) <= upper
    assert cost(allocated, 1e-5) < cost({PoissonGaussian(rate, noise): 20}, 1e-5)
