"""Privacy loss distributions, through Google's ``dp-accounting``: the tightest of the accountants."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import lru_cache, reduce
from typing import TYPE_CHECKING, TypeAlias

import numpy as np

from noisette._internal.checks import open_fraction, positive
from noisette.accounting.accountants.accountant import priced_noise, unpriceable
from noisette.accounting.accountants.gdp import GdpAccountant
from noisette.accounting.accountants.mixture import REACH, Mixture
from noisette.accounting.accountants.rdp import RdpAccountant, RdpCurve
from noisette.accounting.events import Event, Events, Gaussian, GroupPrivacy, Sampled, check_events

if TYPE_CHECKING:
    from dp_accounting.pld.pld_pmf import PLDPmf
    from dp_accounting.pld.privacy_loss_distribution import PrivacyLossDistribution

# A distribution that reaches beyond this is costly, and nobody is helped by its digits.
LARGEST_EPSILON = 500.0

# What keeps one answer within seconds: grid points of one release and of all, terms of one release as a group sees it,
# and the distance between points.
MOST_POINTS, MOST_POINTS_COMPOSED, MOST_TERMS = 400_000, 3_000_000, 5_000_000
# Releases composed in one go: of a small distribution the library first takes the size to the power of this, exactly.
AT_ONCE = 100_000
LEAST_INTERVAL = 1e-7

# What rounding in the Fourier transform moves delta by, per release: at most 4e-17 against the closed form at rate 1.
ROUNDING = 1e-16

Priced: TypeAlias = Sampled | GroupPrivacy


@dataclass(frozen=True, eq=False)
class PldCurve:
    """The events, composed anew on a grid that fits each question."""

    events: Mapping[Priced, int]
    coarseness: float
    renyi: RdpCurve

    def epsilon(self, *, delta: float) -> float:
        """Epsilon at this delta.

        Guarantee: the larger of both directions (added, removed), rounded upwards on the grid. Where the distribution
        cannot resolve so small a delta, or one release alone may lose more than 500, the answer is that of
        :class:`RdpAccountant`, and :meth:`answered_by` says so.

        Raises:
            ValueError: ``delta`` is not in (0, 1).
        """
        return self._answer(delta)[0]

    def answered_by(self, *, delta: float) -> str:
        """Name of the accountant whose bound :meth:`epsilon` is at this delta: ``"pld"``, else ``"rdp"``.

        Raises:
            ValueError: ``delta`` is not in (0, 1).

        >>> from noisette.accounting.events import PoissonGaussian
        >>> run = PldAccountant().compose({PoissonGaussian(sampling_rate=0.5, noise_multiplier=0.03): 1000})
        >>> run.epsilon(delta=1e-5) > 500, run.answered_by(delta=1e-5)
        (True, 'rdp')
        """
        return self._answer(delta)[1]

    def delta(self, *, epsilon: float) -> float:
        """Delta at this epsilon, under the same guarantee; that of :class:`RdpAccountant` for an epsilon above 500.

        Raises:
            ValueError: ``epsilon`` is not above 0.
        """
        positive(epsilon=epsilon)
        known = self.renyi.delta(epsilon=epsilon)
        if not self.events or epsilon > LARGEST_EPSILON or not self._within_reach(self.renyi.epsilon(delta=0.5)):
            return known
        composed = _composed(self.events, self._interval(epsilon))
        return min(known, float(composed.get_delta_for_epsilon(epsilon)) + self._rounding)

    def _answer(self, delta: float) -> tuple[float, str]:
        open_fraction(delta=delta)
        known, by = self.renyi.epsilon(delta=delta), RdpAccountant.name
        if (resolved := delta - self._rounding) <= 0 or not self.events:
            return known, by
        interval = math.inf
        while known > 0 and self._within_reach(known) and (finer := self._interval(known)) < interval / 2:
            interval = finer
            tighter = float(_composed(self.events, interval).get_epsilon_for_delta(resolved))
            known, by = min((known, by), (tighter, PldAccountant.name))
        return known, by

    def _within_reach(self, known: float) -> bool:
        """Whether a distribution would help. A rare loss makes divergences huge, though epsilon may be small."""
        return known <= LARGEST_EPSILON or (known < math.inf and _spans(self.events)[0] <= LARGEST_EPSILON)

    @property
    def _rounding(self) -> float:
        return ROUNDING * sum(self.events.values())

    def _interval(self, epsilon: float) -> float:
        """Distance of the grid points: fine for this epsilon and for one release, coarse enough to be quick."""
        fits_epsilon = 1e-5 if epsilon < 0.3 else max(1e-4, 5e-6 * min(epsilon, LARGEST_EPSILON))
        fits_release = _typical_loss(self.events) / 20  # errs by about 2e-4 of epsilon; the error grows quadratically
        span, composed_span = _spans(self.events)
        quick = max(span / _most_points(self.events), composed_span / MOST_POINTS_COMPOSED, LEAST_INTERVAL)
        return max(self.coarseness * min(fits_epsilon, fits_release), quick)


@dataclass(frozen=True)
class PldAccountant:
    """Convolves the distribution of the privacy loss: the default, and the tightest.

    Args:
        coarseness: multiplies the grid of the distribution. 4 is several times quicker and at most about 0.3 % larger;
            no value makes the answer too small. Above 0.

    Source: Doroshenko et al. 2022, "Connect the Dots".

    Raises:
        ValueError: ``coarseness`` is not above 0.

    >>> from noisette.accounting.events import PoissonGaussian
    >>> release = PoissonGaussian(sampling_rate=0.01, noise_multiplier=4.0)
    >>> round(PldAccountant().compose({release: 10_000}).epsilon(delta=1e-5), 3)
    0.947
    """

    name = "pld"

    coarseness: float = 1.0

    def __post_init__(self) -> None:
        positive(coarseness=self.coarseness)

    def compose(self, events: Events) -> PldCurve:
        """The curve of these events.

        Raises:
            UnsupportedEventError: an event is of fixed size or a search over runs: no known loss distribution.
        """
        check_events(events)
        priced: dict[Priced, int] = {}
        for event, times in events.items():
            if not isinstance(event, Priced):
                raise unpriceable(event, self.name)
            priced[event] = times
        return PldCurve(_with_full_batches_as_one(priced), self.coarseness, RdpAccountant().compose(events))


def _with_full_batches_as_one(events: Mapping[Priced, int]) -> dict[Priced, int]:
    """The same price with less to convolve: releases over all records are together one with less noise."""
    sampled: dict[Priced, int] = {}
    full: dict[Event, int] = {}
    for event, times in events.items():
        (sampled if _release(event).sampling_rate < 1 else full)[event] = times
    if full:  # so little noise that 1 / mu is 0 is priced as none, and so is this
        sampled[Gaussian(max(1 / GdpAccountant().compose(full).mu, math.ulp(0.0)))] = 1
    return sampled


def _release(event: Priced) -> Sampled:
    return event.event if isinstance(event, GroupPrivacy) else event


@lru_cache(maxsize=64)
def _mixture(event: Priced) -> Mixture:
    whole = Mixture.of(event)
    return whole.likely if isinstance(event, GroupPrivacy) else whole


def _typical_loss(events: Mapping[Priced, int]) -> float:
    """Root mean square privacy loss of one release, by its chi-square divergence; ``inf`` where it overflows."""
    squares = sum(times * _mixture(event).chi_square for event, times in events.items())
    return math.sqrt(squares / sum(events.values()))


def _spans(events: Mapping[Priced, int]) -> tuple[float, float]:
    """About how far apart the least and the greatest privacy loss lie: of one release, and of all together."""
    releases = sum(events.values())
    one = max(_span(event) for event in events)
    if one == math.inf:
        return one, one
    typical = _typical_loss(events)
    return one, min(releases * one, 16 * math.sqrt(releases) * typical + releases * typical**2)


def _span(event: Priced) -> float:
    if priced_noise(_release(event)) == 0:
        return math.inf
    return float(np.ptp(_mixture(event).loss(_mixture(event).ends)))


def _most_points(events: Mapping[Priced, int]) -> int:
    """Grid points of one release: fewer for a larger group, because each point adds up as many terms."""
    return min(MOST_POINTS, *(MOST_TERMS // len(_mixture(event).shifts) for event in events))


@lru_cache(maxsize=8)
def _distribution(event: Priced, interval: float) -> PrivacyLossDistribution:
    from dp_accounting.pld import privacy_loss_distribution

    if isinstance(event, GroupPrivacy):
        return _group_distribution(event, interval)
    return privacy_loss_distribution.from_gaussian_mechanism(
        standard_deviation=priced_noise(event),
        sampling_prob=event.sampling_rate,
        value_discretization_interval=interval,
        pessimistic_estimate=True,
    )


def _group_distribution(event: GroupPrivacy, interval: float) -> PrivacyLossDistribution:
    """What the library's own mixture of Gaussians is, without its minutes of search for every point."""
    from dp_accounting.pld.privacy_loss_distribution import PrivacyLossDistribution

    mixture = _mixture(event)
    least, greatest = mixture.loss(mixture.ends)
    removed = _pessimistic(mixture.delta_removed, least, greatest, interval)
    least, greatest = -mixture.loss(np.array([REACH, -REACH]))
    return PrivacyLossDistribution(removed, _pessimistic(mixture.delta_added, least, greatest, interval))


def _pessimistic(delta: Callable[[np.ndarray], np.ndarray], least: float, greatest: float, interval: float) -> PLDPmf:
    """The distribution on a grid that has this delta at every point of it, and a larger one between."""
    from dp_accounting.pld.pld_pmf import create_pmf_pessimistic_connect_dots_fixed_gap

    first, last = math.floor(least / interval), math.ceil(greatest / interval)
    deltas = delta(np.arange(first, last + 1) * interval)
    falling = np.maximum.accumulate(deltas[::-1])[::-1]
    return create_pmf_pessimistic_connect_dots_fixed_gap(interval, first, last, falling)


def _composed(events: Mapping[Priced, int], interval: float) -> PrivacyLossDistribution:
    parts = [_self_composed(event, times, interval) for event, times in events.items()]
    return reduce(lambda whole, part: whole.compose(part), parts)


def _self_composed(event: Priced, times: int, interval: float) -> PrivacyLossDistribution:
    one = _distribution(event, interval)
    if times <= AT_ONCE:
        return one if times == 1 else one.self_compose(times)  # the library would transform even one, and round it
    whole, rest = one.self_compose(AT_ONCE).self_compose(times // AT_ONCE), times % AT_ONCE
    return whole.compose(one.self_compose(rest)) if rest else whole
