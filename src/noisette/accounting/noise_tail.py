"""What a noise generator that cannot reach the far tail of the Gaussian adds to delta."""

from __future__ import annotations

import math

import numpy as np
from scipy.special import ndtr

from noisette._internal.checks import count, positive, probability
from noisette.accounting.events import (
    Event,
    Events,
    FixedSizeGaussian,
    Gaussian,
    GroupPrivacy,
    PoissonGaussian,
    RepeatAndSelect,
)

# The largest magnitude that Box-Muller makes of a uniform number with 53 random bits, in standard deviations.
RADIUS = math.sqrt(2 * 53 * math.log(2))

# The part of delta that a run sets aside for this.
TAIL_SHARE = 0.01

# Taken for the dimensions of a release of which a ledger does not tell them: no process noises so many elements.
MOST_DIMENSIONS = 2**40


def tail_delta(*, noise_multiplier: float, sampling_rate: float, steps: int, dimensions: int) -> float:
    """The part of delta that goes to the tail of the noise, which 53 random bits cannot reach.

    One example that shifts k elements equally moves each by 1 / (noise multiplier * sqrt(k)) standard deviations, and
    with it the edge of what can come out. Neither one element nor all of them need be the worst, so all k are tried
    (on a geometric grid), and the result is doubled, because a real generator is lumpy near its edge.

    Args:
        noise_multiplier: standard deviation of the noise in units of the bound, above 0.
        sampling_rate: probability in (0, 1] that an example is in a batch.
        steps: number of releases, at least 1.
        dimensions: number of elements that are noised, at least 1.

    Guarantee: the run is (epsilon, delta + tail_delta)-private if it were (epsilon, delta)-private with noise from the
    whole Gaussian.

    Raises:
        TypeError, ValueError: a number is outside its range.

    >>> f"{tail_delta(noise_multiplier=1.0, sampling_rate=0.01, steps=10_000, dimensions=10**6):.1e}"
    '8.9e-12'
    """
    positive(noise_multiplier=noise_multiplier)
    probability(sampling_rate=sampling_rate)
    count(steps=steps, dimensions=dimensions)
    spread = np.unique(np.append(np.geomspace(1, dimensions, 200).round(), dimensions))
    shift = 1 / (noise_multiplier * np.sqrt(spread))
    unreachable = spread * (ndtr(shift - RADIUS) - ndtr(-RADIUS))
    return min(1.0, 2 * sampling_rate * steps * float(unreachable.max()))


def tail_delta_of(events: Events, *, dimensions: int = MOST_DIMENSIONS) -> float:
    """The part of delta that goes to the tail of the noise in all these releases together.

    Args:
        events: what a ledger holds; the shares of a release with several parts are one noise.
        dimensions: number of elements that each release noised, at most.

    Guarantee: as that of :func:`tail_delta`, for all of them together.

    >>> tail_delta_of({PoissonGaussian(0.01, 1.0): 10_000}) < 1e-8
    True
    """
    return min(1.0, sum(times * _tail_of_one(event, dimensions) for event, times in events.items()))


def _tail_of_one(event: Event, dimensions: int) -> float:
    match event:
        case Gaussian():
            noise, rate = event.noise_multiplier, 1.0
        case PoissonGaussian():
            noise, rate = event.noise_multiplier, event.sampling_rate
        case FixedSizeGaussian():  # one example goes and another comes
            noise, rate = event.noise_multiplier / 2, event.batch_size / event.size
        case GroupPrivacy():  # all of a group at once is the most that a step can see of it
            release, rate = event.event, 1.0
            if isinstance(release, PoissonGaussian):
                rate = min(1.0, event.records * release.sampling_rate)
            noise = release.noise_multiplier / event.records
        case RepeatAndSelect():
            return event.mean * tail_delta_of(dict(event.run), dimensions=dimensions)
        case _:
            raise TypeError(f"expected an event of this package, got {event!r}")
    return tail_delta(noise_multiplier=noise, sampling_rate=rate, steps=1, dimensions=dimensions)
