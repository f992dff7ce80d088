"""Events as plain values for a line of JSON, and back."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import fields
from typing import Any

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
    Sampled,
    TruncatedPoissonGaussian,
    UserLevel,
    ZcdpAmount,
)

_KINDS = (
    Gaussian,
    PoissonGaussian,
    FixedSizeGaussian,
    TruncatedPoissonGaussian,
    BallsInBinsGaussian,
    BandedGaussian,
    GroupPrivacy,
    UserLevel,
    RepeatAndSelect,
    Laplace,
    DiscreteGaussian,
    ZcdpAmount,
    DpAmount,
)
_EVENTS = {event.mechanism: event for event in _KINDS}


def facts_of(event: Event) -> dict[str, Any]:
    """The plain values that a ledger stores of an event: its mechanism and relation, and all its parameters.

    >>> facts_of(PoissonGaussian(0.01, 4.0))["mechanism"]
    'Poisson Gaussian'
    """
    if not isinstance(event, tuple(_EVENTS.values())):
        raise TypeError(f"expected an event of this package, got {event!r}")
    facts = {"mechanism": event.mechanism, "neighbouring": event.relation, "sampling": event.sampling}
    for field in fields(event):
        value = getattr(event, field.name)
        if field.name != "parts" or value:  # lines without parts are as they were before events had parts
            facts[field.name] = _TO_PLAIN[field.name](value) if field.name in _TO_PLAIN else value
    return facts


def event_of(facts: Mapping[str, Any]) -> Event:
    """The event that these facts were written from.

    Raises:
        KeyError, TypeError, ValueError: they do not describe an event.

    >>> event_of(facts_of(PoissonGaussian(0.01, 4.0)))
    PoissonGaussian(sampling_rate=0.01, noise_multiplier=4.0)
    """
    if (mechanism := facts["mechanism"]) not in _EVENTS:
        raise ValueError(f"no event has the mechanism {mechanism!r}")
    facts = {"parts": {}, **facts}
    kind = _EVENTS[mechanism]
    values = {f.name: facts[f.name] for f in fields(kind)}
    return kind(**{name: _FROM_PLAIN[name](value) if name in _FROM_PLAIN else value for name, value in values.items()})


def _sampled_of(facts: Mapping[str, Any]) -> Sampled:
    event = event_of(facts)
    if not isinstance(event, Sampled):
        raise ValueError(f"expected the facts of a Gaussian or a PoissonGaussian, got those of {event!r}")
    return event


# How the fields of events are converted, where JSON would change them. An infinite shape is not a JSON number, so it is
# written as a string, which float() reads.
_TO_PLAIN: dict[str, Callable[[Any], Any]] = {
    "sampling_rate": float,
    "noise_multiplier": float,
    "mean": float,
    "rho": float,
    "epsilon": float,
    "delta": float,
    "shape": lambda shape: str(float(shape)),
    "parts": dict,
    "event": facts_of,
    "run": lambda run: [[facts_of(event), times] for event, times in run],
}
_FROM_PLAIN: dict[str, Callable[[Any], Any]] = {
    "shape": float,
    "parts": lambda parts: tuple(dict(parts).items()),
    "event": _sampled_of,
    "run": lambda run: tuple((_sampled_of(facts), times) for facts, times in run),
}
