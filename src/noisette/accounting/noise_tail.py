"""The part of delta that a noise generator costs because it cannot reach the far tail of the Gaussian."""

from __future__ import annotations

import math

import numpy as np
from scipy.special import ndtr

from noisette._internal.checks import count, positive, probability
from noisette.accounting.events import (
    BallsInBinsGaussian,
    Event,
    Events,
    FixedSizeGaussian,
    Gaussian,
    GroupPrivacy,
    PoissonGaussian,
    RepeatAndSelect,
    TruncatedPoissonGaussian,
    UserLevel,
)

# The largest value that Box-Muller returns for a uniform number of 53 random bits, in standard deviations.
RADIUS = math.sqrt(2 * 53 * math.log(2))

# The part of delta that a run reserves for this.
TAIL_SHARE = 0.01

# The dimensions assumed for a release in a ledger, which does not record them: far more than any release has.
MOST_DIMENSIONS = 2**40


def tail_delta(*, noise_multiplier: float, sampling_rate: float, steps: int, dimensions: int) -> float:
    """The part of delta that the tail of the noise takes, which 53 random bits cannot reach.

    One example that shifts k elements equally shifts each by 1 / (noise multiplier * sqrt(k)) standard deviations, and
    with it the limits of the possible outcomes. Neither one element nor all of them need be the worst case, so all k
    are tried (on a geometric grid). The result is doubled, because a real generator is uneven near its limits.

    Args:
        noise_multiplier: standard deviation of the noise in units of the sensitivity, above 0.
        sampling_rate: probability in (0, 1] that an example is in a batch.
        steps: number of releases, at least 1.
        dimensions: number of elements with noise, at least 1.

    Guarantee: the run is (epsilon, delta + tail_delta)-private if it would be (epsilon, delta)-private with exact
    Gaussian noise.

    Raises:
        TypeError, ValueError: an argument is outside its range.

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
    """The part of delta that the tail of the noise takes in all these releases together.

    Args:
        events: the events of a ledger; the parts of one release share one noise.
        dimensions: the most elements with noise in any release.

    Guarantee: that of :func:`tail_delta`, for all of them together.

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
        case FixedSizeGaussian():  # one example is replaced by another: twice the sensitivity
            noise, rate = event.noise_multiplier / 2, event.batch_size / event.size
        case TruncatedPoissonGaussian():  # a record may displace another one: twice the sensitivity
            noise, rate = event.noise_multiplier / 2, event.sampling_rate
        case BallsInBinsGaussian():  # what was released before may tell that the record is in this batch
            noise, rate = event.noise_multiplier, 1.0
        case GroupPrivacy() | UserLevel():  # at worst all records of the group are in the batch
            release, rate = event.event, 1.0
            if isinstance(release, PoissonGaussian):
                rate = min(1.0, event.records * release.sampling_rate)
            noise = release.noise_multiplier / event.records
        case RepeatAndSelect():
            return event.mean * tail_delta_of(dict(event.run), dimensions=dimensions)
        case _:
            raise TypeError(f"expected an event of this package, got {event!r}")
    return tail_delta(noise_multiplier=noise, sampling_rate=rate, steps=1, dimensions=dimensions)
