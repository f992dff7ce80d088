"""The solver: noise, steps or epsilon of a run, given all others; settings that keep a budget."""

import math
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import cache, cached_property, partial
from itertools import product
from types import MappingProxyType
from typing import TypeAlias

from noisette.accounting.events import Event, Events, PoissonGaussian, StepRelease, check_events
from noisette.accounting.filters import RenyiFilter, RenyiOdometer
from noisette.accounting.interface import LEAST_NOISE, MOST_NOISE, Accountant
from noisette.accounting.pld import PldAccountant
from noisette.errors import all_of, count, open_fraction, positive, probability

# Noise multipliers are searched, as steps are, over integers: on a geometric grid finer than their tolerance, 1e-3.
RATIO = 1 + 1e-3 / 4
TENTH = int(math.log(1.1) / math.log(RATIO))
LEAST_RATE, MOST_STEPS = 1e-12, 10**9  # the limits of the searches, far beyond any real run
# The way out of a budget that does not allow what was asked for.
SEE_PLAN = "`noisette plan --size N --epsilon E --delta D` lists the batches, epochs and noise that a budget allows"

NO_EVENTS: Events = MappingProxyType({})
Given: TypeAlias = float | None  # a parameter of a run that may be left out

# What the end of the tail of this library's noise adds to delta at most, at any epsilon up to 900: of all releases
# together, up to 1e40 values with noise, whatever the mechanisms are. See ``core.noise``.
NOISE_TAIL = 1e-30


def _above_tail(*, delta: float) -> None:
    open_fraction(delta=delta)
    if delta <= NOISE_TAIL:
        raise ValueError(f"expected delta above {NOISE_TAIL:g}, which the tail of the noise may take, got {delta=:g}")


_RANGES: dict[str, Callable[..., None]] = {
    **dict.fromkeys(("epsilon", "noise_multiplier", "epochs", "expected_batch_size"), positive),
    **dict.fromkeys(("steps", "batch_size", "size", "public_size", "bands", "group_size"), count),
    **{"delta": _above_tail, "sampling_rate": probability},
}


def check_ranges(**numbers: Given) -> None:
    """Check every given parameter of a run, ``None`` being one that is not given, and report all problems at once."""
    all_of(*(partial(_RANGES[name], **{name: number}) for name, number in numbers.items() if number is not None))


def with_releases(prior_events: Events, event: Event, times: int) -> Events:
    """The earlier events and this many further releases of one event."""
    check_events(prior_events)
    return {**prior_events, event: prior_events.get(event, 0) + times}


@dataclass(frozen=True)
class Budget:
    """A budget of epsilon at a delta, the accountant that computes the cost, and prior events that it covers."""

    epsilon: float
    delta: float
    accountant: Accountant | None  # unless given the tightest, or one that holds whatever prior events have shown
    prior_events: Events

    def __post_init__(self) -> None:
        positive(epsilon=self.epsilon)
        open_fraction(delta=self.delta)

    @cached_property
    def _accountant(self) -> Accountant:
        adaptive = RenyiFilter(self.epsilon, self.delta) if self.prior_events else PldAccountant()
        return self.accountant or adaptive

    @cached_property
    def _spent(self) -> float:
        return self._cost(self.prior_events) if self.prior_events else 0.0

    @cached_property
    def _remaining_distance(self) -> float:
        """A first guess of the distance between two Gaussians that the rest of the budget allows, in deviations."""
        whole, spent = _distance(self.epsilon, self.delta), _distance(self._spent, self.delta)
        return math.sqrt(max(whole**2 - spent**2, 1e-6 * whole**2))

    def _cost(self, events: Events) -> float:
        return self._accountant.compose(events).epsilon(delta=self.delta)

    def _last_within(self, run: Callable[[int], Events], *, most: int, guess: int, stride: int) -> int:
        """The last of the runs 1 to ``most`` that keeps the budget, or 0; each run costs more than the one before.

        First the search doubles its stride from the guess until the answer is between ``within`` and ``beyond``. Then
        it is a false-position search by the Illinois rule: an end that stays twice in a row has its excess halved.
        """

        @cache
        def excess(number: int) -> float:
            """The logarithm of epsilon over the budget, limited to a factor of ten."""
            epsilon = self._cost(run(number))
            logarithm = math.log(min(max(epsilon / self.epsilon, 0.1), 10.0))
            return logarithm if epsilon <= self.epsilon else max(logarithm, 1e-16)  # the quotient may round to 1

        if excess(1) > 0:
            return 0
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

    def least_noise(self, run: Callable[[float], Events], *, sampling_rate: float, steps: int) -> float:
        """The least noise of the grid with which a run, of the events of ``run``, keeps the budget; or an error."""
        count(steps=steps)
        size = 1 + _places(MOST_NOISE)

        def with_noise(place: int) -> float:
            return LEAST_NOISE * RATIO ** (size - place)

        distance = self._remaining_distance / max(sampling_rate, LEAST_RATE)
        first = size - _places(_resolved(1 / math.sqrt(math.log1p(distance**2 / steps))))
        place = self._last_within(lambda place: run(with_noise(place)), most=size, guess=first, stride=TENTH)
        if place:
            return with_noise(place)
        name = self._accountant.name
        if self._spent > self.epsilon:
            raise ValueError(
                f"by the {name} accountant the prior events alone cost epsilon={self._spent:.4g}, which leaves nothing "
                f"of epsilon={self.epsilon} at delta={self.delta}; choose a larger epsilon"
            )
        added = " together with the prior events" if self.prior_events else ""
        raise ValueError(
            f"the {name} accountant cannot guarantee epsilon={self.epsilon} at delta={self.delta} for {steps} steps of "
            f"rate {sampling_rate:.3g}, whatever the noise{added}; choose a larger epsilon or delta, or another "
            f"accountant: {SEE_PLAN}"
        )


def _places(noise_multiplier: float) -> int:
    """How many places of the grid are between the least noise and this one."""
    return int(abs(math.log(LEAST_NOISE / noise_multiplier)) / math.log(RATIO))


# For first guesses only: there arguments are clamped to where no arithmetic overflows.
def _distance(epsilon: float, delta: float) -> float:
    """About the distance between the means of two Gaussians of standard deviation 1 that are (epsilon, delta)-close."""
    tail, epsilon = math.log(1 / delta), min(epsilon, 1e6)
    return max(math.sqrt(2) * epsilon / (math.sqrt(tail + epsilon) + math.sqrt(tail)), 1e-100) if epsilon else 0.0


def _resolved(noise_multiplier: float) -> float:
    return min(max(noise_multiplier, LEAST_NOISE), MOST_NOISE)


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
        epsilon, delta: the budget, above 0, and the probability with which that bound may fail, in (0, 1).
        sampling_rate: probability in (0, 1] that an example is in a batch.
        steps: number of releases, at least 1.
        accountant: computes the privacy cost. Unless given it is :class:`PldAccountant`, or with prior events
            :class:`~noisette.accounting.filters.RenyiFilter`, which holds also where their results chose these steps.
        prior_events: other releases about the same records, which count towards the same budget.

    Guarantee: by this accountant the result costs ``epsilon`` or less. With one part in a thousand less noise it would
    cost more; where the budget is kept at any noise, the result is the least noise that accountants resolve, 0.001.
    An argument outside its range is a ``TypeError`` or ``ValueError``, as is a budget that no noise keeps.

    >>> sigma = noise_multiplier_for(epsilon=3.0, delta=1e-5, sampling_rate=0.01, steps=6000)
    >>> 2.99 < epsilon_for(delta=1e-5, sampling_rate=0.01, noise_multiplier=sigma, steps=6000) <= 3.0
    True
    """
    return least_noise(partial(PoissonGaussian, sampling_rate), epsilon, delta, steps, accountant, prior_events)


def least_noise(
    release: Callable[[float], StepRelease],
    epsilon: float,
    delta: float,
    steps: int,
    accountant: Accountant | None = None,
    prior_events: Events = NO_EVENTS,
) -> float:
    """As :func:`noise_multiplier_for`, for a step's ``release`` of any kind with this noise multiplier."""
    budget, rate = Budget(epsilon, delta, accountant, prior_events), release(MOST_NOISE).sampling_rate
    return budget.least_noise(
        lambda noise: with_releases(prior_events, release(noise), steps), sampling_rate=rate, steps=steps
    )


def least_noisy(
    releases: Sequence[Callable[[float], StepRelease]],
    *,
    epsilon: float,
    delta: float,
    steps: int,
    accountant: Accountant,
    prior_events: Events = NO_EVENTS,
) -> StepRelease:
    """As :func:`least_noise`, the release that needs the least noise among several ways to draw a step's batch."""
    noises = [least_noise(release, epsilon, delta, steps, accountant, prior_events) for release in releases]
    quietest = noises.index(min(noises))
    return releases[quietest](noises[quietest])


def cheapest(releases: Sequence[StepRelease], *, delta: float, steps: int, accountant: Accountant) -> StepRelease:
    """The release with the lowest epsilon at this delta when it is repeated for so many steps."""
    if len(releases) == 1:  # also where the accountant does not support it
        return releases[0]
    return min(releases, key=lambda release: accountant.compose({release: steps}).epsilon(delta=delta))


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

    The arguments and the errors are those of :func:`noise_multiplier_for`.

    Guarantee: by this accountant so many steps cost ``epsilon`` or less, and one step more costs more, unless the
    result is a billion, the most that it returns.

    >>> steps_for(epsilon=1.0, delta=1e-5, sampling_rate=0.01, noise_multiplier=4.0)
    11049
    """
    budget = Budget(epsilon, delta, accountant, prior_events)
    release = PoissonGaussian(sampling_rate, noise_multiplier)
    # Chi-square divergence of a release: its share of the squared distance of many small ones together.
    share = max(sampling_rate, LEAST_RATE) ** 2 * math.expm1(min(_resolved(noise_multiplier) ** -2, 700.0))
    guess = int(min(budget._remaining_distance**2 / share, MOST_STEPS))
    return budget._last_within(
        lambda steps: with_releases(prior_events, release, steps), most=MOST_STEPS, guess=guess, stride=guess // 10
    )


def epsilon_for(
    *,
    delta: float,
    sampling_rate: float,
    noise_multiplier: float,
    steps: int,
    accountant: Accountant | None = None,
    prior_events: Events = NO_EVENTS,
) -> float:
    """Epsilon of these steps and of the prior events together: an upper bound if the accountant's are, as by default.

    The arguments and the errors are those of :func:`noise_multiplier_for`, but that the accountant of prior events is
    :class:`~noisette.accounting.filters.RenyiOdometer` unless given.

    >>> round(epsilon_for(delta=1e-5, sampling_rate=0.01, noise_multiplier=4.0, steps=10_000), 3)
    0.947
    """
    release = PoissonGaussian(sampling_rate, noise_multiplier)
    count(steps=steps)
    adaptive = RenyiOdometer() if prior_events else PldAccountant()
    return (accountant or adaptive).compose(with_releases(prior_events, release, steps)).epsilon(delta=delta)


def schedule(
    expected_batch_size: float, sampling_rate: Given, steps: int | None, public_size: int | None, epochs: Given
) -> tuple[float, int]:
    """Sampling rate and steps: as declared, or computed from the declared size and epochs."""
    if sampling_rate is None:
        assert public_size is not None
        sampling_rate = expected_batch_size / public_size
        if sampling_rate > 1:
            raise ValueError(f"a batch of {expected_batch_size} exceeds the declared size of {public_size} records")
    if steps is None:
        assert epochs is not None
        steps = max(1, round(epochs / sampling_rate))
    return float(sampling_rate), steps


LEAST_STEPS = 500  # fewer hardly train a model, whatever their noise
NEARLY = 0.95  # of the largest signal: more would cost much computation for little


@dataclass(frozen=True)
class Setting:
    """One way to train on Poisson batches of this expected size, with its epsilon at the delta of the plan."""

    batch_size: int
    epochs: float
    sampling_rate: float
    steps: int
    noise_multiplier: float
    epsilon: float

    @property
    def signal(self) -> float:
        """Total signal to noise: sqrt(steps) * sampling_rate / noise_multiplier.

        Where every gradient has the clipping norm and the same direction, it is the sum of all noised averages over the
        standard deviation of its noise, divided by the declared size.
        Source: Sander, Stock and Sablayrolles 2023 (TAN), section 3, up to a constant.
        """
        return math.sqrt(self.steps) * self.sampling_rate / self.noise_multiplier


def recommended(settings: Sequence[Setting]) -> Setting:
    """The setting to start from: the least computation that has nearly all the signal which the budget allows.

    Of the settings of at least ``LEAST_STEPS`` steps, if there are any, with at least ``NEARLY`` of the largest signal:
    the one with the fewest epochs, and of these the one with the most signal.
    """
    enough = [setting for setting in settings if setting.steps >= LEAST_STEPS] or list(settings)
    most = max(setting.signal for setting in enough)
    near = (setting for setting in enough if setting.signal >= NEARLY * most)
    return min(near, key=lambda setting: (setting.epochs, -setting.signal))


def within_budget(
    *, size: int, epsilon: float, delta: float, batch_sizes: Sequence[int], epochs: Sequence[float]
) -> Iterator[Setting]:
    """Every batch size with every number of epochs, and the least noise within a budget.

    A number outside its range, a batch above ``size``, or a budget that no noise keeps is a ``ValueError``.

    >>> found = within_budget(size=60_000, epsilon=1.0, delta=1e-5, batch_sizes=[600], epochs=[10, 100])
    >>> [f"{setting.steps} steps: {setting.noise_multiplier:.1f}" for setting in found]
    ['1000 steps: 1.4', '10000 steps: 3.8']
    """
    for batch_size, passes in product(batch_sizes, epochs):
        rate, steps = schedule(batch_size, None, None, size, passes)
        noise = noise_multiplier_for(epsilon=epsilon, delta=delta, sampling_rate=rate, steps=steps)
        cost = epsilon_for(delta=delta, sampling_rate=rate, noise_multiplier=noise, steps=steps)
        yield Setting(batch_size, passes, rate, steps, noise, cost)
