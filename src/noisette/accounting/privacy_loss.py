"""Distributions of the privacy loss of single releases."""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cached_property, lru_cache
from typing import NamedTuple

import numpy as np
import scipy  # scipy.special, a fifth of a second, is imported on first use

from noisette.accounting.events import (
    MOST_AMOUNT,
    BallsInBinsGaussian,
    DiscreteGaussian,
    DpAmount,
    Event,
    FixedSizeGaussian,
    GroupPrivacy,
    Laplace,
    PoissonGaussian,
    RepeatAndSelect,
    Sampled,
    TruncatedPoissonGaussian,
    UserLevel,
    ZcdpAmount,
)
from noisette.accounting.interface import resolved_noise, unsupported

# The standard Gaussian is evaluated up to this many standard deviations; the mass beyond is 1.5e-23.
MIXTURE_REACH = 10.0

# The most terms of one integral. A group that would need more is treated as if it were in every batch: an upper bound.
MOST_TERMS = 500_000

# Above the rounding error of the logarithm of such an integral, which is 9e-16 where it should be 0.
LOG_ROUNDING = 1e-14


@dataclass(frozen=True, eq=False)
class Mixture:
    """The standard Gaussian, and the same Gaussian moved by one of these shifts with these log probabilities.

    The pair dominates a release whose batch up to k records of a group can enter, because each of them moves the sum
    by at most its sensitivity.

    Source: Choquette-Choo et al. 2024, "Privacy Amplification for Matrix Mechanisms", Corollary 4.7.

    >>> from noisette.accounting.events import PoissonGaussian
    >>> np.exp(Mixture.of(GroupPrivacy(PoissonGaussian(0.5, 4.0), records=2)).log_probabilities)
    array([0.25, 0.5 , 0.25])
    """

    log_probabilities: np.ndarray
    shifts: np.ndarray

    @classmethod
    def of(cls, event: Sampled | GroupPrivacy) -> Mixture:
        """The mixture of a release: the number of the group's records in the batch is binomial; k is 1 without one."""
        release, k = (event.event, event.records) if isinstance(event, GroupPrivacy) else (event, 1)
        i = np.arange(k + 1)
        log_weights = log_binomial(i, k, release.sampling_rate)
        return cls(log_weights - _log_sum_exp(log_weights), i / resolved_noise(release))

    def loss(self, u: np.ndarray) -> np.ndarray:
        """ln of the mixture's density over that of the Gaussian, which increases with u."""
        total = np.full_like(u, -np.inf)
        for log_p, at in self._components():
            np.logaddexp(total, log_p + at * u - at**2 / 2, out=total)
        return total

    def divergence(self, order: float) -> float:
        """Rényi divergence of this order, the larger of both directions."""
        in_every_batch = float(order * self.shifts[-1] ** 2 / 2)
        sampled = max(self.log_mean_power(power) for power in (order, 1 - order)) + LOG_ROUNDING
        return min(sampled / (order - 1), in_every_batch)

    def _components(self) -> Iterator[tuple[float, float]]:
        return zip(self.log_probabilities.tolist(), self.shifts.tolist(), strict=True)

    def log_mean_power(self, power: float) -> float:
        """ln of the mean of exp(power * loss) over the Gaussian; ``inf`` where the sum would be too long.

        A trapezoidal sum. It converges exponentially, because the density ratio has no complex zero closer to the real
        line than pi over the spacing of the shifts: the probabilities of a binomial, multiplied by the factors
        exp(-shift^2 / 2), are the coefficients of a polynomial whose zeros are all negative. The step follows from
        that distance and from how fast the power grows off the line.
        """
        spacing, largest = float(self.shifts[1]), float(self.shifts[-1])
        down, up = max(-power, 0) * largest, max(power, 0) * largest
        flat = math.sqrt(MIXTURE_REACH**2 + 2 * max(-power, 0) * -self.log_probabilities[0])
        start, stop = -min(down + MIXTURE_REACH, flat), up + MIXTURE_REACH
        step = min(0.5, 0.12 / spacing) / math.sqrt(1 + down * spacing / 4)
        points = (stop - start) / step + 1
        if points * len(self.log_probabilities) > MOST_TERMS:
            return math.inf
        u = start + step * np.arange(math.ceil(points))
        return _log_sum_exp(power * self.loss(u) - u**2 / 2) + math.log(step / math.sqrt(2 * math.pi))


def log_binomial(k: np.ndarray, n: int, q: float) -> np.ndarray:
    """ln of the probabilities of k successes in n trials."""
    of_subsets = scipy.special.gammaln(n + 1) - scipy.special.gammaln(k + 1) - scipy.special.gammaln(n - k + 1)
    return of_subsets + scipy.special.xlogy(k, q) + scipy.special.xlog1py(n - k, -q)


def _log_sum_exp(logs: np.ndarray) -> float:
    return float(np.asarray(scipy.special.logsumexp(logs)))


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


# Points of the integral over the Gaussian, and how far they reach.
POINTS, REACH = 4001, 12.0


def poisson_rate(bins: int, noise_multiplier: float, failure: float) -> float:
    """A sampling rate of Poisson batches that cost no less, except with this probability for each step.

    Let Y_j be the ratio of the densities of step j with and without the record in its batch. After steps 1 to i - 1 the
    record is in batch i with probability

        1 / (Y_1 + ... + Y_(i-1) + bins - i + 1),

    whatever was released before. So the pass is a sequence of Poisson releases of at most the rate
    1 / (bins (1 - g)), unless a sum of Y_j falls short of its mean by more than g * bins. Without the record the Y_j
    are independent with mean 1. With it they are larger, so this is less likely. By Doob's inequality the probability
    is at most E[exp(x (1 - Y))]^bins exp(-x g bins), for every x > 0.

    Args:
        bins: the batches of one pass.
        noise_multiplier: standard deviation of the noise in units of the sensitivity.
        failure: the probability, which is added to delta once for each step.

    Source: Feldman and Shenfeld 2025, "Privacy amplification by random allocation", bound their scheme the same way.

    >>> round(1000 * poisson_rate(1000, noise_multiplier=2.0, failure=1e-15), 2)
    1.15
    """
    u = np.linspace(-REACH, REACH, POINTS)
    weights = np.exp(-(u**2) / 2)
    weights /= weights.sum()
    ratio = np.exp(np.minimum(u / noise_multiplier - noise_multiplier**-2 / 2, 700.0))
    shortfalls = []
    for x in np.geomspace(1e-3, 1e3, 200):
        # a sum over the density at equal distances has an error far below the one added
        log_mean = x + math.log(float(weights @ np.exp(-x * ratio)) + 1e-14)
        shortfalls.append((log_mean + math.log(1 / failure) / bins) / x)
    kept = 1 - float(min(shortfalls))
    return min(1.0, 1 / (bins * kept)) if kept > 0 else 1.0


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
    kept = masses > 0
    either = LossDistribution(np.array([epsilon, -epsilon])[kept], masses[kept], delta)
    return Directions(either, either)


def full_batch_probability(event: TruncatedPoissonGaussian) -> float:
    """The probability, rounded upwards, that the batch is full without the record, in a data set of the largest size.

    >>> from noisette.accounting import TruncatedPoissonGaussian
    >>> round(full_batch_probability(TruncatedPoissonGaussian(0.5, 1.0, largest_batch=2, most_records=3)), 3)
    0.5
    """
    if event.largest_batch > event.most_records:
        return 0.0
    more = event.most_records - event.largest_batch + 1
    return min(1.0, float(scipy.special.betainc(event.largest_batch, more, event.sampling_rate)) * (1 + 1e-9))


_NEVER_KEPT = LossDistribution(np.array([0.0]), np.array([1e-300]), 1.0)


def is_known_by_divergences(event: Event) -> bool:
    """Whether only the Rényi divergences of this event are known, not the distribution of its privacy loss."""
    if isinstance(event, DiscreteGaussian):
        return event.noise_multiplier > MOST_DISCRETE_NOISE
    return isinstance(event, RepeatAndSelect | ZcdpAmount)


@lru_cache(maxsize=128)
def directions_of(event: Event, tail: float) -> Directions:
    """The privacy loss of an event, when a record is added and when it is removed.

    Args:
        event: any event that is not over all records, and that is not known by divergences alone.
        tail: the most probability that may count as an infinite loss.

    Raises:
        UnsupportedEventError: the event is of a kind that this package does not define.
    """
    match event:
        case Laplace() | DiscreteGaussian() if resolved_noise(event) == 0:
            return Directions(_NEVER_KEPT, _NEVER_KEPT)
        case DpAmount() if event.epsilon >= MOST_AMOUNT:
            return Directions(_NEVER_KEPT, _NEVER_KEPT)
        case PoissonGaussian():
            return _sampled(event, tail)
        case GroupPrivacy() | UserLevel():
            return _sampled(GroupPrivacy(event.event, event.records), tail)
        case FixedSizeGaussian():
            return _replaced(event, tail)
        case TruncatedPoissonGaussian():
            return _truncated(event, tail)
        case BallsInBinsGaussian():
            rate = poisson_rate(event.bins, max(resolved_noise(event), 1e-3), tail)
            added, removed = _sampled(PoissonGaussian(rate, event.noise_multiplier), tail)
            return Directions(added.with_value(math.inf, tail), removed.with_value(math.inf, tail))
        case Laplace():
            return laplace_directions(event.noise_multiplier)
        case DiscreteGaussian():
            return discrete_gaussian_directions(event.noise_multiplier, tail)
        case DpAmount():
            return amount_directions(event.epsilon, event.delta)
        case _:
            raise unsupported(event, "pld")


def _sampled(event: Sampled | GroupPrivacy, tail: float) -> Directions:
    release = event.event if isinstance(event, GroupPrivacy) else event
    if resolved_noise(release) == 0:
        return Directions(_NEVER_KEPT, _NEVER_KEPT)
    return mixture_directions(Mixture.of(event), tail)


def _replaced(event: FixedSizeGaussian, tail: float) -> Directions:
    """One record replaced by another: twice the clipping norm, with the probability that it is in the batch."""
    release = PoissonGaussian(event.batch_size / event.size, resolved_noise(event) / 2 or 1e-300)
    if resolved_noise(release) == 0:
        return Directions(_NEVER_KEPT, _NEVER_KEPT)
    return replaced_directions(Mixture.of(release), tail)


def _truncated(event: TruncatedPoissonGaussian, tail: float) -> Directions:
    """A batch that is not full grows by the record; a full one exchanges another record for it, at most twice the norm.

    Whether the batch is full depends on the other records alone. Knowing it can only help an attacker.
    """
    full = full_batch_probability(event)
    grows = _sampled(PoissonGaussian(event.sampling_rate, event.noise_multiplier), tail)
    if full == 0:
        return grows
    exchanges = _sampled(PoissonGaussian(event.sampling_rate, event.noise_multiplier / 2), tail)
    parts = zip(grows, exchanges, strict=True)
    return Directions(*(one.scaled(1 - full * (1 - 2e-9)).joined_with(other.scaled(full)) for one, other in parts))
