"""The search for the last of many plans that keeps a budget, where each plan costs more than the one before."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from functools import cache, cached_property
from types import MappingProxyType
from typing import TypeAlias

from noisette.accounting.accountants.interface import LEAST_NOISE, MOST_NOISE, Accountant
from noisette.accounting.events import Event, Events, StepRelease
from noisette.errors import open_fraction, positive

# The relative tolerance of noise multipliers and sampling rates, against the least and the largest within the budget.
TOLERANCE = 1e-3
# They are searched on a geometric grid finer than that, so that every search is over integers, as for steps.
RATIO = 1 + TOLERANCE / 4
TENTH = int(math.log(1.1) / math.log(RATIO))
# The limits of the searches, far beyond any real run.
LEAST_RATE, MOST_STEPS = 1e-12, 10**9

# The way out of a budget that does not allow what was asked for.
SEE_PLAN = "`noisette plan --size N --epsilon E --delta D` lists the batches, epochs and noise that a budget allows"

Excess: TypeAlias = Callable[[int], float]

NO_EVENTS: Events = MappingProxyType({})


def with_releases(prior_events: Events, event: Event, times: int) -> Events:
    """The earlier events and this many further releases of one event."""
    return {**prior_events, event: prior_events.get(event, 0) + times}


@dataclass(frozen=True)
class BudgetSearch:
    """A budget of epsilon at a delta, the accountant that measures it, and the prior events that it covers."""

    epsilon: float
    delta: float
    accountant: Accountant
    prior_events: Events

    def __post_init__(self) -> None:
        positive(epsilon=self.epsilon)
        open_fraction(delta=self.delta)

    @cached_property
    def spent(self) -> float:
        """Epsilon of the prior events."""
        return self.accountant.compose(self.prior_events).epsilon(delta=self.delta) if self.prior_events else 0.0

    @cached_property
    def remaining_distance(self) -> float:
        """The distance between two Gaussians of standard deviation 1 that the rest of the budget allows.

        For a first guess: only many small releases together are close to a single Gaussian mechanism.
        """
        whole, spent = _distance(self.epsilon, self.delta), _distance(self.spent, self.delta)
        return math.sqrt(max(whole**2 - spent**2, 1e-6 * whole**2))

    def last_within_budget(
        self, plan: Callable[[int], tuple[StepRelease, int]], *, most: int, guess: int, stride: int
    ) -> int:
        """The last of the plans 1 to ``most`` that keeps the budget, or 0; each plan costs more than the one before.

        Args:
            plan: from the number of a plan to its event and number of steps.
            most: the number of the last plan.
            guess: the number at which the search starts.
            stride: the first distance that the search moves by.
        """
        excess = self._excess(plan, self.accountant)
        if excess(1) > 0:
            return 0
        return _last_within(excess, most, guess, stride)

    def _excess(self, plan: Callable[[int], tuple[StepRelease, int]], accountant: Accountant) -> Excess:
        """The function from a plan to the logarithm of its epsilon over the budget, limited to a factor of ten."""

        @cache
        def excess(number: int) -> float:
            epsilon = accountant.compose(with_releases(self.prior_events, *plan(number))).epsilon(delta=self.delta)
            logarithm = math.log(min(max(epsilon / self.epsilon, 0.1), 10.0))
            return logarithm if epsilon <= self.epsilon else max(logarithm, 1e-16)  # the quotient may round to 1

        return excess

    def refusal(self, plan: str) -> str:
        """The message for a plan that cannot keep the budget."""
        if self.spent > self.epsilon:
            return (
                f"by the {self.accountant.name} accountant the prior events alone cost epsilon={self.spent:.4g}, "
                f"which leaves nothing of epsilon={self.epsilon} at delta={self.delta}; choose a larger epsilon"
            )
        added = " together with the prior events" if self.prior_events else ""
        return (
            f"the {self.accountant.name} accountant cannot guarantee epsilon={self.epsilon} at delta={self.delta} for "
            f"{plan}{added}; choose a larger epsilon or delta, or another accountant: {SEE_PLAN}"
        )


def _last_within(excess: Excess, most: int, guess: int, stride: int) -> int:
    """The last number from 1 to ``most`` with an excess of 0 or less. The excess increases; that of 1 is at most 0.

    First the search doubles its stride from the guess until the answer is between ``within`` and ``beyond``. Then it
    is a false-position search by the Illinois rule: the next number is where the line between the two ends is zero,
    and an end that stays twice in a row has its excess halved, since otherwise it might never move.
    """
    stride = max(stride, 1)
    within = beyond = min(max(guess, 1), most)
    while within > 1 and excess(within) > 0:
        within, beyond, stride = max(within - stride, 1), within, 2 * stride
    while beyond <= most and excess(beyond) <= 0:
        within, beyond, stride = beyond, min(beyond + stride, most + 1), 2 * stride

    below = excess(within) if within > 1 else -1.0
    above = excess(beyond) if beyond <= most else 1.0
    rose = None
    while beyond - within > 1:
        between = within + int((beyond - within) * below / (below - above))
        between = min(max(between, within + 1), beyond - 1)
        if excess(between) <= 0:
            within, below, above, rose = between, excess(between), above / 2 if rose is True else above, True
        else:
            beyond, above, below, rose = between, excess(between), below / 2 if rose is False else below, False
    return within


@dataclass(frozen=True)
class Grid:
    """A geometric grid of numbers from the least to the most; its places count from 1."""

    least: float
    most: float

    @cached_property
    def places(self) -> int:
        return 1 + int(math.log(self.most / self.least) / math.log(RATIO))

    def place(self, number: float) -> int:
        number = min(max(number, self.least), self.most)
        return self.places - int(math.log(self.most / number) / math.log(RATIO))

    def upwards(self, place: int) -> float:
        return self.most / RATIO ** (self.places - place)

    def downwards(self, place: int) -> float:
        return self.least * RATIO ** (self.places - place)


# Both are for first guesses only, so their arguments are clamped to where no arithmetic overflows.
def _distance(epsilon: float, delta: float) -> float:
    """About the distance between the means of two Gaussians of standard deviation 1 that are (epsilon, delta)-close."""
    tail, epsilon = math.log(1 / delta), min(epsilon, 1e6)
    return max(math.sqrt(2) * epsilon / (math.sqrt(tail + epsilon) + math.sqrt(tail)), 1e-100) if epsilon else 0.0


def divergence(sampling_rate: float, noise_multiplier: float) -> float:
    """Chi-square divergence of one release: its share of the squared distance of many small ones together."""
    noise = min(max(noise_multiplier, LEAST_NOISE), MOST_NOISE)
    return max(sampling_rate, LEAST_RATE) ** 2 * math.expm1(min(noise**-2, 700.0))
