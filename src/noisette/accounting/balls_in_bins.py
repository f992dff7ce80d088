"""The privacy loss of a pass over the data in which each record is in exactly one batch, drawn at random.

Let Y_j be the ratio of the densities of batch j with and without the record in it, and S the mean of the Y_j over the
bins. Without the record the Y_j are independent log-normal numbers of mean 1; with it, a pass has S times that density.
So delta is the mean, without the record, of (S - e^epsilon)+ if the record is removed, and of (1 - e^epsilon S)+ if it
is added. Both are convex in each Y_j. Hence all numbers may be rounded to a grid by giving the probability of each to
its two neighbours such that its mean stays: delta never falls, also composed with others. The sum follows by doubling.
"""

import math
from typing import NamedTuple, Self

import numpy as np
import scipy  # scipy.special, a fifth of a second, is imported on first use

from noisette.accounting.privacy_loss import ROUNDING, Directions, LogMass, LossDistribution

# Points of a grid at the same distance; then the distance doubles. So it is 1/512 to 1/256 of that to the least number.
WIDTH = 256
MOST_VALUES = 8_000  # of the distribution
LEAST_TAIL = 1e-200  # less probability would leave the range of floating-point numbers in a product


def pass_directions(bins: int, noise_multiplier: float, tail: float) -> Directions:
    """The privacy loss of a whole pass over at least 2 bins with a noise multiplier of at least 0.05.

    Of one output the probability ``tail`` may count as an infinite loss.
    Source: Chua et al. 2024, "Balls-and-Bins Sampling for DP-SGD", Theorem 3.1 (the pair of outputs); Feldman and
    Shenfeld 2026, "Efficient Privacy Loss Accounting for Subsampling and Random Allocation" (by convolution).
    """
    digits = f"{bins:b}"
    sums = len(digits) + digits.count("1") - 1
    share = max(tail, LEAST_TAIL) / (2 * sums)  # of what is cut off each of the sums, at either end
    one, error = _one_batch(bins, 1 / noise_multiplier, share)
    total = one
    for digit in digits[1:]:
        for other in (total, one) if digit == "1" else (total,):
            total = total.plus(other).without_ends(bins, share)
    points = np.append(total.values[:: math.ceil(len(total.values) / MOST_VALUES)], 2 * total.values[-1])
    masses = _split(total.values, total.masses, points)
    s, masses = points[masses > 0] / bins, masses[masses > 0]
    masses *= 1 + bins * 2.0**-42  # a product of two sums has the errors of both, and 2^-43 of its own
    error = 2 * error + sums * 2.0**-48
    return Directions(
        LossDistribution(error - np.log(s[::-1]), masses[::-1], 2 * sums * share),
        LossDistribution(error + np.log(s), masses * s, 2 * sums * share),
    )


class _Sum(NamedTuple):
    """The sum of Y_j over some batches: its values, which increase, and their probabilities without the record."""

    batches: int
    values: np.ndarray
    masses: np.ndarray

    @property
    def unit(self) -> float:
        """The least distance of a grid for these values: a power of two."""
        low, mean = self.values[0], float(self.values @ self.masses)
        return 2.0 ** math.floor(math.log2(min(low / WIDTH, (mean - low) / (2 * WIDTH))))

    def plus(self, other: Self) -> Self:
        unit = max(self.unit, other.unit)
        (start, a), (second, b) = self._rows(unit), other._rows(unit)
        rows = max(len(a), len(b)) + 1
        a, b = (np.vstack((x, np.zeros((rows - len(x), WIDTH)))) for x in (a, b))
        found = np.zeros((rows, WIDTH))
        lowest = np.convolve(a[0], b[0])
        found[0], found[1, :-1] = lowest[:WIDTH], lowest[WIDTH:]
        lower_a, lower_b = (np.append(x[0], 0.0) for x in (a, b))  # all lower rows, at the distance of this one
        for row in range(1, rows - 1):
            whole_a, whole_b = (
                np.append(lower, np.zeros(WIDTH - 1)) + np.append(np.zeros(WIDTH), x[row])
                for lower, x in ((lower_a, a), (lower_b, b))
            )
            sums = np.convolve(a[row], whole_b)
            sums[: 2 * WIDTH] += np.convolve(lower_a, b[row])
            found[row] += sums[:WIDTH]
            found[row + 1] += _halved(sums[WIDTH:])[:WIDTH]
            lower_a, lower_b = _halved(whole_a), _halved(whole_b)
        return type(self)(self.batches + other.batches, start + second + _points(unit, rows), found.ravel())

    def without_ends(self, bins: int, share: float) -> Self:
        """The sum with values moved inwards that a pass, of ``bins / batches`` such sums, hardly has.

        Small ones have at most this probability without the record, and large ones with it.
        """
        often = bins / self.batches
        below = np.cumsum(self.masses * often)
        above = np.cumsum((self.masses * (self.values / self.batches + often))[::-1])
        first, cut = (int(np.searchsorted(ends, share)) for ends in (below, above))
        last = len(self.values) - 1 - cut
        masses = self.masses.copy()
        masses[first] += masses[:first].sum()
        masses[last] += masses[last + 1 :].sum()
        kept = first + np.flatnonzero(masses[first : last + 1])
        return type(self)(self.batches, self.values[kept], masses[kept])

    def _rows(self, unit: float) -> tuple[float, np.ndarray]:
        """The least value, and the probabilities on the points of the grid above it, one row for each distance."""
        start = math.floor(self.values[0] / unit) * unit
        rows = 3 + max(0, math.ceil(math.log2((self.values[-1] - start) / (unit * WIDTH))))
        return start, _split(self.values - start, self.masses, _points(unit, rows)).reshape(rows, WIDTH)


def _one_batch(bins: int, mu: float, share: float) -> tuple[_Sum, float]:
    """Y of one batch, by the probabilities of intervals with and without the record, and a bound on relative errors.

    It is standard normal without the record, and moved by ``mu`` with it.
    """
    low = float(scipy.special.ndtri(share / bins))
    high = max(mu - float(scipy.special.ndtri(share)), -low)
    least, most = (math.exp(mu * z - mu**2 / 2) for z in (low, high))
    unit = 2.0 ** math.floor(math.log2(min(least, (1 - least) / 2) / WIDTH))
    y = math.floor(least / unit) * unit + _points(unit, 3 + math.ceil(math.log2((most - least) / (unit * WIDTH))))
    z = (np.log(y) + mu**2 / 2) / mu
    without, within = LogMass(z, 0.0), LogMass(z, mu)
    upper = np.clip((np.exp(within.log - without.log) - y[:-1]) / np.diff(y), 0, 1)
    masses = np.append(without.upper * (1 - upper), scipy.special.ndtr(-z[-1]))
    masses[1:] += without.upper * upper
    masses[0] += scipy.special.ndtr(z[0])
    error = without.error + within.error + 64 * ROUNDING * (1 + mu**2 + np.abs(np.log(y[1:])))
    return _Sum(1, y, masses), float(error.max())


def _points(unit: float, rows: int) -> np.ndarray:
    """The points of a grid from 0 on: twice ``WIDTH`` at the first distance, then as many in each row as in another."""
    first = np.arange(2 * WIDTH) * unit
    return np.concatenate([first, *(first[WIDTH:] * 2.0**doubled for doubled in range(1, rows - 1))])


def _split(values: np.ndarray, masses: np.ndarray, points: np.ndarray) -> np.ndarray:
    """Probabilities of the points, such that each value gives its own to its two neighbours and keeps its mean."""
    left = np.searchsorted(points, values, side="right") - 1
    upper = masses * ((values - points[left]) / (points[left + 1] - points[left]))
    return np.bincount(left, masses - upper, len(points)) + np.bincount(left + 1, upper, len(points))


def _halved(masses: np.ndarray) -> np.ndarray:
    """Probabilities of every second point, each of the others divided between its two neighbours."""
    halved = np.append(masses[::2], 0.0)
    halved[:-1][: len(masses[1::2])] += masses[1::2] / 2
    halved[1:][: len(masses[1::2])] += masses[1::2] / 2
    return halved
