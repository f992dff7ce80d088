"""The parameters of a run: declared before its first step and fixed until its last, also when it is resumed."""

from __future__ import annotations

import math
import secrets
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cache, cached_property
from types import MappingProxyType
from typing import Any, Self, TypeAlias

from noisette import errors as checks
from noisette.accounting.events import Event, Events, PoissonGaussian, StepRelease, event_of, facts_of
from noisette.accounting.interface import LEAST_NOISE, MOST_NOISE, Accountant, PrivacyCurve
from noisette.accounting.ledger import Ledger
from noisette.accounting.pld import PldAccountant
from noisette.errors import PrivacyError, count, open_fraction, positive


@dataclass(frozen=True)
class RunParameters:
    """What a run is allowed to release, and the id by which it finds its lines in the ledger.

    Args:
        event: the release of one step.
        expected_batch_size: the constant that the noised sum is divided by, in examples.
        steps: number of steps.
        delta: probability with which the bound on epsilon may fail, if declared.
        epsilon: the budget of everything in the ledger, if there is one.
        run: the id in the run's lines, drawn at random unless given.
    """

    event: StepRelease
    expected_batch_size: float
    steps: int
    delta: float | None = None
    epsilon: float | None = None
    run: str = field(default_factory=lambda: secrets.token_hex(8))

    def spent(self, ledger: Ledger) -> int:
        """How many steps of this run a ledger holds: taken, reserved, or lost in a crash."""
        return sum(steps for series, steps in ledger.paid.items() if series.run == self.run)

    def beside(self, ledger: Ledger) -> dict[Event, int]:
        """The events in a ledger that are not of this run, with how often each happens."""
        beside: Counter[Event] = Counter()
        for series, times in ledger.paid.items():
            if series.run != self.run:
                beside[series.event] += times
        return dict(beside)

    def facts(self) -> dict[str, Any]:
        """The parameters as plain values."""
        return vars(self) | {"event": facts_of(self.event)}

    @classmethod
    def of(cls, facts: Mapping[str, Any]) -> Self:
        """The parameters that these facts were written from.

        Raises:
            KeyError, TypeError, ValueError: they do not describe a run.
        """
        event = event_of(facts["event"])
        if not isinstance(event, StepRelease):
            raise ValueError(f"a run of steps does not release a {event!r}")
        checks.count(steps=facts["steps"])
        if type(facts["run"]) is not str or not facts["run"]:
            raise ValueError(f"expected the id of a run as text, got {facts['run']!r}")
        checks.positive(expected_batch_size=facts["expected_batch_size"])
        return cls(event, *(facts[name] for name in ("expected_batch_size", "steps", "delta", "epsilon", "run")))


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


def noise_multiplier_for(
    *,
    epsilon: float,
    delta: float,
    sampling_rate: float,
    steps: int,
    accountant: Accountant | None = None,
    prior_events: Events = NO_EVENTS,
) -> float:
    """The least noise multiplier with which these steps stay within the budget, within one part in a thousand.

    Args:
        epsilon: the budget, above 0.
        delta: the probability with which the bound on epsilon may fail, in (0, 1).
        sampling_rate: probability in (0, 1] that an example is in a batch.
        steps: number of releases, at least 1.
        accountant: computes the privacy cost; :class:`PldAccountant` unless given.
        prior_events: other releases about the same records, which count towards the same budget.

    Guarantee: by this accountant the result costs ``epsilon`` or less. With one part in a thousand less noise it would
    cost more; where the budget is kept at any noise, the result is the least noise that accountants resolve, 0.001.

    Raises:
        TypeError, ValueError: an argument is outside its range, or no noise keeps the budget by this accountant.

    >>> sigma = noise_multiplier_for(epsilon=3.0, delta=1e-5, sampling_rate=0.01, steps=6000)
    >>> 2.99 < epsilon_for(delta=1e-5, sampling_rate=0.01, noise_multiplier=sigma, steps=6000) <= 3.0
    True
    """
    return least_noise(
        lambda noise: PoissonGaussian(sampling_rate, noise),
        epsilon=epsilon,
        delta=delta,
        steps=steps,
        accountant=accountant,
        prior_events=prior_events,
    )


def least_noise(
    release: Callable[[float], StepRelease],
    *,
    epsilon: float,
    delta: float,
    steps: int,
    accountant: Accountant | None = None,
    prior_events: Events = NO_EVENTS,
) -> float:
    """The least noise multiplier of any kind of release; :func:`noise_multiplier_for` is that of Poisson batches.

    Args:
        release: the release of one step with this noise multiplier. Less noise costs more.

    The other arguments, the guarantee and the errors are those of :func:`noise_multiplier_for`.
    """
    budget = BudgetSearch(epsilon, delta, accountant or PldAccountant(), prior_events)
    sampling_rate = release(MOST_NOISE).sampling_rate
    count(steps=steps)
    grid = Grid(LEAST_NOISE, MOST_NOISE)
    guess = 1 / math.sqrt(math.log1p((budget.remaining_distance / max(sampling_rate, LEAST_RATE)) ** 2 / steps))
    place = budget.last_within_budget(
        lambda place: (release(grid.downwards(place)), steps),
        most=grid.places,
        guess=grid.places + 1 - grid.place(guess),
        stride=TENTH,
    )
    if not place:
        raise ValueError(budget.refusal(f"{steps} steps of rate {sampling_rate}, whatever the noise"))
    return grid.downwards(place)


def least_noisy(
    releases: Sequence[Callable[[float], StepRelease]],
    *,
    epsilon: float,
    delta: float,
    steps: int,
    accountant: Accountant,
    prior_events: Events = NO_EVENTS,
) -> StepRelease:
    """The release that needs the least noise within the budget, among several ways to draw a step's batch.

    The arguments, the guarantee and the errors are those of :func:`least_noise`, which has one way.
    """
    noises = [
        least_noise(
            release, epsilon=epsilon, delta=delta, steps=steps, accountant=accountant, prior_events=prior_events
        )
        for release in releases
    ]
    quietest = noises.index(min(noises))
    return releases[quietest](noises[quietest])


def cheapest(releases: Sequence[StepRelease], *, delta: float, steps: int, accountant: Accountant) -> StepRelease:
    """The release with the lowest epsilon at this delta when it is repeated for so many steps."""
    if len(releases) == 1:  # also where the accountant does not know it
        return releases[0]
    return min(releases, key=lambda release: accountant.compose({release: steps}).epsilon(delta=delta))


def sampling_rate_for(
    *,
    epsilon: float,
    delta: float,
    noise_multiplier: float,
    steps: int,
    accountant: Accountant | None = None,
    prior_events: Events = NO_EVENTS,
) -> float:
    """The largest sampling rate with which these steps stay within the budget, within one part in a thousand.

    Args:
        noise_multiplier: standard deviation of the noise in units of the sensitivity, above 0.

    The other arguments are those of :func:`noise_multiplier_for`.

    Guarantee: by this accountant the result costs ``epsilon`` or less. With a rate one part in a thousand larger it
    would cost more, unless the result is 1.

    Raises:
        TypeError, ValueError: an argument is outside its range, or no rate keeps the budget by this accountant.

    >>> rate = sampling_rate_for(epsilon=1.0, delta=1e-5, noise_multiplier=4.0, steps=10_000)
    >>> round(rate, 4)
    0.0105
    """
    budget = BudgetSearch(epsilon, delta, accountant or PldAccountant(), prior_events)
    positive(noise_multiplier=noise_multiplier)
    count(steps=steps)
    grid = Grid(LEAST_RATE, 1.0)
    place = budget.last_within_budget(
        lambda place: (PoissonGaussian(grid.upwards(place), noise_multiplier), steps),
        most=grid.places,
        guess=grid.place(budget.remaining_distance / math.sqrt(steps * divergence(1.0, noise_multiplier))),
        stride=TENTH,
    )
    if not place:
        raise ValueError(budget.refusal(f"{steps} steps of noise multiplier {noise_multiplier}, whatever the rate"))
    return grid.upwards(place)


def steps_for(
    *,
    epsilon: float,
    delta: float,
    sampling_rate: float,
    noise_multiplier: float,
    accountant: Accountant | None = None,
    prior_events: Events = NO_EVENTS,
) -> int:
    """The number of steps that the budget allows; 0 where it does not allow one.

    Args:
        noise_multiplier: standard deviation of the noise in units of the sensitivity, above 0.

    The other arguments are those of :func:`noise_multiplier_for`.

    Guarantee: by this accountant so many steps cost ``epsilon`` or less, and one step more costs more, unless the
    result is a billion, the most that it returns.

    Raises:
        TypeError, ValueError: an argument is outside its range.

    >>> steps_for(epsilon=1.0, delta=1e-5, sampling_rate=0.01, noise_multiplier=4.0)
    11049
    """
    budget = BudgetSearch(epsilon, delta, accountant or PldAccountant(), prior_events)
    release = PoissonGaussian(sampling_rate, noise_multiplier)
    guess = int(min(budget.remaining_distance**2 / divergence(sampling_rate, noise_multiplier), MOST_STEPS))
    return budget.last_within_budget(lambda steps: (release, steps), most=MOST_STEPS, guess=guess, stride=guess // 10)


def epsilon_for(
    *,
    delta: float,
    sampling_rate: float,
    noise_multiplier: float,
    steps: int,
    accountant: Accountant | None = None,
    prior_events: Events = NO_EVENTS,
) -> float:
    """Epsilon of these steps and of the prior events together: an upper bound, like every epsilon of the accountant.

    Args:
        noise_multiplier: standard deviation of the noise in units of the sensitivity, above 0.

    The other arguments are those of :func:`noise_multiplier_for`.

    Raises:
        TypeError, ValueError: an argument is outside its range.

    >>> round(epsilon_for(delta=1e-5, sampling_rate=0.01, noise_multiplier=4.0, steps=10_000), 3)
    0.947
    """
    count(steps=steps)
    run = with_releases(prior_events, PoissonGaussian(sampling_rate, noise_multiplier), steps)
    return (accountant or PldAccountant()).compose(run).epsilon(delta=delta)


def delta_for(
    *,
    epsilon: float,
    sampling_rate: float,
    noise_multiplier: float,
    steps: int,
    accountant: Accountant | None = None,
    prior_events: Events = NO_EVENTS,
) -> float:
    """Delta of these steps and of the prior events together: an upper bound, like every delta of the accountant.

    Args:
        epsilon: the bound whose probability of failure is computed, 0 or more.
        noise_multiplier: standard deviation of the noise in units of the sensitivity, above 0.

    The other arguments are those of :func:`noise_multiplier_for`.

    Raises:
        TypeError, ValueError: an argument is outside its range.

    >>> f"{delta_for(epsilon=1.0, sampling_rate=0.01, noise_multiplier=4.0, steps=10_000):.2e}"
    '4.25e-06'
    """
    count(steps=steps)
    run = with_releases(prior_events, PoissonGaussian(sampling_rate, noise_multiplier), steps)
    return (accountant or PldAccountant()).compose(run).delta(epsilon=epsilon)


def epsilon_curve(
    event: Event,
    *,
    checkpoints: Sequence[int],
    delta: float,
    accountant: Accountant | None = None,
    prior_events: Events = NO_EVENTS,
) -> list[float]:
    """Epsilon after each of these numbers of steps, all of the same event.

    Args:
        event: the release of one step.
        checkpoints: numbers of steps, each at least 1.
        delta: the probability with which the bound on epsilon may fail, in (0, 1).
        accountant: computes the privacy cost; :class:`PldAccountant` unless given.
        prior_events: releases before these steps, which count towards epsilon too.

    Guarantee: each value is an upper bound, like every epsilon of the accountant.

    Raises:
        TypeError, ValueError: a parameter is outside its range.

    >>> from noisette.accounting import PoissonGaussian
    >>> release = PoissonGaussian(sampling_rate=0.01, noise_multiplier=4.0)
    >>> [round(epsilon, 2) for epsilon in epsilon_curve(release, checkpoints=[100, 1000, 10_000], delta=1e-5)]
    [0.08, 0.27, 0.95]
    """
    accountant = accountant or PldAccountant()
    count(**{f"checkpoints[{k}]": steps for k, steps in enumerate(checkpoints)})
    return [accountant.compose(with_releases(prior_events, event, steps)).epsilon(delta=delta) for steps in checkpoints]


NOISE_TAIL = 1e-30
"""What the end of the tail of this library's noise adds to delta at most, at any epsilon up to 900.

It covers all releases together, up to 1e40 values with noise, whatever the mechanisms are: see ``core.noise``.
"""


class PrivacyBudget:
    """Computes the privacy cost of a run together with everything else in its ledger.

    Args:
        terms: the parameters of the run.
        accountant: computes the cost.
        ledger: the releases, as recorded at the time of each call.

    Guarantee: every epsilon up to 900 is an upper bound.
    """

    def __init__(self, terms: RunParameters, accountant: Accountant, ledger: Ledger) -> None:
        self.accountant = accountant
        self.ledger = ledger
        self._terms = terms
        self._curves: dict[frozenset[tuple[Event, int]], PrivacyCurve] = {}

    def epsilon(self, *, delta: float, more_steps: int = 0) -> float:
        """Epsilon of the ledger at this delta, with this many further steps of the run."""
        checks.open_fraction(delta=delta)
        events = Counter(self.ledger.events)
        events[self._terms.event] += more_steps
        spent = frozenset((event, times) for event, times in events.items() if times)
        if spent not in self._curves:
            self._curves[spent] = self.accountant.compose(dict(spent))
        return self._curves[spent].epsilon(delta=delta - NOISE_TAIL) if delta > NOISE_TAIL else math.inf

    def check_budget(self, steps: int) -> None:
        """Check that this many further steps keep the budget, if there is one.

        Raises:
            PrivacyError: they do not.
        """
        budget, delta = self._terms.epsilon, self._terms.delta
        if budget is None or delta is None:
            return
        epsilon = self.epsilon(delta=delta, more_steps=steps)
        if epsilon > budget * (1 + 1e-9):  # the last digits depend on the order of the events
            raise PrivacyError(
                f"with the {steps} steps that are left the ledger would reach epsilon={epsilon:.4g} by the "
                f"{self.accountant.name} accountant, beyond the budget of {budget:g}: the noise is too small for so "
                "many steps, or other releases were made meanwhile. Take fewer steps, more noise or a larger budget: "
                + SEE_PLAN
            )
