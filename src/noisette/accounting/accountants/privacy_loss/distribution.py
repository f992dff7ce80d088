"""The privacy loss of one release as a random variable with finitely many values, never less than the exact one."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
from typing import NamedTuple

import numpy as np

# The spacing of floating-point numbers at 1, by which one rounded operation can be wrong.
ROUNDING = 2.0**-52


@dataclass(frozen=True, eq=False)
class LossDistribution:
    """The values of the privacy loss in one direction, with their probabilities under the first of the two outputs.

    The privacy loss is the logarithm of the density of the first output over that of the second. Delta is the mean of
    ``max(0, 1 - exp(epsilon - loss))``, which increases with the loss. So probability may only be moved to larger
    losses, and may only be rounded upwards.

    Args:
        losses: the finite values.
        masses: their probabilities, above 0.
        lost: the probability of an infinite loss.

    Guarantee: delta is not below that of the exact distribution, for any epsilon, and after composition with any other
    distributions.
    """

    losses: np.ndarray
    masses: np.ndarray
    lost: float = 0.0

    @cached_property
    def uncertainty(self) -> float:
        """A bound on the relative error by which a sum over all values may be wrong through rounding."""
        return ROUNDING * (len(self.losses) + 16)

    def tilted(self, c: float) -> Tilted:
        """The distribution with density ``exp(c * loss)``, scaled to 1."""
        exponents = c * self.losses
        top = float(exponents.max())
        weights = self.masses * np.exp(exponents - top)
        total = float(weights.sum())
        weights /= total
        mean = float(weights @ self.losses)
        return Tilted(top + np.log(total), weights, mean, float(weights @ (self.losses - mean) ** 2))

    def with_value(self, loss: float, mass: float) -> LossDistribution:
        """The distribution with one more value, also ``inf``."""
        if loss == np.inf:
            return LossDistribution(self.losses, self.masses, min(1.0, self.lost + mass))
        return self.joined_with(LossDistribution(np.array([loss]), np.array([mass]))) if mass > 0 else self

    def joined_with(self, other: LossDistribution) -> LossDistribution:
        """The values of both, each with its probability."""
        return LossDistribution(
            np.concatenate((self.losses, other.losses)),
            np.concatenate((self.masses, other.masses)),
            min(1.0, self.lost + other.lost),
        )

    def scaled(self, probability: float) -> LossDistribution:
        """The part of a mixture that this distribution has, where it is drawn with this probability."""
        return LossDistribution(self.losses, self.masses * probability, self.lost * probability)


class Tilted(NamedTuple):
    """A tilted distribution: logarithm of the mean of ``exp(c * loss)``, weights that add up to 1, mean, variance."""

    log_mean: float
    weights: np.ndarray
    mean: float
    variance: float


class Directions(NamedTuple):
    """The loss when a record is added, and when it is removed."""

    added: LossDistribution
    removed: LossDistribution


def on_points(points: np.ndarray, masses: np.ndarray, upper_shares: np.ndarray) -> LossDistribution:
    """The distribution after each interval of losses has given its probability to its two ends.

    Args:
        points: increasing losses, the ends of the intervals.
        masses: probabilities of the intervals, not below the exact ones.
        upper_shares: the share of each probability that the upper end gets, not below the exact one.

    Guarantee: with the exact shares the mean of ``exp(-loss)`` stays the same in every interval. Delta after
    composition is the mean of a convex function of ``exp(-loss)``, so it does not decrease.

    Source: Doroshenko et al. 2022, "Connect the Dots", in terms of probabilities.
    """
    shares = np.clip(upper_shares, 0.0, 1.0)
    probabilities = np.zeros(len(points))
    probabilities[:-1] += masses * (1 - shares)
    probabilities[1:] += masses * shares
    kept = probabilities > 0
    return LossDistribution(points[kept], probabilities[kept] * (1 + 2 * ROUNDING))
