"""What every accountant offers: it prices events and hands back a curve."""

from __future__ import annotations

from typing import ClassVar, Protocol

from noisette.accounting.events import Events, PoissonGaussian

# Floating point resolves noise multipliers within this range.
LEAST_NOISE, MOST_NOISE = 1e-3, 1e6


class PrivacyCurve(Protocol):
    """The price of some events: every pair (epsilon, delta) that holds for them.

    Guarantee: both numbers are upper bounds, for adding or removing one example.
    """

    def epsilon(self, *, delta: float) -> float:
        """Epsilon at this delta, 0 or more; ``inf`` where the accountant can promise nothing."""
        ...

    def delta(self, *, epsilon: float) -> float:
        """Delta at this epsilon, from 0 to 1."""
        ...


class Accountant(Protocol):
    """Turns events into a price. Pricing changes nothing: the same events always cost the same."""

    name: ClassVar[str]
    """How the command line and the reports call this accountant."""

    def price(self, events: Events) -> PrivacyCurve:
        """The curve of all these events together, whatever their order."""
        ...


def priced_noise(event: PoissonGaussian) -> float:
    """The noise multiplier that is paid for: 0 below the range that can be resolved, the end of the range above it."""
    return min(event.noise_multiplier, MOST_NOISE) if event.noise_multiplier >= LEAST_NOISE else 0.0
