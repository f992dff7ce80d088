"""The privacy loss of sums with Gaussian noise: one output is a Gaussian, the other a mixture of moved ones."""

from __future__ import annotations

import math

import numpy as np
import scipy  # scipy.special, a fifth of a second, is imported on first use

from noisette.accounting.accountants.group_privacy import Mixture
from noisette.accounting.accountants.privacy_loss.distribution import (
    ROUNDING,
    Directions,
    LossDistribution,
    on_points,
)

# Points per standard deviation of the noise, and per standard deviation of the privacy loss.
POINTS_PER_DEVIATION = 50
# The most intervals of one distribution. A coarser grid gives a larger cost, never a smaller one.
MOST_INTERVALS = 8_000


def mixture_directions(mixture: Mixture, tail: float) -> Directions:
    """The privacy loss between a standard Gaussian and a mixture of moved ones.

    Args:
        mixture: log probabilities of the shifts, of which the first is 0, and the shifts.
        tail: the most probability of one output that may count as an infinite loss.
    """
    likely, dropped = _likely(mixture, tail)
    grid = _Grid(likely, dropped, _points(likely, float(scipy.special.ndtri(tail)), tail))
    below, above = scipy.special.ndtr(grid.x[0] - likely.shifts), scipy.special.ndtr(likely.shifts - grid.x[-1])
    removed = grid.removed().with_value(grid.raised[0], _up(grid.probabilities @ below))
    added = grid.added().with_value(-grid.lowered[-1], _up(scipy.special.ndtr(-grid.x[-1])))
    return Directions(
        added.with_value(math.inf, _up(scipy.special.ndtr(grid.x[0]))),
        removed.with_value(math.inf, _up(grid.probabilities @ above) + dropped),
    )


def replaced_directions(mixture: Mixture, tail: float) -> Directions:
    """The privacy loss when one record is replaced by another, where the mixture has the shifts 0 and mu.

    For an epsilon above 0 the pair is the mixture and the Gaussian, below 0 the Gaussian and the mixture, and what is
    left is a loss of 0. It is the same in both directions.

    Source: Zhu, Dong and Wang 2022, "Optimal Accounting of Differential Privacy via Characteristic Function",
    Theorem 11.
    """
    middle = float(mixture.shifts[1]) / 2  # the loss is 0 where both densities are equal
    grid = _Grid(mixture, 0.0, _points(mixture, middle, tail))
    equal = float(grid.probabilities[0]) * math.erf(middle / math.sqrt(2))
    either = (
        grid.removed()
        .joined_with(grid.added())
        .with_value(0.0, _up(equal))
        .with_value(-grid.lowered[-1], _up(scipy.special.ndtr(-grid.x[-1])))
        .with_value(math.inf, _up(grid.probabilities @ scipy.special.ndtr(mixture.shifts - grid.x[-1])))
    )
    return Directions(either, either)


def _likely(mixture: Mixture, tail: float) -> tuple[Mixture, float]:
    """The mixture without shifts that together have at most this probability, and their probability.

    Without them the mixture's density is smaller, so the loss in direction "added" is larger; in direction "removed"
    what they would have produced is counted as an infinite loss.
    """
    kept = mixture.log_probabilities > math.log(tail / len(mixture.shifts))
    dropped = math.fsum(np.exp(mixture.log_probabilities[~kept]))
    return Mixture(mixture.log_probabilities[kept], mixture.shifts[kept]), dropped * (1 + 64 * ROUNDING)


def _points(mixture: Mixture, low: float, tail: float) -> np.ndarray:
    """Points between which nearly all mass of both outputs lies; dense for large shifts, where the loss is steep."""
    probabilities = np.exp(mixture.log_probabilities)
    rare = np.minimum(0.5, tail / len(probabilities) / np.maximum(probabilities, 1e-300))
    high = max(float(np.max(mixture.shifts - scipy.special.ndtri(rare))), -float(scipy.special.ndtri(tail)))
    steepest = float(mixture.shifts[probabilities > tail].max())
    intervals = math.ceil((high - low) * POINTS_PER_DEVIATION * max(1.0, steepest))
    return np.linspace(low, high, min(max(intervals, 2), MOST_INTERVALS) + 1)


class _Grid:
    """A mixture of Gaussians on a grid of points: losses at the points, probabilities of the intervals between them."""

    def __init__(self, mixture: Mixture, dropped: float, x: np.ndarray) -> None:
        self.x = x
        self.probabilities = np.exp(mixture.log_probabilities)
        self._still_probability = float(self.probabilities[mixture.shifts == 0].sum())
        self.loss = _loss(mixture, dropped, x)
        moved = mixture.shifts > 0
        self._moved = [*zip(mixture.log_probabilities[moved].tolist(), mixture.shifts[moved].tolist(), strict=True)]
        self._still = _LogMass.of(x, 0.0)
        self._weight_error = _weight_error(mixture, x)
        # exp(loss) at the right end of each interval, over that at its left end, less 1; huge values may be too small,
        # since shares depend on its inverse
        self._growth = np.zeros(len(x) - 1)
        for log_p, shift in self._moved:
            step = np.minimum(shift * np.diff(x), 600.0)
            self._growth += np.exp(log_p + _exponent(shift, x[:-1]) - self.loss[:-1]) * np.expm1(step)

    def removed(self) -> LossDistribution:
        """The loss under the mixture: it grows from left to right."""
        masses = self._still_probability * self._still.upper
        excess = np.zeros(len(self.x) - 1)
        for log_p, shift in self._moved:
            moved = _LogMass.of(self.x, shift)
            masses += math.exp(log_p) * moved.upper
            least = _exponent(shift, self.x[:-1]) + self._still.log
            error = moved.error + self._still.error + self._weight_error[:-1]
            excess += np.exp(log_p + moved.log) * _shrinkage(moved.log - least, error)
        shares = excess * (1 + self._growth) / np.maximum(self._growth * masses, 1e-300)
        above = 1 + 4 * self._weight_error[:-1]
        return on_points(self.raised, masses * above, shares * above)

    def added(self) -> LossDistribution:
        """The loss under the Gaussian: it falls from left to right."""
        masses = self._still.upper
        shares = np.zeros(len(self.x) - 1)
        for log_p, shift in self._moved:
            moved = _LogMass.of(self.x, shift)
            most = _exponent(shift, self.x[1:]) + self._still.log
            relative = np.exp(log_p + _exponent(shift, self.x[1:]) - self.loss[1:])
            error = moved.error + self._still.error + self._weight_error[1:]
            shares += relative * _shrinkage(most - moved.log, error)
        shares *= (1 + self._growth) / np.maximum(self._growth, 1e-300)
        shares *= 1 + 4 * self._weight_error[1:]
        return on_points(-self.lowered[::-1], masses[::-1], shares[::-1])

    @property
    def raised(self) -> np.ndarray:
        """The losses, rounded upwards."""
        return self.loss + self._loss_error

    @property
    def lowered(self) -> np.ndarray:
        """The losses, rounded downwards."""
        return self.loss - self._loss_error

    @property
    def _loss_error(self) -> np.ndarray:
        """A bound on the rounding error of the losses: that of the weights, as they enter the loss."""
        entering = np.zeros_like(self.x)
        for log_p, shift in self._moved:
            entering += np.exp(log_p + _exponent(shift, self.x) - self.loss)
        return 16 * ROUNDING * np.abs(self.loss) + self._weight_error * entering


class _LogMass:
    """Logarithms of a standard Gaussian's probabilities between neighbouring points, with a bound on their error."""

    def __init__(self, log: np.ndarray, error: np.ndarray) -> None:
        self.log, self.error = log, error

    @classmethod
    def of(cls, points: np.ndarray, shift: float) -> _LogMass:
        """For the points seen from this shift, whose subtraction is rounded too."""
        x = points - shift
        left, right = np.where(x[:-1] + x[1:] > 0, (-x[1:], -x[:-1]), (x[:-1], x[1:]))  # the nearer tail
        above, below = scipy.special.log_ndtr(right), scipy.special.log_ndtr(left)
        gap = np.maximum(above - below, 1e-300)
        log = above + np.log(-np.expm1(-gap))
        subtraction = (np.abs(points[-1]) + shift) * (np.abs(right) + 1 / np.diff(points))
        return cls(log, 16 * ROUNDING * (1 + np.abs(above) + np.abs(below) / np.minimum(gap, 1.0) + subtraction))

    @property
    def upper(self) -> np.ndarray:
        return np.exp(self.log + self.error)


def _weight_error(mixture: Mixture, x: np.ndarray) -> np.ndarray:
    """A bound on the relative rounding error of a shift's probability times its ratio of densities, at each point."""
    largest, count = float(mixture.shifts.max()), 1 + len(mixture.shifts)
    kept = mixture.log_probabilities[np.isfinite(mixture.log_probabilities)]
    binomial = float(np.abs(kept).max()) + count * math.log(count)  # logarithms of factorials were added
    return 16 * ROUNDING * (1 + binomial + largest * np.abs(x) + largest**2)


def _exponent(shift: float, x: np.ndarray) -> np.ndarray:
    """Logarithm of the density of a moved Gaussian over that of the one at 0."""
    return shift * x - shift**2 / 2


def _shrinkage(log_ratio: np.ndarray, error: np.ndarray) -> np.ndarray:
    """1 - exp(-log_ratio), rounded upwards by the error of the logarithm."""
    return -np.expm1(-np.maximum(log_ratio + error, 0.0))


def _loss(mixture: Mixture, dropped: float, x: np.ndarray) -> np.ndarray:
    """Logarithm of the mixture's density over that of the Gaussian; exact also where it is close to 0."""
    change = np.full_like(x, -dropped)
    with np.errstate(over="ignore"):
        for p, shift in zip(np.exp(mixture.log_probabilities), mixture.shifts, strict=True):
            change += p * np.expm1(_exponent(shift, x))
    near = np.abs(change) < 0.5
    loss = mixture.loss(x)
    loss[near] = np.log1p(change[near])
    return loss


def _up(probability: float) -> float:
    """A probability, rounded upwards."""
    return float(probability) * (1 + 64 * ROUNDING)
