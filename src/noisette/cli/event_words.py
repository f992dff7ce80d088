"""Events in words, as the commands print them."""

from __future__ import annotations

from noisette.accounting.events import (
    BallsInBinsGaussian,
    BandedGaussian,
    DiscreteGaussian,
    DpAmount,
    Event,
    FixedSizeGaussian,
    Gaussian,
    GroupPrivacy,
    Laplace,
    PoissonGaussian,
    RepeatAndSelect,
    TruncatedPoissonGaussian,
    UserLevel,
    ZcdpAmount,
)
from noisette.cli.privacy_cost import rounded_down, rounded_up


def in_words(event: Event) -> str:
    """The mechanism and its parameters in five digits, rounded in the direction of a larger privacy cost.

    >>> in_words(GroupPrivacy(PoissonGaussian(0.01, 4.0), records=3))
    'Poisson Gaussian, rate 0.01, noise 4, for a group of 3'
    """
    match event:
        case Gaussian() | Laplace() | DiscreteGaussian():
            return f"{event.mechanism}, noise {rounded_down(event.noise_multiplier)}{_parts(event)}"
        case PoissonGaussian():
            rate, noise = rounded_up(event.sampling_rate), rounded_down(event.noise_multiplier)
            return f"Poisson Gaussian, rate {rate}, noise {noise}{_parts(event)}"
        case FixedSizeGaussian():
            batch = f"{event.batch_size:,} of {event.size:,} records"
            return f"fixed-size Gaussian, {batch}, noise {rounded_down(event.noise_multiplier)}"
        case TruncatedPoissonGaussian():
            rate, noise = rounded_up(event.sampling_rate), rounded_down(event.noise_multiplier)
            batch = f"at most {event.largest_batch:,} of at most {event.most_records:,} records"
            return f"truncated Poisson Gaussian, rate {rate}, {batch}, noise {noise}{_parts(event)}"
        case BallsInBinsGaussian():
            noise = rounded_down(event.noise_multiplier)
            return f"balls-in-bins Gaussian, one of {event.bins:,} batches, noise {noise}{_parts(event)}"
        case BandedGaussian():
            rate, noise = rounded_up(event.sampling_rate), rounded_down(event.noise_multiplier)
            return f"banded Gaussian, rate {rate}, rounds of {event.bands:,} steps, noise {noise}{_parts(event)}"
        case GroupPrivacy():
            return f"{in_words(event.event)}, for a group of {event.records:,}"
        case UserLevel():
            return f"{in_words(event.event)}, for a user of up to {event.records:,}"
        case RepeatAndSelect():
            run = " and ".join(f"{times:,} × {in_words(of_one)}" for of_one, times in event.run)
            return f"best of about {rounded_up(event.mean)} runs (shape {event.shape:g}) of {run}"
        case ZcdpAmount():
            return f"declared zCDP, rho {rounded_up(event.rho)}{_tool(event)}"
        case DpAmount():
            delta = f", delta {rounded_up(event.delta)}" if event.delta else ""
            return f"declared epsilon {rounded_up(event.epsilon)}{delta}{_tool(event)}"
        case _:
            raise AssertionError(f"{event!r} has no description")


def _parts(event: Event) -> str:
    parts: tuple[tuple[str, float], ...] = getattr(event, "parts", ())
    return f" ({', '.join(name for name, _ in parts)})" if parts else ""


def _tool(event: ZcdpAmount | DpAmount) -> str:
    return f" ({event.tool})" if event.tool else ""
