"""The composition theorems that came before the moments accountant: for comparison, in two forms each.

The form that is proved is an upper bound. The printed one, which slides and papers put beside the moments accountant,
takes q * epsilon for what sampling leaves of epsilon and a formula for the noise beyond where it is proved: its numbers
are smaller, and no guarantee. ``valid`` and the name tell the two apart.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass

import numpy as np

from noisette._internal.checks import open_fraction, positive
from noisette.accounting.accountants.accountant import priced_noise, sampled_only
from noisette.accounting.accountants.gdp import GdpCurve
from noisette.accounting.events import Events, Sampled

LEAST_DELTA, MOST_DELTA = 1e-300, 1 - 2**-53


@dataclass(frozen=True, eq=False)
class CompositionCurve:
    """Epsilon as a theorem gives it for a delta, and delta by looking for it."""

    theorem: Callable[[float], float]

    def epsilon(self, *, delta: float) -> float:
        """Epsilon at this delta; ``inf`` below a delta of 1e-300.

        Raises:
            ValueError: ``delta`` is not in (0, 1).
        """
        open_fraction(delta=delta)
        return self.theorem(delta) if delta >= LEAST_DELTA else math.inf

    def delta(self, *, epsilon: float) -> float:
        """Delta at this epsilon, not below 1e-300.

        Raises:
            ValueError: ``epsilon`` is not above 0.
        """
        from scipy.optimize import root_scalar  # takes a third of a second: paid by those who ask

        positive(epsilon=epsilon)
        if self.theorem(MOST_DELTA) > epsilon:
            return 1.0
        if self.theorem(LEAST_DELTA) <= epsilon:
            return LEAST_DELTA

        def excess(log_delta: float) -> float:
            return min(self.theorem(math.exp(log_delta)), 1e300) - epsilon

        log_delta = float(root_scalar(excess, bracket=(math.log(LEAST_DELTA), math.log(MOST_DELTA)), xtol=1e-7).root)
        while log_delta < 0 and excess(log_delta) > 0:
            log_delta += 1e-6
        return min(1.0, math.exp(log_delta))


@dataclass(frozen=True)
class NaiveComposition:
    """Adds up the epsilons and the deltas of the releases: what holds for any mechanisms, and costs most.

    Args:
        as_printed: the optimistic form, which is no guarantee: q * sqrt(2 ln(1.25 / delta)) / sigma for each release.
            Unless asked for, the proved form: the exact epsilon of the Gaussian mechanism, which has no upper limit,
            amplified by sampling to ln(1 + q (e^epsilon - 1)).

    Source: Dwork and Roth 2014, Theorem 3.16. Amplification: Balle, Barthe and Gaboardi 2018, Theorem 8.

    >>> from noisette.accounting.events import PoissonGaussian
    >>> run = {PoissonGaussian(sampling_rate=0.01, noise_multiplier=4.0): 10_000}
    >>> [round(NaiveComposition(printed).compose(run).epsilon(delta=1e-5)) for printed in (False, True)]
    [223, 143]
    """

    as_printed: bool = False

    @property
    def name(self) -> str:
        """``naive``, or ``naive-paper`` for the printed form."""
        return "naive-paper" if self.as_printed else "naive"

    @property
    def valid(self) -> bool:
        """Whether the prices are upper bounds: those of the printed form are not."""
        return not self.as_printed

    def compose(self, events: Events) -> CompositionCurve:
        """The curve of these events.

        Raises:
            UnsupportedEventError: one of them is no release over a Poisson batch or over all records.
        """
        run = sampled_only(events, self.name)
        losses = _printed_losses if self.as_printed else _proved_losses
        times = np.array(list(run.values()))
        return CompositionCurve(lambda delta: float(times @ losses(run, delta)))


@dataclass(frozen=True)
class StrongComposition:
    """The strong composition theorem: epsilon grows with the square root of the steps, while each costs little.

    Args:
        as_printed: the optimistic form that is compared with the moments accountant, which is no guarantee: half of
            delta for the theorem, q * sqrt(2 ln(1.25 / delta)) / sigma for each release, and its square for the
            product of epsilon and e^epsilon - 1. Unless asked for, the proved form: the exact epsilon of the Gaussian
            mechanism, which has no upper limit, amplified by sampling to ln(1 + q (e^epsilon - 1)); delta is divided
            in the best way between the releases and the theorem.

    Source: Dwork, Rothblum and Vadhan 2010, Theorem III.3; for releases of several kinds it follows from Kairouz, Oh
    and Viswanath 2015, Theorem 3.5. Amplification: Balle, Barthe and Gaboardi 2018, Theorem 8.

    >>> from noisette.accounting.events import PoissonGaussian
    >>> run = {PoissonGaussian(sampling_rate=0.01, noise_multiplier=4.0): 10_000}
    >>> [round(StrongComposition(printed).compose(run).epsilon(delta=1e-5), 3) for printed in (False, True)]
    [16.844, 9.339]
    """

    as_printed: bool = False

    @property
    def name(self) -> str:
        """``strong``, or ``strong-paper`` for the printed form."""
        return "strong-paper" if self.as_printed else "strong"

    @property
    def valid(self) -> bool:
        """Whether the prices are upper bounds: those of the printed form are not."""
        return not self.as_printed

    def compose(self, events: Events) -> CompositionCurve:
        """The curve of these events.

        Raises:
            UnsupportedEventError: one of them is no release over a Poisson batch or over all records.
        """
        from scipy.optimize import minimize_scalar

        run = sampled_only(events, self.name)
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
    """Epsilon of all releases with a further delta of ``slack``: what they lose on average, and what by bad luck."""
    times = np.array(list(run.values()))
    with np.errstate(over="ignore"):
        return float(np.sqrt(-2 * math.log(slack) * (times @ losses**2)) + times @ drift(losses))


def _proved_losses(run: Mapping[Sampled, int], delta: float) -> np.ndarray:
    """Epsilon of each release, where their deltas are the same before sampling and add up to this one after it."""
    before = _before_sampling(run, delta)
    return np.array([_amplified(event, before) for event in run])


def _amplified(event: Sampled, delta: float) -> float:
    """ln(1 + q (e^epsilon - 1)), of the exact epsilon without sampling."""
    q, noise = event.sampling_rate, priced_noise(event)
    if delta >= 1:
        return 0.0
    if noise == 0:
        return math.inf
    loss = GdpCurve(1 / noise).epsilon(delta=delta)
    if loss < 1:
        return math.log1p(q * math.expm1(loss))
    return math.log(q) + loss + math.log1p((1 - q) / q * math.exp(-loss))


def _printed_losses(run: Mapping[Sampled, int], delta: float) -> np.ndarray:
    """The same as it is printed: neither the noise nor the amplification is proved for every epsilon."""
    root = math.sqrt(2 * max(0.0, math.log(1.25 / _before_sampling(run, delta))))
    noises = [(event.sampling_rate, priced_noise(event)) for event in run]
    return np.array([rate * root / noise if noise else math.inf for rate, noise in noises])


def _before_sampling(run: Mapping[Sampled, int], delta: float) -> float:
    """The delta of every release before sampling, which leaves the part of it that is the rate."""
    return delta / math.fsum(times * event.sampling_rate for event, times in run.items()) if run else 1.0
