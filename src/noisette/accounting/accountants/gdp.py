"""The exact privacy cost of releases over all records: together they are one Gaussian mechanism."""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np
from scipy.special import log_ndtr

from noisette._internal.checks import not_negative, open_fraction
from noisette.accounting.accountants.interface import resolved_noise, unsupported
from noisette.accounting.events import Event, Events, GroupPrivacy, Sampled, UserLevel, check_events

# The relative error that rounding can cause in a logarithm.
ROUNDING = 2.0**-50


@dataclass(frozen=True)
class GdpCurve:
    """One Gaussian mechanism whose two output means are ``mu`` standard deviations apart."""

    mu: float

    def epsilon(self, *, delta: float) -> float:
        """Epsilon at this delta: exact, rounded upwards in the last digits."""
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
        """Delta at this epsilon: exact, rounded upwards in the last digits."""
        not_negative(epsilon=epsilon)
        if math.isinf(self.mu):
            return 1.0
        return min(1.0, math.nextafter(math.exp(self._log_delta(epsilon)), 1.0)) if self.mu else 0.0

    def _log_delta(self, epsilon: float) -> float:
        """ln of Phi(-epsilon/mu + mu/2) - e^epsilon Phi(-epsilon/mu - mu/2), never too small.

        Source: Balle and Wang 2018, Theorem 8.
        """
        if self.mu == 0:
            return -math.inf
        first = float(log_ndtr(-epsilon / self.mu + self.mu / 2))
        second = epsilon + float(log_ndtr(-epsilon / self.mu - self.mu / 2))
        rounding = ROUNDING * (1 - first + epsilon)
        return first + math.log(-math.expm1(min(0.0, second - first)) + rounding) + rounding


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
        """The curve of these events: the squares of the distances between their means add up.

        Raises:
            UnsupportedEventError: a release is over a sampled batch.
        """
        check_events(events)
        return GdpCurve(math.sqrt(math.fsum(times * self._distance(event) ** 2 for event, times in events.items())))

    def _distance(self, event: Event) -> float:
        """The distance between the two means, in standard deviations of the noise."""
        release, records = (event.event, event.records) if isinstance(event, GroupPrivacy | UserLevel) else (event, 1)
        if not isinstance(release, Sampled) or release.sampling_rate < 1:
            raise unsupported(event, self.name)
        with np.errstate(divide="ignore"):
            return float(np.divide(records, resolved_noise(release)))
