"""The interface of an accountant, and the checks that several accountants share."""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Protocol

import numpy as np
import scipy  # scipy.special, a fifth of a second, is imported on first use

from noisette.accounting.events import (
    BallsInBinsGaussian,
    BandedGaussian,
    DiscreteGaussian,
    DpAmount,
    Event,
    Events,
    FixedSizeGaussian,
    Gaussian,
    GroupPrivacy,
    Laplace,
    PoissonGaussian,
    RepeatAndSelect,
    Sampled,
    TruncatedPoissonGaussian,
    UserLevel,
    ZcdpAmount,
    check_events,
    in_whole_rounds,
)
from noisette.errors import UnsupportedEventError, positive

# Floating point resolves noise multipliers within this range.
LEAST_NOISE, MOST_NOISE = 1e-3, 1e6


# The kinds of event, beside sampled releases, that only the accountants of loss distributions and divergences support.
_BY_DIVERGENCES = (
    FixedSizeGaussian,
    TruncatedPoissonGaussian,
    GroupPrivacy,
    UserLevel,
    RepeatAndSelect,
    Laplace,
    DiscreteGaussian,
    ZcdpAmount,
)


class PrivacyCurve(Protocol):
    """The privacy cost of some events: every pair (epsilon, delta) that holds for them.

    Guarantee: both numbers are upper bounds, for the neighbouring relation of the events.
    """

    def epsilon(self, *, delta: float) -> float:
        """Epsilon at this delta, 0 or more; ``inf`` where the accountant has no finite bound.

        Raises:
            TypeError, ValueError: ``delta`` is not in (0, 1).
        """
        ...

    def delta(self, *, epsilon: float) -> float:
        """Delta at this epsilon, from 0 to 1.

        Raises:
            TypeError, ValueError: ``epsilon`` is below 0.
        """
        ...


class Accountant(Protocol):
    """Computes the privacy cost of events. It keeps no state: equal events always have equal costs."""

    @property
    def name(self) -> str:
        """The name of this accountant on the command line and in reports."""
        ...

    def compose(self, events: Events) -> PrivacyCurve:
        """The curve of all these events together, in any order."""
        ...


def valid_orders(orders: Iterable[float], *, above: int) -> tuple[float, ...]:
    """The orders of an accountant.

    Raises:
        TypeError, ValueError: there is no order, or one is not a finite number above the limit.
    """
    orders = tuple(orders)
    if not orders:
        raise ValueError("expected at least one order, got none")
    for order in orders:
        positive(order=order)
        if order <= above:
            raise ValueError(f"expected order > {above}, got order={order}")
    return orders


def resolved_noise(event: Sampled | FixedSizeGaussian | TruncatedPoissonGaussian | BallsInBinsGaussian) -> float:
    """The noise multiplier to compute with: 0 below the range that floating point resolves, its end above it."""
    return min(event.noise_multiplier, MOST_NOISE) if event.noise_multiplier >= LEAST_NOISE else 0.0


def composed_events(events: Events) -> Events:
    """The events as they are composed: rounds of banded steps are as many Poisson batches, a begun one counts whole.

    Raises:
        TypeError, ValueError: the mapping holds no valid events, or events of different neighbouring relations.

    >>> composed_events({BandedGaussian(0.01, 2.0, bands=8): 20})
    {PoissonGaussian(sampling_rate=0.08, noise_multiplier=2.0): 3}
    """
    check_events(events)
    composed: dict[Event, int] = {}
    for event, times in events.items():
        if isinstance(event, BandedGaussian):
            event, times = event.of_round, in_whole_rounds(event, times) // event.round_length
        composed[event] = composed.get(event, 0) + times
    return composed


def require_sampled(events: Events, accountant: str) -> dict[Sampled, int]:
    """A copy of the events, for an accountant that supports only releases over Poisson batches or over all records.

    Raises:
        TypeError, ValueError: the mapping holds no valid events, or events of different neighbouring relations.
        UnsupportedEventError: one of them is of another kind.
    """
    sampled: dict[Sampled, int] = {}
    for event, times in composed_events(events).items():
        if not isinstance(event, Sampled):
            raise unsupported(event, accountant)
        sampled[event] = times
    return sampled


def unsupported(event: Event, accountant: str) -> UnsupportedEventError:
    """The error for an event that this accountant does not support; its message names the accountants that do."""
    match event:
        case Gaussian() | PoissonGaussian():
            way_out = "use the pld, the rdp or the moments accountant"
        case BallsInBinsGaussian() | DpAmount():
            way_out = "use the pld accountant"
        case _ if isinstance(event, _BY_DIVERGENCES):
            way_out = "use the pld or the rdp accountant"
        case _:
            way_out = "no accountant of this package does"
    return UnsupportedEventError(f"the {accountant} accountant does not support {event!r}; {way_out}")


# The standard Gaussian is evaluated up to this many standard deviations; the mass beyond is 1.5e-23.
REACH = 10.0

# The most terms of one integral. A group that would need more is treated as if it were in every batch: an upper bound.
MOST_TERMS = 500_000

# Above the rounding error of the logarithm of such an integral, which is 9e-16 where it should be 0.
ROUNDING = 1e-14


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
        i, q = np.arange(k + 1), release.sampling_rate
        log_binomial = scipy.special.gammaln(k + 1) - scipy.special.gammaln(i + 1) - scipy.special.gammaln(k - i + 1)
        log_weights = log_binomial + scipy.special.xlogy(i, q) + scipy.special.xlog1py(k - i, -q)
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
        sampled = max(self._log_mean_power(power) for power in (order, 1 - order)) + ROUNDING
        return min(sampled / (order - 1), in_every_batch)

    def _components(self) -> Iterator[tuple[float, float]]:
        return zip(self.log_probabilities.tolist(), self.shifts.tolist(), strict=True)

    def _log_mean_power(self, power: float) -> float:
        """ln of the mean of exp(power * loss) over the Gaussian; ``inf`` where the sum would be too long.

        A trapezoidal sum. It converges exponentially, because the density ratio has no complex zero closer to the real
        line than pi over the spacing of the shifts: the probabilities of a binomial, multiplied by the factors
        exp(-shift^2 / 2), are the coefficients of a polynomial whose zeros are all negative. The step follows from
        that distance and from how fast the power grows off the line.
        """
        spacing, largest = float(self.shifts[1]), float(self.shifts[-1])
        down, up = max(-power, 0) * largest, max(power, 0) * largest
        flat = math.sqrt(REACH**2 + 2 * max(-power, 0) * -self.log_probabilities[0])
        start, stop = -min(down + REACH, flat), up + REACH
        step = min(0.5, 0.12 / spacing) / math.sqrt(1 + down * spacing / 4)
        points = (stop - start) / step + 1
        if points * len(self.log_probabilities) > MOST_TERMS:
            return math.inf
        u = start + step * np.arange(math.ceil(points))
        return _log_sum_exp(power * self.loss(u) - u**2 / 2) + math.log(step / math.sqrt(2 * math.pi))


def group_divergences(event: GroupPrivacy, orders: Sequence[float]) -> np.ndarray:
    """Rényi divergences of a release for the group as a whole, one for each order.

    >>> from noisette.accounting.events import Gaussian
    >>> group_divergences(GroupPrivacy(Gaussian(4.0), records=2), orders=(2.0, 4.0))
    array([0.25, 0.5 ])
    """
    noise = resolved_noise(event.event)
    if noise == 0:
        return np.full(len(orders), math.inf)
    if event.event.sampling_rate == 1:
        return np.array(orders) * (event.records / noise) ** 2 / 2
    mixture = Mixture.of(event)
    return np.array([mixture.divergence(order) for order in orders])


def _log_sum_exp(logs: np.ndarray) -> float:
    return float(np.asarray(scipy.special.logsumexp(logs)))
