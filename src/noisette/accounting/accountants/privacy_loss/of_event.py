"""The privacy loss of one event, in both directions."""

from __future__ import annotations

import math
from functools import lru_cache

import numpy as np

from noisette.accounting.accountants.group_privacy import Mixture
from noisette.accounting.accountants.interface import resolved_noise, unsupported
from noisette.accounting.accountants.privacy_loss.balls_in_bins import poisson_rate
from noisette.accounting.accountants.privacy_loss.distribution import Directions, LossDistribution
from noisette.accounting.accountants.privacy_loss.mixtures import mixture_directions, replaced_directions
from noisette.accounting.accountants.privacy_loss.other_mechanisms import (
    MOST_DISCRETE_NOISE,
    amount_directions,
    discrete_gaussian_directions,
    laplace_directions,
)
from noisette.accounting.accountants.truncation import full_batch_probability
from noisette.accounting.events import (
    BallsInBinsGaussian,
    DiscreteGaussian,
    DpAmount,
    Event,
    FixedSizeGaussian,
    GroupPrivacy,
    Laplace,
    PoissonGaussian,
    RepeatAndSelect,
    Sampled,
    TruncatedPoissonGaussian,
    UserLevel,
    ZcdpAmount,
)

_NEVER_KEPT = LossDistribution(np.array([0.0]), np.array([1e-300]), 1.0)


def is_known_by_divergences(event: Event) -> bool:
    """Whether only the Rényi divergences of this event are known, not the distribution of its privacy loss."""
    if isinstance(event, DiscreteGaussian):
        return event.noise_multiplier > MOST_DISCRETE_NOISE
    return isinstance(event, RepeatAndSelect | ZcdpAmount)


@lru_cache(maxsize=128)
def directions_of(event: Event, tail: float) -> Directions:
    """The privacy loss of an event, when a record is added and when it is removed.

    Args:
        event: any event that is not over all records, and that is not known by divergences alone.
        tail: the most probability that may count as an infinite loss.

    Raises:
        UnsupportedEventError: the event is of a kind that this package does not define.
    """
    match event:
        case PoissonGaussian():
            return _sampled(event, tail)
        case GroupPrivacy() | UserLevel():
            return _sampled(GroupPrivacy(event.event, event.records), tail)
        case FixedSizeGaussian():
            return _replaced(event, tail)
        case TruncatedPoissonGaussian():
            return _truncated(event, tail)
        case BallsInBinsGaussian():
            rate = poisson_rate(event.bins, max(resolved_noise(event), 1e-3), tail)
            added, removed = _sampled(PoissonGaussian(rate, event.noise_multiplier), tail)
            return Directions(added.with_value(math.inf, tail), removed.with_value(math.inf, tail))
        case Laplace():
            return laplace_directions(event.noise_multiplier)
        case DiscreteGaussian():
            return discrete_gaussian_directions(event.noise_multiplier, tail)
        case DpAmount():
            return amount_directions(event.epsilon, event.delta)
        case _:
            raise unsupported(event, "pld")


def _sampled(event: Sampled | GroupPrivacy, tail: float) -> Directions:
    release = event.event if isinstance(event, GroupPrivacy) else event
    if resolved_noise(release) == 0:
        return Directions(_NEVER_KEPT, _NEVER_KEPT)
    return mixture_directions(Mixture.of(event), tail)


def _replaced(event: FixedSizeGaussian, tail: float) -> Directions:
    """One record replaced by another: twice the clipping norm, with the probability that it is in the batch."""
    release = PoissonGaussian(event.batch_size / event.size, resolved_noise(event) / 2 or 1e-300)
    if resolved_noise(release) == 0:
        return Directions(_NEVER_KEPT, _NEVER_KEPT)
    return replaced_directions(Mixture.of(release), tail)


def _truncated(event: TruncatedPoissonGaussian, tail: float) -> Directions:
    """A batch that is not full grows by the record; a full one exchanges another record for it, at most twice the norm.

    Whether the batch is full depends on the other records alone. Knowing it can only help an attacker.
    """
    full = full_batch_probability(event)
    grows = _sampled(PoissonGaussian(event.sampling_rate, event.noise_multiplier), tail)
    if full == 0:
        return grows
    exchanges = _sampled(PoissonGaussian(event.sampling_rate, event.noise_multiplier / 2), tail)
    parts = zip(grows, exchanges, strict=True)
    return Directions(*(one.scaled(1 - full * (1 - 2e-9)).joined_with(other.scaled(full)) for one, other in parts))
