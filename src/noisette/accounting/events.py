"""What was released, as plain facts. Accountants price them; an event itself knows no epsilon."""

from __future__ import annotations

import enum
import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import ClassVar, TypeAlias

from noisette._check import count, positive, probability


class Neighbouring(enum.Enum):
    """The pairs of data sets that a guarantee makes hard to tell apart."""

    ADD_OR_REMOVE_ONE = "add or remove one record"


@dataclass(frozen=True, slots=True)
class PoissonGaussian:
    """One release: a sum over a Poisson batch, plus Gaussian noise.

    Args:
        sampling_rate: probability, in (0, 1], with which each example enters the batch, independently of all others.
            1 is the whole data set.
        noise_multiplier: standard deviation of the noise in units of the bound, that is of the most one example can
            move the sum. Above 0.
        parts: what the release consists of, each part with its share of the budget, where it is more than a gradient.
            Shares add up to 1. They are written down and change no price: the parts are one Gaussian mechanism.

    Raises:
        TypeError: a value is not a number.
        ValueError: a value lies outside its range.

    >>> PoissonGaussian(sampling_rate=0.01, noise_multiplier=1.1)
    PoissonGaussian(sampling_rate=0.01, noise_multiplier=1.1)
    """

    sampling_rate: float
    noise_multiplier: float
    parts: tuple[tuple[str, float], ...] = ()

    neighbouring: ClassVar[Neighbouring] = Neighbouring.ADD_OR_REMOVE_ONE
    sampling: ClassVar[str] = "Poisson"

    def __post_init__(self) -> None:
        probability(sampling_rate=self.sampling_rate)
        positive(noise_multiplier=self.noise_multiplier)
        for name, share in self.parts:
            probability(**{f"share of {name}": share})
        if self.parts and not math.isclose(total := math.fsum(share for _, share in self.parts), 1, rel_tol=1e-12):
            raise ValueError(
                f"expected shares that add up to 1, got {total:g} of {', '.join(n for n, _ in self.parts)}"
            )

    def __repr__(self) -> str:
        parts = f", parts={self.parts}" if self.parts else ""
        return (
            f"{type(self).__name__}(sampling_rate={self.sampling_rate!r}, noise_multiplier={self.noise_multiplier!r}"
            f"{parts})"
        )


Events: TypeAlias = Mapping[PoissonGaussian, int]
"""Which releases were made, and how many times each. Their order costs nothing."""


def check_events(events: Events) -> None:
    """Each key is an event and each value a whole number of at least one, or an error names it."""
    for event, times in events.items():
        if not isinstance(event, PoissonGaussian):
            raise TypeError(f"expected a mapping from PoissonGaussian to times, got the key {event!r}")
        count(times=times)
