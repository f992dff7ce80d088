"""An event as plain values for a line of JSON, and back."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from noisette.accounting.events import (
    Event,
    FixedSizeGaussian,
    Gaussian,
    GroupPrivacy,
    PoissonGaussian,
    RepeatAndSelect,
    Sampled,
)


def facts_of(event: Event) -> dict[str, Any]:
    """What a ledger writes down of an event: its mechanism and relation, and every number it was made with.

    >>> facts_of(PoissonGaussian(0.01, 4.0))["mechanism"]
    'Poisson Gaussian'
    """
    return {"mechanism": event.mechanism, "neighbouring": event.relation, "sampling": event.sampling, **_numbers(event)}


def event_of(facts: Mapping[str, Any]) -> Event:
    """The event that these facts were written of.

    Raises:
        KeyError, TypeError, ValueError: they are the facts of no event.

    >>> event_of(facts_of(PoissonGaussian(0.01, 4.0)))
    PoissonGaussian(sampling_rate=0.01, noise_multiplier=4.0)
    """
    match facts["mechanism"]:
        case Gaussian.mechanism:
            return Gaussian(facts["noise_multiplier"], _parts(facts))
        case PoissonGaussian.mechanism:
            return PoissonGaussian(facts["sampling_rate"], facts["noise_multiplier"], _parts(facts))
        case FixedSizeGaussian.mechanism:
            return FixedSizeGaussian(facts["batch_size"], facts["size"], facts["noise_multiplier"])
        case GroupPrivacy.mechanism:
            return GroupPrivacy(_release_of(facts["event"]), facts["records"])
        case RepeatAndSelect.mechanism:
            run = tuple((_release_of(of_one), times) for of_one, times in facts["run"])
            return RepeatAndSelect(run, facts["mean"], float(facts["shape"]))
        case unknown:
            raise ValueError(f"no event has the mechanism {unknown!r}")


def _numbers(event: Event) -> dict[str, Any]:
    match event:
        case Gaussian():
            return {"noise_multiplier": float(event.noise_multiplier), **_written(event)}
        case PoissonGaussian():
            return {
                "sampling_rate": float(event.sampling_rate),
                "noise_multiplier": float(event.noise_multiplier),
                **_written(event),
            }
        case FixedSizeGaussian():
            return {
                "batch_size": event.batch_size,
                "size": event.size,
                "noise_multiplier": float(event.noise_multiplier),
            }
        case GroupPrivacy():
            return {"event": facts_of(event.event), "records": event.records}
        case RepeatAndSelect():
            run = [[facts_of(of_one), times] for of_one, times in event.run]
            # An infinite shape is no JSON number; float() reads the word.
            return {"run": run, "mean": float(event.mean), "shape": str(float(event.shape))}
        case _:
            raise TypeError(f"expected an event of this package, got {event!r}")


def _written(event: Sampled) -> dict[str, Any]:
    return {"parts": dict(event.parts)} if event.parts else {}


def _parts(facts: Mapping[str, Any]) -> tuple[tuple[str, float], ...]:
    return tuple(dict(facts.get("parts", {})).items())


def _release_of(facts: Mapping[str, Any]) -> Sampled:
    event = event_of(facts)
    if not isinstance(event, Sampled):
        raise ValueError(f"expected the facts of a Gaussian or a PoissonGaussian, got those of {event!r}")
    return event
