"""What every accountant offers: it prices events and hands back a curve."""

from __future__ import annotations

from typing import Protocol

from noisette.accounting.events import (
    Event,
    Events,
    FixedSizeGaussian,
    Gaussian,
    GroupPrivacy,
    PoissonGaussian,
    RepeatAndSelect,
    Sampled,
    check_events,
)
from noisette.errors import UnsupportedEventError

# Floating point resolves noise multipliers within this range.
LEAST_NOISE, MOST_NOISE = 1e-3, 1e6


class PrivacyCurve(Protocol):
    """The price of some events: every pair (epsilon, delta) that holds for them.

    Guarantee: both numbers are upper bounds, for the neighbouring relation of the events.
    """

    def epsilon(self, *, delta: float) -> float:
        """Epsilon at this delta, 0 or more; ``inf`` where the accountant can promise nothing."""
        ...

    def delta(self, *, epsilon: float) -> float:
        """Delta at this epsilon, from 0 to 1."""
        ...


class Accountant(Protocol):
    """Turns events into a price. Pricing changes nothing: the same events always cost the same."""

    @property
    def name(self) -> str:
        """How the command line and the reports call this accountant."""
        ...

    def compose(self, events: Events) -> PrivacyCurve:
        """The curve of all these events together, whatever their order."""
        ...


def priced_noise(event: Sampled | FixedSizeGaussian) -> float:
    """The noise multiplier that is paid for: 0 below the range that can be resolved, the end of the range above it."""
    return min(event.noise_multiplier, MOST_NOISE) if event.noise_multiplier >= LEAST_NOISE else 0.0


def sampled_only(events: Events, accountant: str) -> dict[Sampled, int]:
    """A copy of the events, for an accountant that prices releases over Poisson batches or all records and no others.

    Raises:
        TypeError, ValueError: they are no events, or of different relations.
        UnsupportedEventError: one of them is of another kind.
    """
    check_events(events)
    sampled: dict[Sampled, int] = {}
    for event, times in events.items():
        if not isinstance(event, Sampled):
            raise unpriceable(event, accountant)
        sampled[event] = times
    return sampled


def unpriceable(event: Event, accountant: str) -> UnsupportedEventError:
    """The refusal of an event by this accountant, with the names of those that have a price for it."""
    match event:
        case FixedSizeGaussian() | RepeatAndSelect():
            way_out = "ask the rdp accountant"
        case GroupPrivacy():
            way_out = "ask the pld or the rdp accountant"
        case Gaussian() | PoissonGaussian():
            way_out = "ask the pld, the rdp or the moments accountant"
        case _:
            way_out = "no accountant of this package has one"
    return UnsupportedEventError(f"the {accountant} accountant has no price for {event!r}; {way_out}")
