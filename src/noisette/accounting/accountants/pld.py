"""Privacy loss distributions, through Google's ``dp-accounting``: the tightest of the accountants."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import lru_cache, reduce
from typing import TYPE_CHECKING, TypeAlias

import numpy as np

from noisette._internal.checks import not_negative, open_fraction, positive
from noisette.accounting.accountants.gdp import GdpAccountant
from noisette.accounting.accountants.group_privacy import REACH, Mixture
from noisette.accounting.accountants.interface import resolved_noise, unsupported
from noisette.accounting.accountants.rdp import RdpAccountant, RdpCurve
from noisette.accounting.events import Event, Events, Gaussian, GroupPrivacy, Sampled, check_events

if TYPE_CHECKING:
    from dp_accounting.pld.pld_pmf import PLDPmf
    from dp_accounting.pld.privacy_loss_distribution import PrivacyLossDistribution

# A distribution of larger losses is costly to compute, and nobody needs digits of such an epsilon.
LARGEST_EPSILON = 500.0

# Limits that keep one answer within seconds: the grid points of one release and of all, the terms of one release of a
# group, and the distance between grid points.
MOST_POINTS, MOST_POINTS_COMPOSED, MOST_TERMS = 400_000, 3_000_000, 5_000_000
# Releases composed in one call: for a small distribution the library first raises its size to this power, exactly.
AT_ONCE = 100_000
LEAST_INTERVAL = 1e-7

# The error in delta by rounding in the Fourier transform, per release: at most 4e-17 against the closed form at rate 1.
ROUNDING = 1e-16

Supported: TypeAlias = Sampled | GroupPrivacy


@dataclass(frozen=True, eq=False)
class PldCurve:
    """The events; each call composes them on a grid that fits the question."""

    events: Mapping[Supported, int]
    coarseness: float
    renyi: RdpCurve

    def epsilon(self, *, delta: float) -> float:
        """Epsilon at this delta.

        Guarantee: the larger of both directions (added, removed), rounded upwards on the grid. Where the distribution
        cannot resolve so small a delta, or a single release may lose more than 500, the answer is that of
        :class:`RdpAccountant`.
        """
        open_fraction(delta=delta)
        known = self.renyi.epsilon(delta=delta)
        if (resolved := delta - self._rounding) <= 0 or not self.events:
            return known
        # The grid fits the best epsilon so far: a smaller epsilon gets a finer grid, until the grid hardly changes.
        interval = math.inf
        while known > 0 and self._is_feasible(known) and (finer := self._interval(known)) < interval / 2:
            interval = finer
            known = min(known, float(_composed(self.events, interval).get_epsilon_for_delta(resolved)))
        return known

    def delta(self, *, epsilon: float) -> float:
        """Delta at this epsilon, under the same guarantee; that of :class:`RdpAccountant` for an epsilon above 500."""
        not_negative(epsilon=epsilon)
        known = self.renyi.delta(epsilon=epsilon)
        if not self.events or epsilon > LARGEST_EPSILON or not self._is_feasible(self.renyi.epsilon(delta=0.5)):
            return known
        composed = _composed(self.events, self._interval(epsilon))
        return min(known, float(composed.get_delta_for_epsilon(epsilon)) + self._rounding)

    def _is_feasible(self, known: float) -> bool:
        """Whether to compute the distribution. A rare large loss makes divergences huge even if epsilon is small."""
        return known <= LARGEST_EPSILON or (known < math.inf and _spans(self.events)[0] <= LARGEST_EPSILON)

    @property
    def _rounding(self) -> float:
        return ROUNDING * sum(self.events.values())

    def _interval(self, epsilon: float) -> float:
        """Distance of the grid points: fine enough for this epsilon and for one release, coarse enough to be quick."""
        fits_epsilon = 1e-5 if epsilon < 0.3 else max(1e-4, 5e-6 * min(epsilon, LARGEST_EPSILON))
        fits_release = _typical_loss(self.events) / 20  # error about 2e-4 of epsilon, quadratic in this
        span, composed_span = _spans(self.events)
        quick = max(span / _most_points(self.events), composed_span / MOST_POINTS_COMPOSED, LEAST_INTERVAL)
        return max(self.coarseness * min(fits_epsilon, fits_release), quick)


@dataclass(frozen=True)
class PldAccountant:
    """Convolves the distributions of the privacy loss: the default accountant, and the tightest.

    Args:
        coarseness: factor on the grid of the distribution, above 0. With 4 the answer is several times quicker and at
            most about 0.3 % larger. No value makes it too small.

    Source: Doroshenko et al. 2022, "Connect the Dots".

    Raises:
        ValueError: ``coarseness`` is not above 0.

    >>> from noisette.accounting.events import PoissonGaussian
    >>> release = PoissonGaussian(sampling_rate=0.01, noise_multiplier=4.0)
    >>> round(PldAccountant().compose({release: 10_000}).epsilon(delta=1e-5), 3)
    0.947
    """

    name = "pld"
    description = "privacy loss distribution"
    method = "privacy loss distributions (PLD)"
    upper_bound = True
    in_recipes = True

    coarseness: float = 1.0

    def __post_init__(self) -> None:
        positive(coarseness=self.coarseness)

    def compose(self, events: Events) -> PldCurve:
        """The curve of these events.

        Raises:
            UnsupportedEventError: an event has no known loss distribution: batches of fixed size, repeated runs.
        """
        check_events(events)
        supported: dict[Supported, int] = {}
        for event, times in events.items():
            if not isinstance(event, Supported):
                raise unsupported(event, self.name)
            supported[event] = times
        return PldCurve(_with_full_batches_as_one(supported), self.coarseness, RdpAccountant().compose(events))


def _with_full_batches_as_one(events: Mapping[Supported, int]) -> dict[Supported, int]:
    """Equivalent events with fewer to convolve: releases over all records are together one release with less noise."""
    sampled: dict[Supported, int] = {}
    full: dict[Event, int] = {}
    for event, times in events.items():
        (sampled if _release(event).sampling_rate < 1 else full)[event] = times
    if full:  # noise so small that 1 / mu is 0 counts as none, and so does the smallest float
        sampled[Gaussian(max(1 / GdpAccountant().compose(full).mu, math.ulp(0.0)))] = 1
    return sampled


def _release(event: Supported) -> Sampled:
    return event.event if isinstance(event, GroupPrivacy) else event


@lru_cache(maxsize=64)
def _mixture(event: Supported) -> Mixture:
    whole = Mixture.of(event)
    return whole.likely if isinstance(event, GroupPrivacy) else whole


def _typical_loss(events: Mapping[Supported, int]) -> float:
    """Root mean square privacy loss of one release, by its chi-square divergence; ``inf`` where it overflows."""
    squares = sum(times * _mixture(event).chi_square for event, times in events.items())
    return math.sqrt(squares / sum(events.values()))


def _spans(events: Mapping[Supported, int]) -> tuple[float, float]:
    """The approximate range of the privacy loss, greatest minus least: of one release, and of all together."""
    releases = sum(events.values())
    one = max(_span(event) for event in events)
    if one == math.inf:
        return one, one
    typical = _typical_loss(events)
    return one, min(releases * one, 16 * math.sqrt(releases) * typical + releases * typical**2)


def _span(event: Supported) -> float:
    if resolved_noise(_release(event)) == 0:
        return math.inf
    return float(np.ptp(_mixture(event).loss(_mixture(event).ends)))


def _most_points(events: Mapping[Supported, int]) -> int:
    """The most grid points of one release: fewer for a larger group, whose size is the number of terms per point."""
    return min(MOST_POINTS, *(MOST_TERMS // len(_mixture(event).shifts) for event in events))


@lru_cache(maxsize=8)
def _distribution(event: Supported, interval: float) -> PrivacyLossDistribution:
    from dp_accounting.pld import privacy_loss_distribution

    if isinstance(event, GroupPrivacy):
        return _group_distribution(event, interval)
    return privacy_loss_distribution.from_gaussian_mechanism(
        standard_deviation=resolved_noise(event),
        sampling_prob=event.sampling_rate,
        value_discretization_interval=interval,
        pessimistic_estimate=True,
    )


def _group_distribution(event: GroupPrivacy, interval: float) -> PrivacyLossDistribution:
    """The library's distribution of a mixture of Gaussians, without its search for every point, which takes minutes."""
    from dp_accounting.pld.privacy_loss_distribution import PrivacyLossDistribution

    mixture = _mixture(event)
    least, greatest = mixture.loss(mixture.ends)
    removed = _pessimistic(mixture.delta_removed, least, greatest, interval)
    least, greatest = -mixture.loss(np.array([REACH, -REACH]))
    return PrivacyLossDistribution(removed, _pessimistic(mixture.delta_added, least, greatest, interval))


def _pessimistic(delta: Callable[[np.ndarray], np.ndarray], least: float, greatest: float, interval: float) -> PLDPmf:
    """The distribution on a grid whose delta is exact at every grid point and larger between them.

    Args:
        delta: hockey-stick divergences at an array of epsilons.
        least: smallest privacy loss on the grid.
        greatest: largest privacy loss on the grid.
        interval: distance of the grid points.
    """
    from dp_accounting.pld.pld_pmf import create_pmf_pessimistic_connect_dots_fixed_gap

    first, last = math.floor(least / interval), math.ceil(greatest / interval)
    deltas = delta(np.arange(first, last + 1) * interval)
    falling = np.maximum.accumulate(deltas[::-1])[::-1]
    return create_pmf_pessimistic_connect_dots_fixed_gap(interval, first, last, falling)


def _composed(events: Mapping[Supported, int], interval: float) -> PrivacyLossDistribution:
    parts = [_self_composed(event, times, interval) for event, times in events.items()]
    return reduce(lambda whole, part: whole.compose(part), parts)


def _self_composed(event: Supported, times: int, interval: float) -> PrivacyLossDistribution:
    one = _distribution(event, interval)
    if times <= AT_ONCE:
        return one if times == 1 else one.self_compose(times)  # even one would be transformed, and rounded
    whole, rest = one.self_compose(AT_ONCE).self_compose(times // AT_ONCE), times % AT_ONCE
    return whole.compose(one.self_compose(rest)) if rest else whole
