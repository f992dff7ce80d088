"""Solve for one of noise multiplier, steps, sampling rate, epsilon and delta, given the other four."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence

from noisette.accounting.accountants.interface import LEAST_NOISE, MOST_NOISE, Accountant
from noisette.accounting.accountants.pld import PldAccountant
from noisette.accounting.budget_search import (
    LEAST_RATE,
    MOST_STEPS,
    NO_EVENTS,
    TENTH,
    BudgetSearch,
    Grid,
    divergence,
    with_releases,
)
from noisette.accounting.events import Event, Events, PoissonGaussian, StepRelease
from noisette.errors import count, positive


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
