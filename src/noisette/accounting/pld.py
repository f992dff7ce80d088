"""The composition of privacy losses: delta as an integral along a line in the complex plane, with its error."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import cached_property, partial
from itertools import pairwise
from typing import cast

import numpy as np
from threadpoolctl import ThreadpoolController

from noisette.accounting import privacy_loss
from noisette.accounting.closed_forms import GdpAccountant, GdpCurve
from noisette.accounting.events import Event, Events, OfSeveral, RepeatAndSelect, Sampled, Supported
from noisette.accounting.events import TruncatedPoissonGaussian as Truncated
from noisette.accounting.interface import composed_events, unsupported
from noisette.accounting.privacy_loss import ROUNDING, LossDistribution, Tilted, TruncatedCase, directions_of
from noisette.accounting.rdp import HIGH_ORDERS, ORDERS, RdpAccountant, RdpCurve, renyi_loss
from noisette.errors import not_negative, open_fraction

# The deviation of the Gaussian release that is added, over the loss's; its share of epsilon; the most points of a line.
ADDED_DEVIATION, ADDED_COST, MOST_POINTS = 2e-3, 1e-5, 2**15
NEGLIGIBLE = 40.0  # the exponent at which a Gaussian factor, and the images of a periodic sum, are negligible
LEAST_TERM = 1e-17  # of the largest: terms below this share end the sum; they are added to the error
LEAST_WEIGHT = 1e-22  # tilted probabilities below this are left out of the characteristic function
LEAST_EXPONENT, MOST_EXPONENT = -740.0, 700.0  # the logarithms of the smallest and the largest float, nearly
# Times c: the most that an epsilon may differ from the one at which the integrand is stationary. Farther off, where
# rare large losses outweigh all others, each epsilon gets a line of its own.
MOST_OFFSET = 3.0
MOST_EPSILON = 1e15  # beyond this it is infinite


@dataclass(frozen=True, eq=False)
class Composition:
    """Independent privacy losses in one direction.

    ``variance`` is that of the loss of all releases over all records: together they are one Gaussian mechanism, whose
    loss has half this mean. The mean of exp(s * loss) is a product over the releases, exp(K(s)). For any c > 0

        delta(epsilon) = 1/(2 pi i) * integral of exp(K(s) - s epsilon) / (s (s + 1)) ds over the line Re s = c,

    because 1/(s (s + 1)) is the Laplace transform of 1 - exp(-x). The integral is computed as a sum over equally spaced
    points at distance 2 pi / W. By Poisson's summation formula the sum is that of exp(c m W) delta(epsilon + m W) over
    all integers m: all of these are positive, so the sum is too large, by little if W is large.
    The sum is finite because one more release is composed, a Gaussian of a tiny cost: its factor bounds later terms.
    Guarantee: delta and epsilon are upper bounds: the terms left out and the rounding of all others are added.
    """

    releases: Mapping[LossDistribution, int]
    variance: float

    @cached_property
    def lost(self) -> float:
        kept = math.fsum(times * math.log1p(-min(one.lost, 1 - 1e-16)) for one, times in self.releases.items())
        return -math.expm1(kept) * (1 + 1e-12)

    def delta(self, epsilon: float) -> float:
        if self._single is not None:
            return min(1.0, self.lost + _mean_excess(self._single, epsilon))

        def excess(at: _Saddle) -> float:  # beyond the exponent no larger c is needed: delta is below any float
            return at.epsilon - epsilon if at.exponent(epsilon) > LEAST_EXPONENT else 1.0

        integral = self._line(self._steepest(excess), epsilon).integral(epsilon)
        return min(1.0, self.lost + min(integral, self._delta_at_zero))

    def epsilon(self, delta: float) -> float:
        """Epsilon at this delta; ``inf`` where an infinite loss is as likely."""
        left = delta - self.lost
        if left <= 0:
            return math.inf
        if self._single is not None:
            return least_epsilon(partial(_mean_excess, self._single), left, 1e-10)
        if self._delta_at_zero <= left:
            return 0.0
        at = self._steepest(lambda at: math.log(left) - at.log_delta)
        found = least_epsilon(self._line(at, at.epsilon).integral, left, 1e-10)
        if abs(found - at.epsilon) * at.c < MOST_OFFSET:
            return found
        return min(found, least_epsilon(lambda epsilon: self.delta(epsilon) - self.lost, left, 1e-6))

    @cached_property
    def _delta_at_zero(self) -> float:
        """A bound on delta at epsilon 0: the total variation of a composition is at most the sum of all."""
        gaussian = math.erf(math.sqrt(self.variance / 8))
        sampled = math.fsum(times * _mean_excess(one, 0.0) for one, times in self.releases.items())
        return (gaussian + sampled) * (1 + 1e-12)

    @property
    def _single(self) -> LossDistribution | None:
        """The only release, whose delta is a mean, without an integral."""
        return next(iter(self.releases)) if self.variance == 0 and sum(self.releases.values()) == 1 else None

    def _at(self, c: float) -> _Saddle:
        tilted = [(one.tilted(c), times) for one, times in self.releases.items()]
        return _Saddle(
            c,
            math.fsum(times * one.log_mean for one, times in tilted) + self.variance * c * (c + 1) / 2,
            math.fsum(times * one.mean for one, times in tilted) + self.variance * (c + 0.5),
            math.fsum(times * one.variance for one, times in tilted) + self.variance,
        )

    def _steepest(self, excess: Callable[[_Saddle], float]) -> _Saddle:
        """The point at which this increasing function is about zero. Any point is valid, a near one gives few terms."""
        low, high = -25.0, 25.0  # logarithms of c
        while high - low > 0.02:
            middle = (low + high) / 2
            low, high = (low, middle) if excess(self._at(math.exp(middle))) > 0 else (middle, high)
        return self._at(math.exp((low + high) / 2))

    def _line(self, at: _Saddle, epsilon: float) -> _Line:
        epsilon = max(epsilon, 0.0)
        span = self._span(at, epsilon)
        added = ADDED_DEVIATION**2 * (at.variance + at.c**-2)
        if epsilon > 0:
            added = min(added, ADDED_COST * epsilon / (at.c + 0.5))
        added = max(added, 2 * NEGLIGIBLE * (span / (2 * math.pi * MOST_POINTS)) ** 2)
        return _Line.of(self, at.c, added, span)

    def _span(self, at: _Saddle, epsilon: float) -> float:
        """A distance W of the images of the sum at which they are negligible, by Markov's inequality at other tilts."""
        aim = at.exponent(epsilon) - math.log(at.c * (at.c + 1)) - 0.5 * math.log(2 * math.pi * at.curvature) - 14
        steps = np.array([0.5, 1.0, 2.0, 4.0, 8.0]) / math.sqrt(at.curvature)

        def distance(c: float) -> float:
            return max(0.0, self._at(c).exponent(epsilon) - aim) / abs(c - at.c)

        above = min(distance(at.c + step) for step in steps)
        return max(above, min(distance(max(at.c - step, at.c / 8)) for step in steps), 1 / at.c)


@dataclass(frozen=True)
class _Saddle:
    """The composed loss tilted by ``exp(c * loss)``: logarithm of the mean, K(c), and mean and variance of the loss."""

    c: float
    log_mean: float
    mean: float
    variance: float

    @property
    def curvature(self) -> float:
        """Second derivative of the logarithm of the integrand."""
        return self.variance + self.c**-2 + (1 + self.c) ** -2

    @property
    def epsilon(self) -> float:
        """The epsilon for which the integrand is stationary here."""
        return self.mean - 1 / self.c - 1 / (1 + self.c)

    @property
    def log_delta(self) -> float:
        return self.exponent(self.epsilon) - math.log(self.c * (self.c + 1) * math.sqrt(2 * math.pi * self.curvature))

    def exponent(self, epsilon: float) -> float:
        return self.log_mean - self.c * epsilon


@dataclass(frozen=True, eq=False)
class _Line:
    """The integrand at equally spaced points of a line, from the real axis upwards, without exp(-s epsilon)."""

    c: float  # the real part of the points
    spacing: float
    log_scale: float  # logarithm of the factor that was taken out of the values
    centre: float  # the loss that was taken off, so that phases stay small
    values: np.ndarray
    error: float  # a bound on what all points together are wrong by

    @classmethod
    def of(cls, composition: Composition, c: float, added: float, span: float) -> _Line:
        """With one more Gaussian release, whose loss has the variance ``added``."""
        spacing = 2 * math.pi / span
        gaussian = composition.variance + added
        t = spacing * np.arange(1 + math.ceil(math.sqrt(2 * NEGLIGIBLE / gaussian) / spacing))
        s = c + 1j * t
        kernel = np.exp(-gaussian * t**2 / 2) / (s * (s + 1))
        kernel[1:] *= 2  # the points below the real axis are the conjugates
        most = np.abs(kernel)
        # What is left out beyond the last point: the Gaussian factor falls faster than a geometric series.
        beyond = float(most[-1]) / -math.expm1(-gaussian * t[-1] * spacing)
        # The product of the characteristic functions over its first value, those that leave the fewest points first.
        values, log_scale, centre, left_out, rounding = np.ones(len(most), dtype=complex), 0.0, 0.0, 0.0, 0.0
        parts = [(one.tilted(c), one, times) for one, times in composition.releases.items()]
        for tilted, one, times in sorted(parts, key=lambda part: -part[2] * part[0].variance):
            factor, uncertainty = _characteristic(one, tilted, c, spacing, len(values))
            size, angle = np.log(np.maximum(np.abs(factor), 1e-300)), np.angle(factor)
            values = values * np.exp(times * size + 1j * times * angle)
            rounding += times * uncertainty
            log_scale += times * tilted.log_mean
            centre += times * tilted.mean
            terms = np.abs(values) * most[: len(values)]
            kept = 1 + int(np.flatnonzero(terms > LEAST_TERM * most[0]).max(initial=0))
            left_out += float(terms[kept:].sum())
            values = values[:kept]
        log_scale += gaussian * c * (c + 1) / 2
        rounding += ROUNDING * (len(t) + 2 * abs(log_scale) + 1024)
        error = 1.01 * (beyond + left_out + float(most.sum()) * math.expm1(min(rounding, MOST_EXPONENT)))
        return cls(c, spacing, log_scale, centre + gaussian * (c + 0.5), values * kernel[: len(values)], error)

    def integral(self, epsilon: float) -> float:
        """Delta at this epsilon, rounded upwards."""
        t = self.spacing * np.arange(len(self.values))
        total = float(np.real(self.values @ np.exp(-1j * t * (epsilon - self.centre))))
        total += self.error + 4 * ROUNDING * (abs(epsilon) + abs(self.centre)) * float(np.abs(self.values) @ t)
        exponent = self.log_scale - self.c * epsilon
        if exponent > MOST_EXPONENT:
            return math.inf
        return math.exp(exponent) * self.spacing / (2 * math.pi) * max(total, self.error)


def _mean_excess(one: LossDistribution, epsilon: float) -> float:
    """Delta of one release, without the infinite losses."""
    return float(one.masses @ -np.expm1(np.minimum(epsilon - one.losses, 0.0))) * (1 + one.uncertainty)


def least_epsilon(delta_at: Callable[[float], float], delta: float, tolerance: float) -> float:
    """The least epsilon at which delta is no more than this, rounded up by this share; ``inf`` if none is."""
    from scipy.optimize import brentq  # imported here, as most commands compute no epsilon

    if delta_at(0.0) <= delta:
        return 0.0
    low, high = 0.0, 1.0
    while delta_at(high) > delta:
        low, high = high, 2 * high
        if high > MOST_EPSILON:
            return math.inf

    def excess(epsilon: float) -> float:  # in logarithms, in which it is nearly a line
        return math.log(min(max(delta_at(epsilon), 1e-300), 1e300) / delta)

    if excess(high) < 0:
        near = np.float64(max(tolerance / 4, 1e-15))
        # By a share of the root alone: it may be 1e-8, where a share of ``high`` would leave millions of steps below.
        root = cast("float", brentq(excess, low, high, xtol=1e-300, rtol=near))
        high = root * (1 + tolerance)
    while delta_at(high) > delta:
        high *= 1 + tolerance
    return high


def _characteristic(one: LossDistribution, tilted: Tilted, c: float, step: float, n: int) -> tuple[np.ndarray, float]:
    """The mean of exp(i t (loss - mean)) under a tilted distribution for all t = k * step, and its error.

    With k = a * rows + b the exponential is a product over a and b, so all means are one product of two matrices.
    """
    rows = math.ceil(math.sqrt(n))
    likely = tilted.weights > LEAST_WEIGHT
    weights = tilted.weights[likely]
    losses = step * (one.losses[likely] - tilted.mean)
    fine = np.vander(np.exp(1j * losses), rows, increasing=True)
    coarse = np.vander(np.exp(1j * rows * losses), math.ceil(n / rows), increasing=True).T * weights
    factor = (coarse @ fine).ravel()[:n]
    left_out = LEAST_WEIGHT * (len(tilted.weights) - len(weights))
    phases = n * step * (float(weights @ np.abs(one.losses[likely])) + abs(tilted.mean))
    exponents = float(tilted.weights @ np.abs(c * one.losses)) + abs(tilted.log_mean)
    return factor, one.uncertainty + left_out + 4 * ROUNDING * (phases + exponents + 2 * rows)


# The share of delta that is left for outcomes which are counted as an infinite loss, so that losses have a range.
TAIL_SHARE, LEAST_TAIL = 1e-5, 1e-320
FIRST_DELTA, SEARCHES = 1e-7, 9  # where delta is sought: its first guess, and the most searches with a better one
MOST_RELEASES = 10**12  # of more the rounding would leave nothing certain: they have no finite epsilon
# Of products of arrays as small as these several threads would mostly wait for each other.
_on_one_thread = ThreadpoolController().wrap(limits=1, user_api="blas")


@dataclass(frozen=True, eq=False)
class PldCurve:
    """The events, composed anew for each question."""

    sampled: Mapping[Supported, int]  # events whose privacy loss is known
    mu: float  # distance of the means of the Gaussian mechanism that all releases over all records are together
    divergences: RdpCurve | None  # of all other events together

    @_on_one_thread
    def epsilon(self, *, delta: float) -> float:
        """Epsilon at this delta, the larger of both directions: an upper bound, ``inf`` for more than 10^12 releases.

        It is at most a few parts in ten thousand too large, save for events of which only a bound is known.
        """
        open_fraction(delta=delta)
        if math.isinf(self.mu) or self._releases > MOST_RELEASES:
            return math.inf
        if not self._releases:
            return GdpCurve(self.mu).epsilon(delta=delta)
        return max(one.epsilon(delta) for one in self._composed(TAIL_SHARE * delta / self._releases))

    @_on_one_thread
    def delta(self, *, epsilon: float) -> float:
        not_negative(epsilon=epsilon)
        epsilon = min(epsilon, MOST_EPSILON)  # where delta is larger, if anything
        if math.isinf(self.mu) or self._releases > MOST_RELEASES:
            return 1.0
        if not self._releases:
            return GdpCurve(self.mu).delta(epsilon=epsilon)
        guess, least = FIRST_DELTA, 1.0
        for _ in range(SEARCHES):
            both = self._composed(TAIL_SHARE * guess / self._releases)
            found = max(one.delta(epsilon) for one in both)
            least = min(least, found)
            if guess / 100 <= found <= guess * 100:
                break
            is_hidden = found < 10 * max(one.lost for one in both)  # by what counts as an infinite loss
            guess = guess**2 if is_hidden else found
        return least

    @property
    def _releases(self) -> int:
        return sum(self.sampled.values()) + (self.divergences is not None)

    @cached_property
    def _cases(self) -> list[Mapping[Supported | TruncatedCase, int]]:
        """The events for several numbers of records, one for all of them, where the cost depends on it."""
        truncated = [event for event in self.sampled if isinstance(event, Truncated)]
        most = min((event.most_records for event in truncated), default=1)
        ends = {0, most, *(min(end, most) for event in truncated for end in privacy_loss.ends_of_cases(event))}

        def in_case(event: Supported, case: tuple[int, int]) -> Supported | TruncatedCase:
            return TruncatedCase.of(event, *case) if isinstance(event, Truncated) else event

        cases = pairwise(sorted(ends))
        return [{in_case(event, case): times for event, times in self.sampled.items()} for case in cases]

    def _composed(self, tail: float) -> list[Composition]:
        """The losses in both directions, in each case: the costliest counts."""
        tail = max(tail, LEAST_TAIL)
        either = renyi_loss(self.divergences, tail) if self.divergences else None
        composed: list[Composition] = []
        for case in self._cases:
            for direction in (0, 1):
                releases = Counter[LossDistribution]()
                for event, times in case.items():
                    releases[directions_of(event, tail)[direction]] += times
                if either is not None:
                    releases[either] = 1
                composed.append(Composition(releases, self.mu**2))
        return composed


@dataclass(frozen=True)
class PldAccountant:
    """Composes the distributions of the privacy loss: the default accountant, and the tightest.

    The loss of each release becomes a distribution on finitely many values, which costs no less. Their composition is
    computed from their characteristic functions, after an exponential tilt that makes the wanted delta, however small,
    the bulk of the distribution. Releases over all records are one Gaussian mechanism, exactly.
    Source: Doroshenko et al. 2022, "Connect the Dots" (values); Zhu, Dong and Wang 2022, "Optimal Accounting of
    Differential Privacy via Characteristic Function" (composition). The tilt and the error bound are described in
    :mod:`noisette.accounting.pld`.

    >>> from noisette.accounting.events import PoissonGaussian
    >>> round(PldAccountant().compose({PoissonGaussian(0.01, 4.0): 10_000}).epsilon(delta=1e-5), 3)
    0.947
    """

    name = "pld"
    description = "privacy loss distribution"
    supports_sampling = True

    def compose(self, events: Events) -> PldCurve:
        full: dict[Event, int] = {}
        by_divergences: dict[Event, int] = {}
        sampled: dict[Supported, int] = {}
        for event, times in composed_events(events).items():
            if not isinstance(event, Supported):
                raise unsupported(event, self.name)
            if isinstance(event, Sampled | OfSeveral) and event.sampling_rate == 1:
                full[event] = times
            elif privacy_loss.is_known_by_divergences(event):
                by_divergences[event] = times
            else:
                sampled[event] = times
        mu = GdpAccountant().compose(full).mu if full else 0.0
        # the divergences of repeated runs are known for moderate orders only
        orders = ORDERS if any(isinstance(event, RepeatAndSelect) for event in by_divergences) else HIGH_ORDERS
        divergences = RdpAccountant(orders=orders).compose(by_divergences) if by_divergences else None
        return PldCurve(sampled, mu, divergences)
