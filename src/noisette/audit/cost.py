"""A stated privacy cost, checked by simulation: the releases are drawn, with no code of the accountants.

The privacy loss L = ln(P/Q) of a release has the distribution P with the record and Q without it, or the other way
round; delta at epsilon is the mean of max(0, 1 - exp(epsilon - L)) under P. Where it is small, L is drawn from the
density in proportion to P exp(theta L) instead, and each draw is weighted by the ratio of the densities. That weighted
mean is one of numbers between 0 and a known bound, so an exact confidence interval follows from a count.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any

import numpy as np
from scipy.special import gammaln, ndtr
from scipy.stats import binom

from noisette import errors as checks
from noisette.accounting.events import (
    BallsInBinsGaussian,
    BandedGaussian,
    Event,
    FixedSizeGaussian,
    Gaussian,
    OfSeveral,
    PoissonGaussian,
    TruncatedPoissonGaussian,
)
from noisette.audit.certificate import FALSE_ALARM, Audit, rate_at_most

# What is observed of a release is its cell, of so many deviations of the noise, up to a distance from both means. Who
# sees less learns less, so delta is never too large by this; the width costs a share of 1e-4 of epsilon.
_WIDTH, _REACH, _FARTHEST, _FARTHEST_OF_PASS = 0.05, 10.0, 30.0, 5.0
_MOST_DRAWS, _MOST_RECORDS = 4e7, 50  # for passes: of steps in all samples, and that take the place of one
_TILTS = np.unique(np.round(np.concatenate([[0], np.geomspace(1, 4096, 60)])).astype(int))


@dataclass(frozen=True)
class CostAudit(Audit):
    """Confidence limits of delta at ``epsilon``, ``least`` and ``most``, beside the delta that is stated.

    ``left_out`` are the kinds of releases that were not simulated. What is released without them costs no more, so
    ``least`` is a lower limit for all.
    """

    epsilon: float
    delta: float
    least: float
    most: float
    left_out: tuple[str, ...]

    @property
    def findings(self) -> tuple[str, ...]:
        if self.least <= self.delta:
            return ()
        return (f"at epsilon={self.epsilon:.4g} delta is {self.least:.3g} or more; {self.delta:g} is stated",)

    def facts(self) -> dict[str, Any]:
        return super().facts() | asdict(self)


def audit_cost(
    events: Mapping[Event, int],
    *,
    epsilon: float,
    delta: float,
    samples: int = 20_000,
    false_alarm: float = FALSE_ALARM,
) -> CostAudit:
    """Check by simulation that releases cost no more than (epsilon, delta).

    Steps of balls-in-bins batches are simulated in whole passes, when a record is removed; all others in both
    directions. ``samples`` is the number of simulated runs, and ``false_alarm`` the probability that a cost is refuted
    that is not too small.

    Guarantee: the limits hold for the mechanism that each event declares, against an attacker who knows all other
    records, and of truncated batches which ones were full.
    Source: Wang et al. 2023, "A Randomized Approach to Tight Privacy Accounting", for delta by importance sampling.

    Raises:
        ValueError: a number outside its domain.

    >>> audit_cost({PoissonGaussian(0.01, 1.3): 6000}, epsilon=2.97, delta=1e-5).verdict
    <Verdict.CONSISTENT: 'consistent'>
    """
    checks.all_of(
        lambda: checks.not_negative(epsilon=epsilon),
        lambda: checks.open_fraction(delta=delta, false_alarm=false_alarm),
        lambda: checks.count(samples=samples),
    )
    random = np.random.default_rng()
    steps_of_passes = sum(times for event, times in events.items() if isinstance(event, BallsInBinsGaussian))
    if steps_of_passes:
        samples = min(samples, max(1, math.ceil(_MOST_DRAWS / steps_of_passes)))
    limits, left_out = [(0.0, 0.0)], set[str]()
    for removed in (True,) if steps_of_passes else (True, False):
        found = {event: _losses(event, times, removed) for event, times in events.items()}
        left_out = {event.mechanism for event, one in found.items() if one is None}
        losses = [one for one in found.values() if one is not None]
        limits.append(_limits(losses, epsilon, samples, false_alarm / 2, random))
    least, most = (max(ends) for ends in zip(*limits, strict=True))
    return CostAudit(epsilon, delta, least, most, tuple(sorted(left_out)))


def _limits(
    losses: Sequence[_Cells | _Passes], epsilon: float, samples: int, alpha: float, random: np.random.Generator
) -> tuple[float, float]:
    """Confidence limits of delta, each of which fails with probability ``alpha``.

    With K = ln of the mean of exp(tilt L), a weighted draw is exp(K - tilt L) (1 - exp(epsilon - L)) where L exceeds
    epsilon. It is largest where exp(epsilon - L) = tilt / (1 + tilt). Over that bound it is a probability: a coin of
    this probability gives a count whose distribution is binomial.
    """
    exponents = [sum(one.log_mean(tilt) for one in losses) - tilt * epsilon for tilt in _TILTS.tolist()]
    tilt, exponent = int(_TILTS[np.argmin(exponents)]), min(exponents)
    total = sum((one.sums(tilt, samples, random) for one in losses), np.zeros(samples))
    above = np.maximum(total - epsilon, 0)
    log_top = tilt * math.log(tilt / (1 + tilt)) - math.log(1 + tilt) if tilt else 0.0
    heads = int((random.random(samples) < np.exp(-tilt * above - log_top) * -np.expm1(-above)).sum())
    scale = math.exp(exponent + log_top)
    least = 1 - float(rate_at_most(samples - heads, samples, alpha=alpha))
    return scale * least, min(1.0, scale * float(rate_at_most(heads, samples, alpha=alpha)))


def _losses(event: Event, times: int, removed: bool) -> _Cells | _Passes | None:
    """The losses of so many releases; ``None`` for a kind that is not simulated."""
    match event:
        case BallsInBinsGaussian():
            return _Passes(event.bins, 1 / event.noise_multiplier, times // event.bins)
        case BandedGaussian():
            return _losses(event.of_round, -(-times // event.bands), removed)
        case Gaussian() | PoissonGaussian():
            pair = _mixture(event.sampling_rate, 1, 1 / event.noise_multiplier)
        case OfSeveral():
            pair = _mixture(event.sampling_rate, event.records, 1 / event.noise_multiplier)
        case FixedSizeGaussian():  # where all other records are the one that replaces it
            pair = _mixture(event.batch_size / event.size, 1, 2 / event.noise_multiplier)
        case TruncatedPoissonGaussian():  # a record of a full batch displaces another
            drawn = np.arange(event.largest_batch, event.most_records + 1)  # others, of which so many are kept
            often = binom.pmf(drawn, event.most_records, event.sampling_rate)
            full, kept = float(often.sum()), float(often @ (event.largest_batch / (drawn + 1)))
            rate_if_full = event.sampling_rate * kept / full if full else 0.0
            grows = _mixture(event.sampling_rate, 1, 1 / event.noise_multiplier)
            exchanges = _mixture(rate_if_full, 1, 2 / event.noise_multiplier)
            pair = np.concatenate([(1 - full) * grows, full * exchanges], axis=1)
        case _:
            return None
    p, q = pair if removed else pair[::-1]
    return _Cells(p, q, times)


def _mixture(rate: float, records: int, shift: float) -> np.ndarray:
    """Probabilities of the cells of a release with a record or several, and without, (2, cells).

    A batch has each record with probability ``rate``, and each moves the release by ``shift`` deviations of the noise.
    """
    shift = min(shift, _FARTHEST / records)  # with more noise than there is
    edges = np.arange(-_REACH, _REACH + records * shift, _WIDTH)
    edges[[0, -1]] = -np.inf, np.inf

    def of_cells(mean: float) -> np.ndarray:
        left, right = edges[:-1] - mean, edges[1:] - mean
        return np.where(left > 0, ndtr(-left) - ndtr(-right), ndtr(right) - ndtr(left))  # the nearer tail

    inside = np.arange(records + 1)
    weights = binom.pmf(inside, records, rate)
    return np.stack([sum(w * of_cells(k * shift) for k, w in zip(inside, weights, strict=True)), of_cells(0.0)])


class _Cells:
    """Losses of releases of which an attacker sees the cell, of probability ``p`` or ``q``."""

    def __init__(self, p: np.ndarray, q: np.ndarray, times: int) -> None:
        known = (p > 0) & (q > 0)
        self._log_p, self._loss = np.log(p[known]), np.log(p[known]) - np.log(q[known])
        self._times = times

    def log_mean(self, tilt: int) -> float:
        return self._times * float(np.logaddexp.reduce(self._log_p + tilt * self._loss))

    def sums(self, tilt: int, samples: int, random: np.random.Generator) -> np.ndarray:
        """Sums of all losses, of density in proportion to that under P times exp(tilt * sum), (samples,)."""
        log_weights = self._log_p + tilt * self._loss
        weights = np.exp(log_weights - np.logaddexp.reduce(log_weights))
        likeliest = np.argsort(-weights)  # of the last cells there are no draws left to be counted
        chosen, loss = weights[likeliest] / weights.sum(), self._loss[likeliest]
        blocks = [min(1000, samples - k) for k in range(0, samples, 1000)]
        return np.concatenate([random.multinomial(self._times, chosen, size=n) @ loss for n in blocks])


class _Passes:
    """Losses of passes in each of which a record is in one of ``bins`` batches.

    With Y_j the ratio of the densities of step j with and without the record in its batch, the loss of a pass is the
    logarithm of the mean of all Y_j. Its power n = 1 + tilt is a mean over n batches, drawn with replacement, of
    products, and each product is the density of steps that are moved once for each time that they were drawn, times
    exp(shift^2 * the number of equal pairs). So n records take the place of one.
    """

    def __init__(self, bins: int, shift: float, passes: int) -> None:
        self._bins, self._shift, self._passes = bins, min(shift, _FARTHEST_OF_PASS), passes

    def log_mean(self, tilt: int) -> float:
        n = 1 + tilt
        if n > _MOST_RECORDS or (self._shift * n) ** 2 > 600:
            return math.inf  # beyond the range of floats
        ways = math.fsum(self._groupings(n)[0].tolist())
        return self._passes * (math.log(ways) + math.lgamma(n + 1) - n * math.log(self._bins))

    def sums(self, tilt: int, samples: int, random: np.random.Generator) -> np.ndarray:
        n = 1 + tilt
        ways, powers, sizes = self._groupings(n)
        total = np.zeros(samples)
        for _ in range(self._passes):
            groups = random.choice(len(ways), samples, p=ways / ways.sum())  # how many batches have a record
            left, moved = np.full(samples, n), np.zeros((samples, n))
            for k in range(n):
                others = np.maximum(left[:, None] - np.arange(n + 1), 0)
                chances = sizes * powers[np.maximum(groups - k - 1, 0)[:, None], others]
                chances *= (np.arange(n + 1) <= left[:, None]) & (groups > k)[:, None]
                drawn = (random.random(samples)[:, None] * chances.sum(1, keepdims=True) >= chances.cumsum(1)).sum(1)
                moved[:, k] = np.where(groups > k, drawn, 0)
                left -= moved[:, k].astype(int)
            ratios = np.zeros(samples)
            for j in range(self._bins):
                u = random.standard_normal(samples) + (self._shift * moved[:, j] if j < n else 0)
                ratios += np.exp(self._shift * u - self._shift**2 / 2)
            total += np.log(ratios / self._bins)
        return total

    def _groupings(self, n: int) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
        """How n records divide among batches.

        Returned are the weight of all ways that reach k batches; the weight of n records in k given batches, none of
        them empty, [k, n]; and that of m records in one batch.
        """
        m = np.arange(n + 1)
        sizes = np.exp(self._shift**2 * m * (m - 1) / 2 - gammaln(m + 1))
        sizes[0] = 0.0
        powers = np.zeros((n + 1, n + 1))
        powers[0, 0] = 1.0
        for k in range(1, n + 1):
            powers[k] = np.convolve(powers[k - 1], sizes)[: n + 1]
        chosen = np.array([math.comb(self._bins, k) for k in range(n + 1)], dtype=float)
        return chosen * powers[:, n], powers, sizes
