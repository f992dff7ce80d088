"""Distributions of the privacy loss of single releases."""

import math
from bisect import bisect_left
from dataclasses import dataclass
from functools import cached_property, lru_cache, partial, reduce
from typing import NamedTuple, Self

import numpy as np
import scipy  # scipy.special, a fifth of a second, is imported on first use

from noisette.accounting import events as kinds
from noisette.accounting.events import Event, OfSeveral, PoissonGaussian, Sampled, Supported, TruncatedPoissonGaussian
from noisette.accounting.interface import is_unbounded, resolved_noise, unsupported

MIXTURE_REACH = 10.0  # standard deviations up to which the Gaussian is evaluated; the mass beyond is 1.5e-23
# The most terms of one integral. A group that would need more is treated as if it were in every batch: an upper bound.
MOST_TERMS = 500_000
LOG_ROUNDING = 1e-14  # above the rounding error of the logarithm of such an integral, 9e-16 where it should be 0
ROUNDING = 2.0**-52  # the spacing of floating-point numbers at 1, by which one rounded operation can be wrong


@dataclass(frozen=True, eq=False)
class Mixture:
    """The standard Gaussian, and the same Gaussian moved by one of these shifts with these log probabilities.

    The pair dominates a release whose batch k records can enter at most: each moves the sum by its sensitivity or less.
    Source: Choquette-Choo et al. 2024, "Privacy Amplification for Matrix Mechanisms", Corollary 4.7.

    >>> np.exp(Mixture.of(kinds.GroupPrivacy(PoissonGaussian(0.5, 4.0), records=2)).log_probabilities)
    array([0.25, 0.5 , 0.25])
    """

    log_probabilities: np.ndarray
    shifts: np.ndarray

    @classmethod
    def of(cls, event: Sampled | OfSeveral) -> Self:
        """The mixture of a release: the number of the records of a group or user in the batch is binomial."""
        release, k = (event.event, event.records) if isinstance(event, OfSeveral) else (event, 1)
        i = np.arange(k + 1)
        log_weights = log_binomial(i, k, release.sampling_rate)
        return cls(log_weights - np.logaddexp.reduce(log_weights), i / resolved_noise(release.noise_multiplier))

    def loss(self, u: np.ndarray) -> np.ndarray:
        """ln of the mixture's density over that of the Gaussian, which increases with u."""
        total = np.full_like(u, -np.inf)
        for log_p, at in zip(self.log_probabilities.tolist(), self.shifts.tolist(), strict=True):
            np.logaddexp(total, log_p + at * u - at**2 / 2, out=total)
        return total

    def divergences(self, orders: np.ndarray) -> np.ndarray:
        in_every_batch = orders * self.shifts[-1] ** 2 / 2
        sampled = np.maximum(self.log_mean_powers(orders), self.log_mean_powers(1 - orders)) + LOG_ROUNDING
        return np.minimum(sampled / (orders - 1), in_every_batch)

    def log_mean_powers(self, powers: np.ndarray) -> np.ndarray:
        """ln of the mean of exp(power * loss) over the Gaussian, for each power but 0; ``inf`` where a sum is too long.

        Trapezoidal sums, with the same points for powers of about the same size. They converge exponentially, because
        the density ratio has no complex zero closer to the real line than pi over the spacing of the shifts: the
        probabilities of a binomial, multiplied by the factors exp(-shift^2 / 2), are the coefficients of a polynomial
        whose zeros are all negative. The step follows from that distance and from how fast the power grows off it.
        """
        spacing, largest = float(self.shifts[1]), float(self.shifts[-1])
        logs = np.full(len(powers), np.inf)
        sizes = np.sign(powers) * (1 + np.floor(np.log2(np.maximum(np.abs(powers), 1))))
        steps = min(0.5, 0.12 / spacing) / np.sqrt(1 + np.maximum(-powers, 0) * largest * spacing / 4)
        flat = np.sqrt(MIXTURE_REACH**2 + 2 * np.maximum(-powers, 0) * -self.log_probabilities[0])
        starts = -np.minimum(np.maximum(-powers, 0) * largest + MIXTURE_REACH, flat)
        stops = np.maximum(powers, 0) * largest + MIXTURE_REACH
        few = ((stops - starts) / steps + 1) * len(self.shifts) <= MOST_TERMS
        for size in np.unique(sizes[few]):
            same = few & (sizes == size)
            step = steps[same].min()
            u = np.arange(starts[same].min(), stops[same].max() + step, step)
            exponents = np.outer(powers[same], self.loss(u)) - u**2 / 2
            logs[same] = scipy.special.logsumexp(exponents, axis=1) + math.log(step / math.sqrt(2 * math.pi))
        return logs


def log_binomial(k: np.ndarray, n: int, q: float) -> np.ndarray:
    """ln of the probabilities of k successes in n trials."""
    of_subsets = scipy.special.gammaln(n + 1) - scipy.special.gammaln(k + 1) - scipy.special.gammaln(n - k + 1)
    return of_subsets + scipy.special.xlogy(k, q) + scipy.special.xlog1py(n - k, -q)


class Tilted(NamedTuple):
    """A tilted distribution: logarithm of the mean of ``exp(c * loss)``, weights that add up to 1, mean, variance."""

    log_mean: float
    weights: np.ndarray
    mean: float
    variance: float


@dataclass(frozen=True, eq=False)
class LossDistribution:
    """The values of the privacy loss in one direction, with their probabilities under the first of the two outputs.

    The privacy loss is the logarithm of the density of the first output over that of the second. Delta is the mean of
    ``max(0, 1 - exp(epsilon - loss))``, which increases with the loss. So probability may only be moved to larger
    losses, and may only be rounded upwards.

    ``losses`` are the finite values, ``masses`` their probabilities, above 0, and ``lost`` that of an infinite loss.
    Guarantee: delta is not below that of the exact distribution, for any epsilon, and after any composition.
    """

    losses: np.ndarray
    masses: np.ndarray
    lost: float = 0.0

    @cached_property
    def uncertainty(self) -> float:
        """A bound on the relative error by which a sum over all values may be wrong through rounding."""
        return ROUNDING * (len(self.losses) + 16)

    def tilted(self, c: float) -> Tilted:
        exponents = c * self.losses
        top = float(exponents.max())
        weights = self.masses * np.exp(exponents - top)
        total = float(weights.sum())
        weights /= total
        mean = float(weights @ self.losses)
        return Tilted(top + np.log(total), weights, mean, float(weights @ (self.losses - mean) ** 2))

    def with_value(self, loss: float, mass: float) -> Self:
        """With one more value, which may be ``inf``."""
        if loss == np.inf:
            return type(self)(self.losses, self.masses, min(1.0, self.lost + mass))
        return self.joined_with(type(self)(np.array([loss]), np.array([mass]))) if mass > 0 else self

    def joined_with(self, other: Self) -> Self:
        losses, masses = np.concatenate((self.losses, other.losses)), np.concatenate((self.masses, other.masses))
        return type(self)(losses, masses, min(1.0, self.lost + other.lost))

    def scaled(self, probability: float) -> Self:
        return type(self)(self.losses, self.masses * probability, self.lost * probability)


class Directions(NamedTuple):
    """The loss when a record is added, and when it is removed."""

    added: LossDistribution
    removed: LossDistribution


def on_points(points: np.ndarray, masses: np.ndarray, upper_shares: np.ndarray) -> LossDistribution:
    """The distribution after each interval of losses has given its probability to its two ends.

    Neither ``masses``, the probabilities, nor the shares of them that the upper ends get are below the exact ones.

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


POINTS_PER_DEVIATION = 50  # of the noise, and of the privacy loss
MOST_INTERVALS = 8_000  # of one distribution; a coarser grid gives a larger cost, never a smaller one


def mixture_directions(mixture: Mixture, tail: float) -> Directions:
    """The privacy loss between a standard Gaussian and a mixture of moved ones, of which the first shift is 0.

    Of one output the probability ``tail`` may count as an infinite loss, here and below.
    """
    likely, dropped = _likely(mixture, tail)
    grid = _Grid(likely, dropped, _points(likely, float(scipy.special.ndtri(tail)), tail))
    below, above = scipy.special.ndtr(grid.x[0] - likely.shifts), scipy.special.ndtr(likely.shifts - grid.x[-1])
    removed = grid.removed.with_value(grid.loss[0] + grid.error[0], _up(grid.probabilities @ below))
    added = grid.added.with_value(grid.error[-1] - grid.loss[-1], _up(scipy.special.ndtr(-grid.x[-1])))
    return Directions(
        added.with_value(math.inf, _up(scipy.special.ndtr(grid.x[0]))),
        removed.with_value(math.inf, _up(grid.probabilities @ above) + dropped),
    )


def pair_of_replaced(event: kinds.FixedSizeGaussian) -> PoissonGaussian:
    """One record replaced by another: twice the clipping norm, with the probability that it is in the batch."""
    return PoissonGaussian(event.batch_size / event.size, resolved_noise(event.noise_multiplier) / 2)


def replaced_loss(mixture: Mixture, tail: float) -> LossDistribution:
    """The privacy loss in either direction when a record is replaced, where the mixture has the shifts 0 and mu.

    For an epsilon above 0 the pair is mixture and Gaussian, below 0 Gaussian and mixture, and the rest is a loss of 0.
    Source: Zhu, Dong and Wang 2022, "Optimal Accounting [...] via Characteristic Function", Theorem 11.
    """
    middle = float(mixture.shifts[1]) / 2  # the loss is 0 where both densities are equal
    grid = _Grid(mixture, 0.0, _points(mixture, middle, tail))
    equal = float(grid.probabilities[0]) * math.erf(middle / math.sqrt(2))
    return (
        grid.removed.joined_with(grid.added)
        .with_value(0.0, _up(equal))
        .with_value(grid.error[-1] - grid.loss[-1], _up(scipy.special.ndtr(-grid.x[-1])))
        .with_value(math.inf, _up(grid.probabilities @ scipy.special.ndtr(mixture.shifts - grid.x[-1])))
    )


def exchanged_loss(mixture: Mixture, tail: float) -> LossDistribution:
    """The same where the record is in a Poisson batch: the pair is the mixture and its mirror image of shift -mu.

    Source: Lebeda et al. 2024, "Avoiding Pitfalls for Privacy Accounting of Subsampled Mechanisms under Composition".
    """
    x = _points(mixture, float(scipy.special.ndtri(tail)), tail)
    one = _Grid(mixture, 0.0, x)
    other = _Grid(Mixture(mixture.log_probabilities, -mixture.shifts), 0.0, x)
    losses = one.loss - other.loss, one.error + other.error
    means = one.means - other.means, one.mean_errors + other.mean_errors
    below, above = scipy.special.ndtr(x[0] - mixture.shifts), scipy.special.ndtr(mixture.shifts - x[-1])
    return (
        _connected(*losses, *means, one.masses)
        .with_value(losses[0][0] + losses[1][0], _up(one.probabilities @ below))
        .with_value(math.inf, _up(one.probabilities @ above))
    )


def _likely(mixture: Mixture, tail: float) -> tuple[Mixture, float]:
    """The mixture without shifts that together have at most this probability, and their probability.

    So its density is smaller, and the loss "added" larger; "removed" what they would have produced is an infinite loss.
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
    """A mixture on a grid: losses at the points; probabilities between them, and means: ln of their ratio."""

    def __init__(self, mixture: Mixture, dropped: float, x: np.ndarray) -> None:
        self.x, self.probabilities = x, np.exp(mixture.log_probabilities)
        uncertain = _weight_error(mixture, x)
        still, moved = LogMass(x, 0.0), [LogMass(x, shift) for shift in mixture.shifts.tolist()]
        at_points = [(shift * x - shift**2 / 2, uncertain) for shift in mixture.shifts.tolist()]
        between = [(one.log - still.log, one.error + still.error + uncertain[1:] + uncertain[:-1]) for one in moved]
        self.loss, self.error = _mean(mixture, dropped, at_points)
        self.means, self.mean_errors = _mean(mixture, dropped, between)
        self.masses, self.still = np.exp(still.log + still.error + self.means + self.mean_errors), still.upper

    @property
    def removed(self) -> LossDistribution:
        """The loss under the mixture: it grows from left to right."""
        return _connected(self.loss, self.error, self.means, self.mean_errors, self.masses)

    @property
    def added(self) -> LossDistribution:
        """The loss under the Gaussian: it falls from left to right."""
        parts = (-self.loss, self.error, -self.means, self.mean_errors, self.still)
        return _connected(*(part[::-1] for part in parts))


def _connected(
    losses: np.ndarray, errors: np.ndarray, means: np.ndarray, mean_errors: np.ndarray, masses: np.ndarray
) -> LossDistribution:
    """The distribution on increasing losses of which each interval has its probability, and a mean of exp(-loss)."""
    raised = losses + errors
    widths = -np.expm1(-np.diff(raised))
    excess = -np.expm1(-np.maximum(means + mean_errors - raised[:-1], 0.0))
    return on_points(raised, masses, np.divide(excess, widths, out=np.ones(len(widths)), where=widths > excess))


def _mean(mixture: Mixture, dropped: float, logs: list[tuple[np.ndarray, np.ndarray]]) -> tuple[np.ndarray, np.ndarray]:
    """ln of the mixture's mean of exponentials, exact also where it is close to 0, and a bound on its error."""
    change, mean = np.full_like(logs[0][0], -dropped), np.full_like(logs[0][0], -np.inf)
    for log_p, (log, _) in zip(mixture.log_probabilities.tolist(), logs, strict=True):
        with np.errstate(over="ignore"):
            change += math.exp(log_p) * np.expm1(log)
        np.logaddexp(mean, log_p + log, out=mean)
    near = np.abs(change) < 0.5
    mean[near] = np.log1p(change[near])
    error = 16 * ROUNDING * np.abs(mean)
    for log_p, shift, (log, uncertain) in zip(mixture.log_probabilities.tolist(), mixture.shifts, logs, strict=True):
        if shift:
            error += np.exp(log_p + log - mean) * uncertain
    return mean, error


class LogMass:
    """Logarithms of a Gaussian's probabilities between neighbouring points, seen from a shift, and their error."""

    def __init__(self, points: np.ndarray, shift: float) -> None:
        x = points - shift
        left, right = np.where(x[:-1] + x[1:] > 0, (-x[1:], -x[:-1]), (x[:-1], x[1:]))  # the nearer tail
        above, below = scipy.special.log_ndtr(right), scipy.special.log_ndtr(left)
        gap = np.maximum(above - below, 1e-300)
        self.log = above + np.log(-np.expm1(-gap))
        subtraction = (np.abs(points[-1]) + abs(shift)) * (np.abs(right) + 1 / np.diff(points))
        self.error = 16 * ROUNDING * (1 + np.abs(above) + np.abs(below) / np.minimum(gap, 1.0) + subtraction)

    @property
    def upper(self) -> np.ndarray:
        return np.exp(self.log + self.error)


def _weight_error(mixture: Mixture, x: np.ndarray) -> np.ndarray:
    """A bound on the relative rounding error of a shift's probability times its ratio of densities, at each point."""
    largest, count = float(np.abs(mixture.shifts).max()), 1 + len(mixture.shifts)
    kept = mixture.log_probabilities[np.isfinite(mixture.log_probabilities)]
    binomial = float(np.abs(kept).max()) + count * math.log(count)  # logarithms of factorials were added
    return 16 * ROUNDING * (1 + binomial + largest * np.abs(x) + largest**2)


def _up(probability: float) -> float:
    return float(probability) * (1 + 64 * ROUNDING)


INTERVALS = 500  # of the privacy loss of Laplace noise
# Above this noise the discrete Gaussian has more values than are quickly summed up. More values than these are joined.
MOST_DISCRETE_NOISE, MOST_VALUES = 1e5, 4000


def laplace_loss(noise_multiplier: float) -> LossDistribution:
    """The privacy loss in either direction of Laplace noise of this scale. Its two ends have their own probabilities.

    Between them the density of the loss l is exp(l / 2 - r / 2) / 4, where r = 1 / noise_multiplier is the largest.
    """
    largest = 1 / noise_multiplier
    points = np.linspace(-largest, largest, INTERVALS + 1)
    step = 2 * largest / INTERVALS
    masses = 0.5 * np.exp((points[:-1] - largest) / 2) * math.expm1(step / 2) * (1 + 1e-12)
    upper_shares = np.full(INTERVALS, (1 + 1e-12) / (1 + math.exp(-step / 2)))
    points += 4 * ROUNDING * largest
    either = on_points(points, masses, upper_shares).with_value(points[-1], 0.5)
    return either.with_value(points[0], 0.5 * math.exp(-largest) * (1 + 1e-12))


def discrete_gaussian_loss(noise_multiplier: float, tail: float) -> LossDistribution:
    """The privacy loss in either direction of one count with discrete Gaussian noise: all its values are known.

    Many values are joined to intervals. In an interval of losses from a to b the mean of exp(-loss) fixes the share of
    the upper end: the mean of 1 - exp(a - loss), over 1 - exp(a - b).
    """
    reach = noise_multiplier * math.sqrt(-2 * math.log(tail)) + 2  # subgaussian with parameter sigma
    values = np.arange(-math.ceil(reach), math.ceil(reach) + 1)
    weights = np.exp(-((values / noise_multiplier) ** 2) / 2)
    masses = weights / weights.sum() * (1 + ROUNDING * (len(values) + 2 * reach**2 / noise_multiplier**2))
    losses = (1 - 2 * values[::-1]) / (2 * noise_multiplier**2)
    losses += 4 * ROUNDING * np.abs(losses)
    if len(losses) <= MOST_VALUES:
        return LossDistribution(losses[masses > 0], masses[masses > 0], tail)
    first = np.arange(0, len(losses), math.ceil(len(losses) / MOST_VALUES))
    points = np.append(losses[first], losses[-1] + 1 / noise_multiplier**2)
    excess = masses * -np.expm1(np.repeat(points[:-1], np.diff(np.append(first, len(losses)))) - losses)
    joined = np.add.reduceat(masses, first)
    shares = np.divide(np.add.reduceat(excess, first), joined, out=np.ones(len(joined)), where=joined > 0)
    shares = shares / -np.expm1(-np.diff(points)) * (1 + 1e-9)
    return on_points(points, joined * (1 + 1e-12), shares).with_value(math.inf, tail)


def amount_loss(epsilon: float, delta: float) -> LossDistribution:
    """The worst privacy loss in either direction of a release of which only its epsilon and delta are known.

    Source: Kairouz, Oh and Viswanath 2015, "The Composition Theorem for Differential Privacy", Theorem 3.3.
    """
    likely = 1 / (1 + math.exp(-epsilon))
    masses = np.array([(1 - delta) * likely, (1 - delta) * math.exp(-epsilon) * likely]) * (1 + 8 * ROUNDING)
    return LossDistribution(np.array([epsilon, -epsilon])[masses > 0], masses[masses > 0], delta)


# Where a batch is full more often than this, the number of records is divided at the others.
OFTEN_FULL = (0.01, 0.03, 0.1, 0.2, 0.3, 0.4, 0.5, 0.6, 0.7, 0.8, 0.87, 0.92, 0.95, 0.97, 0.985)


@dataclass(frozen=True)
class TruncatedCase:
    """A truncated batch of a data set whose number of records, without one, lies between two numbers.

    Without the record, its batch is full with a probability from ``least_full`` to ``most_full``. If it is not, the
    record enters at the sampling rate. If it is, the record is in the batch with a smaller probability, at most
    ``rate_if_full``, and then another one is not: the sum moves by twice the norm at most. As the batch is any subset
    of its size, this other one and the rest do not depend on how many records were left out. Whether the batch is full
    depends on the other records alone; knowing it can only help an attacker. More records fill a batch more often, and
    then leave the record out more often.
    Source: Ganesh et al. 2025, "Tighter Privacy Analysis for Truncated Poisson Sampling", for a known number of
    records. Neighbouring data sets have any number up to the declared one, so the worst of several cases counts.
    """

    event: TruncatedPoissonGaussian
    least_full: float
    most_full: float
    rate_if_full: float

    @classmethod
    def of(cls, event: TruncatedPoissonGaussian, fewest: int, most: int) -> Self:
        least, largest = (_full(event, others) for others in (fewest, most))
        rate = event.sampling_rate
        if least > 0:  # q E[B / (n + 1) | n >= B], where n other records were drawn, is a quotient of two tails
            more = scipy.special.betainc(event.largest_batch + 1, fewest + 1 - event.largest_batch, rate)
            rate = min(rate, event.largest_batch / (fewest + 1) * float(more) / least * (1 + 1e-9))
        return cls(event, least, min(1.0, largest), rate)

    @property
    def parts(self) -> list[tuple[float, PoissonGaussian]]:
        """Releases with their probabilities: not full, perhaps full (which costs as much as the others), and full."""
        rate, noise = self.event.sampling_rate, self.event.noise_multiplier
        return [
            (1 - self.most_full * (1 - 2e-9), PoissonGaussian(rate, noise)),
            (self.most_full - self.least_full * (1 - 2e-9), PoissonGaussian(rate, noise / 2)),
            (self.least_full, PoissonGaussian(self.rate_if_full, noise / 2)),
        ][: 3 if self.least_full else 2 if self.most_full else 1]


def _full(event: TruncatedPoissonGaussian, others: int) -> float:
    more = others - event.largest_batch + 1
    return float(scipy.special.betainc(event.largest_batch, more, event.sampling_rate)) if more > 0 else 0.0


def ends_of_cases(event: TruncatedPoissonGaussian) -> list[int]:
    """The numbers of records at which one case ends and the next one begins, from 0 to the declared number."""
    numbers = range(event.largest_batch, event.most_records)
    places = (bisect_left(numbers, often, key=partial(_full, event)) for often in OFTEN_FULL)
    return sorted({0, *(numbers[place] for place in places if place < len(numbers)), event.most_records})


_NEVER_KEPT = LossDistribution(np.array([0.0]), np.array([1e-300]), 1.0)


def is_known_by_divergences(event: Event) -> bool:
    """Whether only the Rényi divergences of this event are known, not the distribution of its privacy loss."""
    if isinstance(event, kinds.DiscreteGaussian):
        return event.noise_multiplier > MOST_DISCRETE_NOISE
    return isinstance(event, kinds.RepeatAndSelect | kinds.ZcdpAmount)


@lru_cache(maxsize=1024)
def directions_of(event: Supported | TruncatedCase, tail: float) -> Directions:
    """The privacy loss of an event that is not over all records, and that is not known by divergences alone."""
    match event:
        case TruncatedCase():
            return _truncated(event, tail)
        case _ if is_unbounded(event):
            either = _NEVER_KEPT
        case PoissonGaussian() | kinds.GroupPrivacy() | kinds.UserLevel():
            return mixture_directions(Mixture.of(event), tail)
        case kinds.BallsInBinsGaussian():
            from noisette.accounting.balls_in_bins import pass_directions  # which imports this module

            return pass_directions(event.bins, resolved_noise(event.noise_multiplier), tail)
        case kinds.FixedSizeGaussian():
            pair = pair_of_replaced(event)
            either = _NEVER_KEPT if is_unbounded(pair) else replaced_loss(Mixture.of(pair), tail)
        case kinds.ReplacedPoissonGaussian():
            either = exchanged_loss(Mixture.of(PoissonGaussian(event.sampling_rate, event.noise_multiplier)), tail)
        case kinds.Laplace():
            either = laplace_loss(event.noise_multiplier)
        case kinds.DiscreteGaussian():
            either = discrete_gaussian_loss(event.noise_multiplier, tail)
        case kinds.DpAmount():
            either = amount_loss(event.epsilon, event.delta)
        case _:
            raise unsupported(event, "pld")
    return Directions(either, either)


def _truncated(case: TruncatedCase, tail: float) -> Directions:
    parts = [[one.scaled(often) for one in directions_of(release, tail)] for often, release in case.parts]
    return Directions(*(reduce(LossDistribution.joined_with, direction) for direction in zip(*parts, strict=True)))
