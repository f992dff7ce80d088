"""The interface of an accountant, what its curves mean for an attack, and checks that several accountants share."""

import math
from dataclasses import dataclass
from functools import cached_property
from itertools import pairwise
from typing import Protocol

from noisette.accounting import events as kinds
from noisette.accounting.events import Event, Events, Sampled, Supported, check_events, in_whole_rounds
from noisette.errors import UnsupportedEventError, below_one, not_negative, open_fraction

# Floating point resolves noise multipliers within this range.
LEAST_NOISE, MOST_NOISE = 1e-3, 1e6


class PrivacyCurve(Protocol):
    """The privacy cost of some events: every pair (epsilon, delta) that holds for them.

    Guarantee: both numbers are upper bounds, for the neighbouring relation of the events.
    """

    def epsilon(self, *, delta: float) -> float:
        """Epsilon at this delta, in (0, 1): 0 or more; ``inf`` where the accountant has no finite bound."""
        ...

    def delta(self, *, epsilon: float) -> float:
        """Delta, from 0 to 1, at this epsilon, 0 or more."""
        ...


class Accountant(Protocol):
    """Computes the privacy cost of events. It keeps no state: equal events always have equal costs."""

    @property
    def name(self) -> str:
        """The name on the command line and in reports."""
        ...

    def compose(self, events: Events) -> PrivacyCurve:
        """The curve of all these events together, in any order."""
        ...


def resolved_noise(noise_multiplier: float) -> float:
    """The noise multiplier to compute with: 0 below the range that floating point resolves, its end above it."""
    return min(noise_multiplier, MOST_NOISE) if noise_multiplier >= LEAST_NOISE else 0.0


def is_unbounded(event: Supported) -> bool:
    """Whether an event has no finite cost: hardly any noise, or a declared amount that counts as infinite."""
    match event:
        case kinds.RepeatAndSelect():
            return False  # as far as is known without its runs
        case kinds.ZcdpAmount():
            return event.rho >= kinds.MOST_AMOUNT
        case kinds.DpAmount():
            return event.epsilon >= kinds.MOST_AMOUNT
        case _:
            return resolved_noise(event.noise_multiplier) == 0


def composed_events(events: Events) -> Events:
    """The events as they are composed: banded rounds as Poisson batches, passes as one; a begun round is a whole one.

    A ``TypeError`` or ``ValueError`` says that events are not valid, or of different neighbouring relations.

    >>> composed_events({kinds.BandedGaussian(0.01, 2.0, bands=8): 20})
    {PoissonGaussian(sampling_rate=0.08, noise_multiplier=2.0): 3}
    """
    check_events(events)
    composed: dict[Event, int] = {}
    for event, times in events.items():
        if isinstance(event, kinds.BandedGaussian | kinds.BallsInBinsGaussian):
            event, times = event.of_round, in_whole_rounds(event, times) // event.round_length
        composed[event] = composed.get(event, 0) + times
    return composed


def unsupported(event: Event, accountant: str) -> UnsupportedEventError:
    """The error for an event that this accountant does not support; its message names the accountants that do."""
    ways_out = {
        Sampled: "use the pld, the rdp or the moments accountant",
        kinds.DpAmount | kinds.ReplacedPoissonGaussian: "use the pld accountant",
        Supported: "use the pld or the rdp accountant",
        Event: "no accountant of this package does",
    }
    way_out = next(way_out for kind, way_out in ways_out.items() if isinstance(event, kind))
    return UnsupportedEventError(f"the {accountant} accountant does not support {event}; {way_out}")


_PAIRS = 16  # pairs (epsilon, delta) that the bounds are taken from at first
_LEAST_RATE = 1e-10  # of false alarms, down to which true-positive rates are tight
_LEAST_DELTA = 1e-13  # a smaller one changes no rate by more than a thousandth
_GAIN = 0.02  # by which a further pair between two others improves a bound, or else none is sought
_ROUNDING = 2.0**-48  # relative, of one bound


@dataclass(frozen=True)
class TradeOff:
    """The least errors of any attack that decides from everything released whether one record took part.

    The attack has a false-positive rate (how often it claims membership where there is none) and a false-negative rate
    (how often it misses a member). It may know all other records. ``curve`` is the privacy cost of what was released,
    by any accountant, and ``beside`` a further delta, such as that of the tail of the noise generator.

    Guarantee: no attack does better than any of these bounds, whatever ``curve`` is, as long as its deltas are upper
        bounds: each pair (epsilon, delta) bounds every attack alone, and the best of the bounds is one.
    Source: Wasserman and Zhou 2010, Theorem 2.4; Dong, Roth and Su 2022, Propositions 2.4 and 2.12.

    >>> from noisette.accounting import Gaussian, GdpAccountant
    >>> attack = TradeOff(GdpAccountant().compose({Gaussian(noise_multiplier=1.0): 1}))
    >>> round(attack.advantage, 4), round(attack.true_positive_rate(0.01), 2)
    (0.3829, 0.09)
    """

    curve: PrivacyCurve
    beside: float = 0.0

    def __post_init__(self) -> None:
        below_one(beside=self.beside)

    @cached_property
    def profile(self) -> tuple[tuple[float, float], ...]:
        """Pairs of an epsilon, from 0 on in ascending order, and its delta: more where they improve the bounds."""
        top = min(-math.log(_LEAST_RATE), self.curve.epsilon(delta=_LEAST_DELTA))
        pairs = [self._pair(top * k / (_PAIRS - 1)) for k in range(_PAIRS if top > 0 else 1)]
        return tuple(sorted([*pairs, *(more for ends in pairwise(pairs) for more in self._between(*ends))]))

    def _pair(self, epsilon: float) -> tuple[float, float]:
        return epsilon, min(1.0, self.curve.delta(epsilon=epsilon) + self.beside)

    def _between(self, low: tuple[float, float], high: tuple[float, float]) -> list[tuple[float, float]]:
        """Further pairs between two, whose bounds are equal at one false-positive rate: the largest there."""
        rate = (low[1] - high[1]) / (math.exp(high[0]) - math.exp(low[0]))
        if rate < _LEAST_RATE / 20:
            return []
        middle = self._pair((low[0] + high[0]) / 2)
        bound, better = (delta + math.exp(epsilon) * rate for epsilon, delta in (low, middle))
        if better > (1 - _GAIN) * bound:
            return [middle]
        return [middle, *self._between(low, middle), *self._between(middle, high)]

    def true_positive_rate(self, false_positive_rate: float) -> float:
        """The largest share of members that an attack with this false-positive rate, from 0 to 1, finds."""
        not_negative(false_positive_rate=false_positive_rate)
        if false_positive_rate > 1:
            raise ValueError(f"expected false_positive_rate <= 1, got false_positive_rate={false_positive_rate}")
        rate = false_positive_rate
        lower = min(delta + math.exp(epsilon) * rate for epsilon, delta in self.profile)
        upper = min(1 - math.exp(-epsilon) * (1 - delta - rate) for epsilon, delta in self.profile)
        return min(1.0, min(lower, upper) * (1 + _ROUNDING) + _ROUNDING)

    def false_negative_rate(self, false_positive_rate: float) -> float:
        """The trade-off function: the least share of members that an attack with this false-positive rate misses."""
        return 1 - self.true_positive_rate(false_positive_rate)

    @cached_property
    def advantage(self) -> float:
        """The largest difference of true-positive and false-positive rate: the total variation distance, from 0 to 1.

        The lines of one pair (epsilon, delta) meet where both errors are (1 - delta) / (1 + e^epsilon).
        """
        bound = min(1 - 2 * (1 - delta) / (1 + math.exp(epsilon)) for epsilon, delta in self.profile)
        return min(1.0, bound + _ROUNDING)

    @property
    def accuracy(self) -> float:
        """The largest probability of a right answer where the record took part with a prior probability of one half."""
        return (1 + self.advantage) / 2

    def posterior(self, *, exceeded: float) -> float:
        """A belief in membership, from a prior of one half, that the releases exceed with at most this probability.

        With a delta above 0 no belief below 1 holds for every outcome. That of e^t / (1 + e^t) is exceeded where the
        privacy loss is above t, which has a probability of at most delta(epsilon) / (1 - e^(epsilon - t)) for every
        epsilon below t: more than delta(t), which weighs each outcome by its excess over t. The probability is over the
        randomness of the releases, the record being in the data. An error says that ``exceeded`` is not in (0, 1).
        """
        open_fraction(exceeded=exceeded)
        losses = [epsilon - math.log1p(-delta / exceeded) for epsilon, delta in self.profile if delta < exceeded]
        return min(1.0, 1 / (1 + math.exp(-min(losses))) + _ROUNDING) if losses else 1.0
