"""Closed forms: the exact Gaussian mechanism, and the basic and the strong composition theorem for comparison.

The strong theorem has two forms. The proved form is an upper bound. The printed form, which slides and papers compare
with the moments accountant, amplifies epsilon by sampling to q * epsilon and takes a formula for the noise outside the
range in which it is proved: its values are smaller, and no guarantee.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from fractions import Fraction

import numpy as np
import scipy  # scipy.special, a fifth of a second, is imported on first use

from noisette.accounting.events import Event, Events, OfSeveral, Sampled
from noisette.accounting.interface import composed_events, require_sampled, resolved_noise, unsupported
from noisette.errors import not_negative, open_fraction

# The relative error that rounding can cause in a value of erfcx or ndtr: sixteen units in the last place.
ROUNDING = 2.0**-48

# Below this distance of the means delta is an integral by Simpson's rule, which exceeds it by a factor of 1 + mu^4/340.
NARROW = 1e-2

# Beyond this threshold, in standard deviations, delta is below every floating-point number.
FARTHEST = 1e3


@dataclass(frozen=True)
class GdpCurve:
    """One Gaussian mechanism whose two output means are ``mu`` standard deviations apart: exact, rounded upwards."""

    mu: float

    def epsilon(self, *, delta: float) -> float:
        open_fraction(delta=delta)
        if math.isinf(self.mu):
            return math.inf
        aim = math.log(delta)
        if self._log_delta(0.0) <= aim:
            return 0.0
        # Bisection: delta(low) > delta >= delta(high). At high, Phi(mu/2 - high/mu) = Phi(-sqrt(-2 ln delta)) < delta.
        low, high = 0.0, self.mu * (self.mu / 2 + math.sqrt(-2 * aim)) * (1 + ROUNDING)
        while high - low > 1e-14 * high:
            middle = (low + high) / 2
            if not low < middle < high:
                break
            low, high = (low, middle) if self._log_delta(middle) <= aim else (middle, high)
        return high

    def delta(self, *, epsilon: float) -> float:
        not_negative(epsilon=epsilon)
        if math.isinf(self.mu):
            return 1.0
        return min(1.0, math.nextafter(math.exp(self._log_delta(epsilon)), 1.0)) if self.mu else 0.0

    def _log_delta(self, epsilon: float) -> float:
        """ln of Phi(-a) - e^epsilon Phi(-b), where a, b = epsilon/mu -+ mu/2; never too small.

        The density of the standard Gaussian at a is e^epsilon times that at b. With Mills' ratio M(x) = Phi(-x)/phi(x)
        delta is therefore phi(a) (M(a) - M(b)), and what may lose digits is this one difference. It is the integral of
        -M'(x) = 1 - x M(x) from a to b. All even derivatives of -M' are positive, because it is the integral of
        t exp(-t^2/2 - xt) over positive t; so Simpson's rule is an upper bound of the integral.

        The threshold a is computed exactly and rounded once, which changes phi(a) by a factor of 1 + a^2 2^-53 at most.

        Source: Balle and Wang 2018, Theorem 8.
        """
        mu = self.mu
        if mu == 0:
            return -math.inf
        epsilon = min(epsilon, mu * (mu / 2 + FARTHEST))
        threshold, half = Fraction(epsilon) / Fraction(mu), Fraction(mu) / 2
        a, b = float(threshold - half), float(threshold + half)
        log_density = -(a**2) / 2 - math.log(2 * math.pi) / 2
        if a < -1:  # then Phi(-a) exceeds 0.84, and the other term is below 0.16
            return math.log(float(scipy.special.ndtr(-a)) - math.exp(log_density) * _mills_ratio(b) + ROUNDING)
        if mu < NARROW:
            slopes = [1 - x * _mills_ratio(x) for x in (a, float(threshold), b)]
            drop = mu * ((slopes[0] + 4 * slopes[1] + slopes[2]) / 6 + 2 * ROUNDING)
        else:
            drop = _mills_ratio(a) - _mills_ratio(b) + 2 * ROUNDING * _mills_ratio(a)
        return log_density + math.log(drop) + ROUNDING * (1 + a**2)


def _mills_ratio(x: float) -> float:
    """Phi(-x) / phi(x): the tail of the standard Gaussian over its density."""
    return math.sqrt(math.pi / 2) * float(scipy.special.erfcx(x / math.sqrt(2)))


@dataclass(frozen=True)
class GdpAccountant:
    """The closed form for releases over all records: exact, without a grid. It does not support sampled batches.

    Source: Balle and Wang 2018, Theorem 8; composition by Dong, Roth and Su 2022, Corollary 3.3.

    >>> from noisette.accounting.events import Gaussian
    >>> round(GdpAccountant().compose({Gaussian(noise_multiplier=10.0): 100}).epsilon(delta=1e-5), 4)
    4.3772
    """

    name = "gdp"
    description = "closed form for releases over all records"
    method = "Gaussian differential privacy (GDP)"
    upper_bound = True
    in_recipes = False

    def compose(self, events: Events) -> GdpCurve:
        events = composed_events(events)
        squares = math.fsum(times * self._distance(event) ** 2 for event, times in events.items())
        return GdpCurve(math.sqrt(squares) * (1 + 2 * ROUNDING))

    def _distance(self, event: Event) -> float:
        release, records = (event.event, event.records) if isinstance(event, OfSeveral) else (event, 1)
        if not isinstance(release, Sampled) or release.sampling_rate < 1:
            raise unsupported(event, self.name)
        with np.errstate(divide="ignore"):
            return float(np.divide(records, resolved_noise(release)))


LEAST_DELTA, MOST_DELTA = 1e-300, 1 - 2**-53


@dataclass(frozen=True, eq=False)
class CompositionCurve:
    """Epsilon as a theorem gives it for a delta of 1e-300 or more; delta by a root search over epsilon."""

    theorem: Callable[[float], float]

    def epsilon(self, *, delta: float) -> float:
        open_fraction(delta=delta)
        return self.theorem(delta) if delta >= LEAST_DELTA else math.inf

    def delta(self, *, epsilon: float) -> float:
        from scipy.optimize import root_scalar  # imported here because the import takes a third of a second

        not_negative(epsilon=epsilon)
        if self.theorem(MOST_DELTA) > epsilon:
            return 1.0
        if self.theorem(LEAST_DELTA) <= epsilon:
            return LEAST_DELTA

        def excess(log_delta: float) -> float:
            return min(self.theorem(math.exp(log_delta)), 1e300) - epsilon

        log_delta = float(root_scalar(excess, bracket=(math.log(LEAST_DELTA), math.log(MOST_DELTA)), xtol=1e-7).root)
        while log_delta < 0 and excess(log_delta) > 0:  # the root may lie on the unsafe side by its tolerance
            log_delta += 1e-6
        return min(1.0, math.exp(log_delta))


@dataclass(frozen=True)
class NaiveComposition:
    """Basic composition: adds up the epsilons and deltas of the releases. Valid for any mechanism, and the loosest.

    Each release has the exact epsilon of the Gaussian mechanism, amplified by sampling to ln(1 + q (e^epsilon - 1)).

    Source: Dwork and Roth 2014, Theorem 3.16. Amplification: Balle, Barthe and Gaboardi 2018, Theorem 8.

    >>> from noisette.accounting.events import PoissonGaussian
    >>> run = {PoissonGaussian(sampling_rate=0.01, noise_multiplier=4.0): 10_000}
    >>> round(NaiveComposition().compose(run).epsilon(delta=1e-5))
    223
    """

    name = "naive"
    description = "sum of all epsilons"
    method = "naive composition"
    upper_bound = True
    in_recipes = False

    def compose(self, events: Events) -> CompositionCurve:
        run = require_sampled(events, self.name)
        times = np.array(list(run.values()))
        return CompositionCurve(lambda delta: float(times @ _proved_losses(run, delta)))


@dataclass(frozen=True)
class StrongComposition:
    """The strong composition theorem: epsilon grows with the square root of the steps while each step costs little.

    Args:
        as_printed: the optimistic form, which is no guarantee: an epsilon of q * sqrt(2 ln(1.25 / delta)) / sigma for
            each release, half of delta for the theorem, and the square of epsilon for its product with e^epsilon - 1.
            The proved form divides delta in the best way.

    Source: Dwork, Rothblum and Vadhan 2010, Theorem III.3; for releases of several kinds it follows from Kairouz, Oh
    and Viswanath 2015, Theorem 3.5. Amplification: Balle, Barthe and Gaboardi 2018, Theorem 8.

    >>> from noisette.accounting.events import PoissonGaussian
    >>> run = {PoissonGaussian(sampling_rate=0.01, noise_multiplier=4.0): 10_000}
    >>> [round(StrongComposition(printed).compose(run).epsilon(delta=1e-5), 3) for printed in (False, True)]
    [16.844, 9.339]
    """

    as_printed: bool = False

    in_recipes = False

    @property
    def name(self) -> str:
        return "strong-paper" if self.as_printed else "strong"

    @property
    def description(self) -> str:
        return "the printed, optimistic form: no guarantee" if self.as_printed else "strong composition"

    @property
    def method(self) -> str:
        return f"strong composition{' as printed, which is no guarantee' if self.as_printed else ''}"

    @property
    def upper_bound(self) -> bool:
        return not self.as_printed

    def compose(self, events: Events) -> CompositionCurve:
        from scipy.optimize import minimize_scalar

        run = require_sampled(events, self.name)
        if self.as_printed:
            return CompositionCurve(lambda delta: _strong(run, _printed_losses(run, delta / 2), delta / 2, np.square))

        def with_share(share: float, delta: float) -> float:
            losses = _proved_losses(run, (1 - share) * delta)
            return _strong(run, losses, share * delta, lambda loss: loss * np.expm1(loss))

        def theorem(delta: float) -> float:
            half = with_share(0.5, delta)
            if not 0 < half < math.inf:
                return half
            best = minimize_scalar(with_share, bounds=(0, 1), args=(delta,), method="bounded", options={"xatol": 1e-4})
            return min(half, float(best.fun))

        return CompositionCurve(theorem)


def _strong(run: Mapping[Sampled, int], losses: np.ndarray, slack: float, drift: Callable[..., np.ndarray]) -> float:
    """Epsilon of all releases with a further delta of ``slack``: the deviation term plus the mean privacy loss."""
    times = np.array(list(run.values()))
    with np.errstate(over="ignore"):
        return float(np.sqrt(-2 * math.log(slack) * (times @ losses**2)) + times @ drift(losses))


def _proved_losses(run: Mapping[Sampled, int], delta: float) -> np.ndarray:
    """Epsilon of each release, where their deltas are equal before sampling and add up to ``delta`` after it."""
    before = _before_sampling(run, delta)
    return np.array([_amplified(event, before) for event in run])


def _amplified(event: Sampled, delta: float) -> float:
    """ln(1 + q (e^epsilon - 1)), where epsilon is the exact one without sampling."""
    q, noise = event.sampling_rate, resolved_noise(event)
    if delta >= 1:
        return 0.0
    if noise == 0:
        return math.inf
    loss = GdpCurve(1 / noise).epsilon(delta=delta)
    if loss < 1:
        return math.log1p(q * math.expm1(loss))
    return math.log(q) + loss + math.log1p((1 - q) / q * math.exp(-loss))


def _printed_losses(run: Mapping[Sampled, int], delta: float) -> np.ndarray:
    """As :func:`_proved_losses`, by the printed formulas: neither noise nor amplification is proved for all epsilon."""
    root = math.sqrt(2 * max(0.0, math.log(1.25 / _before_sampling(run, delta))))
    noises = [(event.sampling_rate, resolved_noise(event)) for event in run]
    return np.array([rate * root / noise if noise else math.inf for rate, noise in noises])


def _before_sampling(run: Mapping[Sampled, int], delta: float) -> float:
    """The delta of every release before sampling; sampling at rate q leaves q times as much of it."""
    return delta / math.fsum(times * event.sampling_rate for event, times in run.items()) if run else 1.0
