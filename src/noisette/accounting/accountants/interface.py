"""The interface of an accountant, and the checks that several accountants share."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Protocol

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
