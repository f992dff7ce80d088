"""The part of delta that a noise generator costs because it cannot reach the far tail of the Gaussian."""

from __future__ import annotations

import math
from functools import cache

import numpy as np
import scipy  # scipy.special, a fifth of a second, is imported on first use

from noisette._internal.checks import count, positive, probability
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
    TruncatedPoissonGaussian,
    UserLevel,
    ZcdpAmount,
    in_whole_rounds,
)

# The largest radius of a Box-Muller pair for a uniform number of 53 random bits, in standard deviations, and the
# probability that the radius of two Gaussian numbers is larger.
RADIUS = math.sqrt(2 * 53 * math.log(2))
BEYOND = 2.0**-53

# The part of delta that a run reserves for this.
TAIL_SHARE = 0.01

# The dimensions assumed for a release whose dimensions are not known: far more than any release has.
MOST_DIMENSIONS = 2**40

# Per standard deviation by which one pair is shifted: twice the area of the crescent over its largest density, and
# the distance of the distributions with and without that pair.
_PER_SHIFT = BEYOND * (2 * RADIUS / math.pi + 1 / math.sqrt(2 * math.pi))

# The mass beyond the radius is a convex function of the square of the shift up to here.
_MOST_CONVEX_SHIFT = 8.0

_TERMS = np.arange(1, 300)  # the terms that follow sum to less than 1e-90

# The largest group whose numbers of records in a batch are counted one by one.
_MOST_COUNTED = 1000

# Above the relative error of the functions that are evaluated here.
_ROUNDING = 1e-9


def tail_delta(*, noise_multiplier: float, sampling_rate: float, steps: int, dimensions: int) -> float:
    """The part of delta that the tail of the noise takes, which 53 random bits cannot reach.

    The generator makes numbers in pairs, a point of a disc. An example moves the disc of each pair, so outcomes in the
    crescent between the two discs show on which side it was. A pair that is shifted by s standard deviations has a
    crescent of mass T(s) = Q(s) - Q(0) + (mass of the other crescent beyond its own disc), where Q(s) is the
    probability that a Gaussian point at distance s is outside the disc; the last part is below the area of a crescent
    times the density at its edge, s R / pi * 2^-53. For a Poisson batch a crescent counts up to twice: its outcomes are
    impossible without the example, and in the other direction they lack the example's share.

    The shifts of all pairs have squares that add up to 1 / (noise multiplier)^2. The part of a bound that is linear in
    the shift is largest for equal shifts (Cauchy-Schwarz), with as many pairs as elements, since an element may be the
    only one of its pair. Q(s) - Q(0) is convex in s^2 up to a shift of 8, so it is largest if one pair has it all.

    Args:
        noise_multiplier: standard deviation of the noise in units of the sensitivity, above 0.
        sampling_rate: probability in (0, 1] that an example is in a batch.
        steps: number of releases, at least 1.
        dimensions: number of elements with noise, at least 1.

    Guarantee: the run is (epsilon, delta + tail_delta)-private if it would be (epsilon, delta)-private with exact
    Gaussian noise, for noise of pairs that are Gaussian but for the radii beyond the largest one
    (the proof is in docs/decisions/0003-noise.md). That the radii have 53 bits is not part of this.

    Raises:
        TypeError, ValueError: an argument is outside its range.

    >>> f"{tail_delta(noise_multiplier=1.0, sampling_rate=0.01, steps=10_000, dimensions=10**6):.1e}"
    '7.6e-11'
    """
    positive(noise_multiplier=noise_multiplier)
    probability(sampling_rate=sampling_rate)
    count(steps=steps, dimensions=dimensions)
    return min(1.0, sampling_rate * steps * _tail(1 / float(noise_multiplier), dimensions))


def tail_delta_of(events: Events, *, dimensions: int = MOST_DIMENSIONS) -> float:
    """The part of delta that the tail of the noise takes in all these releases together.

    Args:
        events: the events of a ledger; the parts of one release share one noise.
        dimensions: the most elements with noise in any release.

    Guarantee: that of :func:`tail_delta`, for all of them together. Releases of other mechanisms and other tools take
    nothing: this library does not draw their noise, and what they state includes their generators. The number of runs
    of a search is drawn exactly.

    >>> tail_delta_of({PoissonGaussian(0.01, 1.0): 10_000}, dimensions=10**6) < 1e-10
    True
    """
    total = math.fsum(
        _tail_of_one(event, dimensions) * in_whole_rounds(event, times) for event, times in events.items()
    )
    return min(1.0, total)


def _tail_of_one(event: Event, dimensions: int) -> float:
    """The part of delta of one release.

    Replacing a record, and removing one whose place in a truncated batch another takes, changes the sum by up to twice
    the sensitivity; both data sets then have sums that the other lacks, which doubles the share of the batches. The
    record of a step of balls-in-bins batches is as good as known to be in it, if it was in none of the others. A search
    counts each of its runs, by their mean.
    """
    match event:
        case Gaussian() | PoissonGaussian():
            return event.sampling_rate * _tail(1 / event.noise_multiplier, dimensions)
        case BandedGaussian():  # a record's part of a round has noise on the elements of all of its steps
            return event.sampling_rate * _tail(1 / event.noise_multiplier, dimensions * event.bands)
        case BallsInBinsGaussian():
            return _tail(1 / event.noise_multiplier, dimensions)
        case FixedSizeGaussian():
            return min(1.0, 2 * event.batch_size / event.size) * _tail(2 / event.noise_multiplier, dimensions)
        case TruncatedPoissonGaussian():
            return min(1.0, 2 * event.sampling_rate) * _tail(2 / event.noise_multiplier, dimensions)
        case GroupPrivacy() | UserLevel():
            return _group_tail(event, dimensions)
        case RepeatAndSelect():
            return event.mean * tail_delta_of(dict(event.run), dimensions=dimensions)
        case Laplace() | DiscreteGaussian() | ZcdpAmount() | DpAmount():
            return 0.0
        case _:
            raise TypeError(f"expected an event of this package, got {event!r}")


def _tail(shift: float, dimensions: int) -> float:
    """The bound of :func:`tail_delta` for one release that contains the example, which it shifts by so much."""
    return min(1.0, (_PER_SHIFT * shift * math.sqrt(dimensions) + 2 * _moved_beyond(shift)) * (1 + _ROUNDING))


def _moved_beyond(shift: float) -> float:
    """Q(s) - Q(0): by how much a shift increases the probability that a Gaussian point is outside the disc.

    Half of the squared radius of the shifted point exceeds x = R^2 / 2 if and only if a Poisson variable of mean x is
    at most an independent one of mean s^2 / 2. Without the shift the former must be 0, which leaves positive terms.

    A shift above 8, where it is no longer convex in the square of the shift, counts as 1.
    """
    if shift > _MOST_CONVEX_SHIFT:
        return 1.0
    return float(_poisson_weights() @ scipy.special.gammainc(_TERMS, shift**2 / 2))


@cache
def _poisson_weights() -> np.ndarray:
    """The probabilities of a Poisson variable of mean R^2 / 2 at each of the terms."""
    return np.exp(_TERMS * math.log(RADIUS**2 / 2) - RADIUS**2 / 2 - scipy.special.gammaln(_TERMS + 1))


def _group_tail(event: GroupPrivacy | UserLevel, dimensions: int) -> float:
    """The bound for several records, of which a binomial number is in the batch: the smaller of two.

    By the first, a ring takes the place of the crescents: the records of the group may shift the disc in any direction.
    By the second, crescents count by the probability of their number of records, over that of a batch without any.
    """
    release, records = event.event, event.records
    shift, rate, spread = 1 / release.noise_multiplier, release.sampling_rate, math.sqrt(dimensions)
    if rate == 1:
        return _tail(records * shift, dimensions)
    bounds = [1.0, records * rate]
    if records * shift <= _MOST_CONVEX_SHIFT:
        edge = RADIUS * records * shift
        bounds.append(BEYOND * (records * shift * spread + 2 * (edge * spread + math.expm1(edge) - edge)))
    if records <= _MOST_COUNTED:
        numbers = np.arange(1, records + 1)
        beyond = np.array([_moved_beyond(number * shift) for number in numbers.tolist()])
        crescents = _PER_SHIFT * spread * records * rate * shift + 2 * float(_binomial(numbers, records, rate) @ beyond)
        bounds.append(crescents / max((1 - rate) ** records, BEYOND))
    return min(1.0, min(bounds) * (1 + _ROUNDING))


def _binomial(numbers: np.ndarray, records: int, rate: float) -> np.ndarray:
    """The probabilities that so many of the records are in a batch."""
    ways = (
        scipy.special.gammaln(records + 1)
        - scipy.special.gammaln(numbers + 1)
        - scipy.special.gammaln(records - numbers + 1)
    )
    return np.exp(ways + scipy.special.xlogy(numbers, rate) + scipy.special.xlog1py(records - numbers, -rate))
