"""The privacy loss of mechanisms other than Gaussian ones, in closed form."""

from __future__ import annotations

import math

import numpy as np

from noisette.accounting.accountants.privacy_loss.distribution import (
    ROUNDING,
    Directions,
    LossDistribution,
    on_points,
)

# The intervals of the privacy loss of Laplace noise.
INTERVALS = 500
# Above this noise the discrete Gaussian has more values than are quickly summed up. More values than these are joined.
MOST_DISCRETE_NOISE, MOST_VALUES = 1e5, 4000


def laplace_directions(noise_multiplier: float) -> Directions:
    """The privacy loss of Laplace noise of this scale: it has an upper and a lower end, each with its probability.

    Between the ends the density of the loss l is exp(l / 2 - r / 2) / 4, where r = 1 / noise_multiplier is the largest
    loss.
    """
    largest = 1 / noise_multiplier
    points = np.linspace(-largest, largest, INTERVALS + 1)
    step = 2 * largest / INTERVALS
    masses = 0.5 * np.exp((points[:-1] - largest) / 2) * math.expm1(step / 2) * (1 + 1e-12)
    upper_shares = np.full(INTERVALS, (1 + 1e-12) / (1 + math.exp(-step / 2)))
    points += 4 * ROUNDING * largest
    either = (
        on_points(points, masses, upper_shares)
        .with_value(points[-1], 0.5)
        .with_value(points[0], 0.5 * math.exp(-largest) * (1 + 1e-12))
    )
    return Directions(either, either)


def discrete_gaussian_directions(noise_multiplier: float, tail: float) -> Directions:
    """The privacy loss of one count with noise from the discrete Gaussian distribution: all its values are known.

    Many values are joined to intervals. In an interval of losses from a to b the mean of exp(-loss) fixes the share of
    the upper end: the mean of 1 - exp(a - loss), over 1 - exp(a - b).

    Args:
        noise_multiplier: the parameter sigma, at most 100,000.
        tail: the most probability that may count as an infinite loss.
    """
    reach = noise_multiplier * math.sqrt(-2 * math.log(tail)) + 2  # subgaussian with parameter sigma
    values = np.arange(-math.ceil(reach), math.ceil(reach) + 1)
    weights = np.exp(-((values / noise_multiplier) ** 2) / 2)
    masses = weights / weights.sum() * (1 + ROUNDING * (len(values) + 2 * reach**2 / noise_multiplier**2))
    losses = (1 - 2 * values[::-1]) / (2 * noise_multiplier**2)
    losses += 4 * ROUNDING * np.abs(losses)
    if len(losses) <= MOST_VALUES:
        kept = masses > 0
        either = LossDistribution(losses[kept], masses[kept], tail)
    else:
        first = np.arange(0, len(losses), math.ceil(len(losses) / MOST_VALUES))
        points = np.append(losses[first], losses[-1] + 1 / noise_multiplier**2)
        excess = masses * -np.expm1(np.repeat(points[:-1], np.diff(np.append(first, len(losses)))) - losses)
        joined = np.add.reduceat(masses, first)
        shares = np.add.reduceat(excess, first) / joined / -np.expm1(-np.diff(points))
        either = on_points(points, joined * (1 + 1e-12), shares * (1 + 1e-9)).with_value(math.inf, tail)
    return Directions(either, either)


def amount_directions(epsilon: float, delta: float) -> Directions:
    """The worst privacy loss of a release of which only its epsilon and delta are known.

    Source: Kairouz, Oh and Viswanath 2015, "The Composition Theorem for Differential Privacy", Theorem 3.3.
    """
    likely = 1 / (1 + math.exp(-epsilon))
    masses = np.array([(1 - delta) * likely, (1 - delta) * math.exp(-epsilon) * likely]) * (1 + 8 * ROUNDING)
    either = LossDistribution(np.array([epsilon, -epsilon]), masses[: 2 if masses[1] > 0 else 1], delta)
    return Directions(either, either)
