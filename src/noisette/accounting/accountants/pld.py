"""Privacy loss distributions: the tightest of the accountants."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import TypeAlias

from noisette.accounting.accountants.gdp import GdpAccountant, GdpCurve
from noisette.accounting.accountants.interface import composed_events, unsupported
from noisette.accounting.accountants.privacy_loss.contour import Composition
from noisette.accounting.accountants.privacy_loss.distribution import Directions, LossDistribution
from noisette.accounting.accountants.privacy_loss.of_event import directions_of, is_known_by_divergences
from noisette.accounting.accountants.privacy_loss.renyi import renyi_directions
from noisette.accounting.accountants.rdp import HIGH_ORDERS, ORDERS, RdpAccountant, RdpCurve
from noisette.accounting.events import (
    BallsInBinsGaussian,
    DiscreteGaussian,
    DpAmount,
    Event,
    Events,
    FixedSizeGaussian,
    GroupPrivacy,
    Laplace,
    RepeatAndSelect,
    Sampled,
    TruncatedPoissonGaussian,
    UserLevel,
    ZcdpAmount,
)
from noisette.errors import not_negative, open_fraction

Supported: TypeAlias = (
    Sampled
    | FixedSizeGaussian
    | TruncatedPoissonGaussian
    | BallsInBinsGaussian
    | GroupPrivacy
    | UserLevel
    | RepeatAndSelect
    | Laplace
    | DiscreteGaussian
    | ZcdpAmount
    | DpAmount
)

# The share of delta that is left for outcomes which are counted as an infinite loss, so that losses have a range.
TAIL_SHARE = 1e-5
LEAST_TAIL = 1e-320
# Where delta is sought, its first guess, and the most searches with a better one.
FIRST_DELTA, SEARCHES = 1e-7, 9
# Of more releases than these the rounding would leave nothing certain: they have no finite epsilon.
MOST_RELEASES = 10**12


@dataclass(frozen=True, eq=False)
class PldCurve:
    """The events, composed anew for each question.

    Args:
        sampled: events whose privacy loss is known, and how often each happens.
        mu: distance of the two means in the Gaussian mechanism that all releases over all records are together.
        divergences: Rényi divergences of all other events together.
    """

    sampled: Mapping[Event, int]
    mu: float
    divergences: RdpCurve | None

    def epsilon(self, *, delta: float) -> float:
        """Epsilon at this delta, the larger of both directions (added, removed).

        Guarantee: an upper bound at every delta, ``inf`` for more than 10^12 releases. It is at most a few parts in ten
        thousand too large, save for events of which only a bound is known.
        """
        open_fraction(delta=delta)
        if math.isinf(self.mu) or self._releases > MOST_RELEASES:
            return math.inf
        if not self._releases:
            return GdpCurve(self.mu).epsilon(delta=delta)
        return max(one.epsilon(delta) for one in self._composed(TAIL_SHARE * delta / self._releases))

    def delta(self, *, epsilon: float) -> float:
        """Delta at this epsilon, 0 or more, under the same guarantee."""
        not_negative(epsilon=epsilon)
        if math.isinf(self.mu) or self._releases > MOST_RELEASES:
            return 1.0
        if not self._releases:
            return GdpCurve(self.mu).delta(epsilon=epsilon)
        guess, least = FIRST_DELTA, 1.0
        for _ in range(SEARCHES):
            both = self._composed(TAIL_SHARE * guess / self._releases)
            found = max(one.delta(epsilon) for one in both)
            least = min(least, found)
            if guess / self._sensitivity <= found <= guess * self._sensitivity:
                break
            is_hidden = found < 10 * max(one.lost for one in both)  # by what counts as an infinite loss
            guess = guess**2 if is_hidden else found
        return least

    @property
    def _sensitivity(self) -> float:
        """The factor by which a guess of delta may be wrong. That of balls in bins changes the rate of their bound."""
        return 1.1 if any(isinstance(event, BallsInBinsGaussian) for event in self.sampled) else 100.0

    @property
    def _releases(self) -> int:
        return sum(self.sampled.values()) + (self.divergences is not None)

    def _composed(self, tail: float) -> tuple[Composition, Composition]:
        tail = max(tail, LEAST_TAIL)
        parts = [(directions_of(event, tail), times) for event, times in self.sampled.items()]
        if self.divergences is not None:
            curve = self.divergences
            whole = renyi_directions(lambda e: curve.delta(epsilon=e), lambda d: curve.epsilon(delta=d), tail)
            parts.append((whole, 1))
        return _composition(parts, self.mu, 0), _composition(parts, self.mu, 1)


def _composition(parts: list[tuple[Directions, int]], mu: float, direction: int) -> Composition:
    releases: dict[LossDistribution, int] = {}
    for directions, times in parts:
        one = directions[direction]
        releases[one] = releases.get(one, 0) + times
    return Composition(releases, mu**2)


@dataclass(frozen=True)
class PldAccountant:
    """Composes the distributions of the privacy loss: the default accountant, and the tightest.

    The loss of each release becomes a distribution on finitely many values, which costs no less. Their composition is
    computed from their characteristic functions, after an exponential tilt that makes the wanted delta, however small,
    the bulk of the distribution. Releases over all records are one Gaussian mechanism, exactly.

    Source: Doroshenko et al. 2022, "Connect the Dots" (values); Zhu, Dong and Wang 2022, "Optimal Accounting of
    Differential Privacy via Characteristic Function" (composition). The tilt and the error bound are described in
    :mod:`noisette.accounting.accountants.privacy_loss.contour`.

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

    def compose(self, events: Events) -> PldCurve:
        """The curve of these events.

        Raises:
            UnsupportedEventError: an event is of a kind that this package does not define.
        """
        events = composed_events(events)
        full: dict[Event, int] = {}
        by_divergences: dict[Event, int] = {}
        sampled: dict[Event, int] = {}
        for event, times in events.items():
            if not isinstance(event, Supported):
                raise unsupported(event, self.name)
            (full if _is_full(event) else by_divergences if is_known_by_divergences(event) else sampled)[event] = times
        mu = GdpAccountant().compose(full).mu if full else 0.0
        divergences = _renyi(by_divergences).compose(by_divergences) if by_divergences else None
        return PldCurve(sampled, mu, divergences)


def _renyi(events: Events) -> RdpAccountant:
    """The accountant of divergences; of repeated runs they are known for moderate orders only."""
    return RdpAccountant(orders=ORDERS if any(isinstance(event, RepeatAndSelect) for event in events) else HIGH_ORDERS)


def _is_full(event: Event) -> bool:
    """Whether every record is in the release."""
    release = event.event if isinstance(event, GroupPrivacy | UserLevel) else event
    return isinstance(release, Sampled) and release.sampling_rate == 1
