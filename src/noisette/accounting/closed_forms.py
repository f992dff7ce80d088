"""The closed form of the Gaussian mechanism over all records."""

import math
from dataclasses import dataclass
from fractions import Fraction

import scipy  # scipy.special, a fifth of a second, is imported on first use

from noisette.accounting.events import Event, Events, OfSeveral, Sampled
from noisette.accounting.interface import composed_events, resolved_noise, unsupported
from noisette.errors import not_negative, open_fraction

ROUNDING = 2.0**-48  # relative, of a value of erfcx or ndtr: sixteen units in the last place
# Below this distance of the means delta is an integral by Simpson's rule, which exceeds it by a factor of 1 + mu^4/340.
NARROW = 1e-2
FARTHEST = 1e3  # standard deviations: beyond this threshold delta is below every floating-point number


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
        while high - low > max(1e-14 * high, 1e-300):
            middle = (low + high) / 2
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
    supports_sampling = False

    def compose(self, events: Events) -> GdpCurve:
        events = composed_events(events)
        squares = math.fsum(times * self._distance(event) ** 2 for event, times in events.items())
        return GdpCurve(math.sqrt(squares) * (1 + 2 * ROUNDING))

    def _distance(self, event: Event) -> float:
        release, records = (event.event, event.records) if isinstance(event, OfSeveral) else (event, 1)
        if not isinstance(release, Sampled) or release.sampling_rate < 1:
            raise unsupported(event, self.name)
        noise = resolved_noise(release.noise_multiplier)
        return records / noise if noise else math.inf
