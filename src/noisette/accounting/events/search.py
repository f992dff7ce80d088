"""A search: runs that are repeated, of which only the best result is released."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from noisette.accounting.events.event import Event
from noisette.accounting.events.gaussian import Sampled
from noisette.errors import count, positive


@dataclass(frozen=True, slots=True)
class RepeatAndSelect(Event):
    """A search: the same run repeated a random number of times, of which only the best result is released.

    The number of runs is drawn from a truncated negative binomial distribution before the search; ``shape=0`` is the
    logarithmic distribution, ``shape=1`` the geometric one, ``shape=inf`` the Poisson distribution.

    Args:
        run: the releases of one run, as pairs of an event and the number of times that it happens.
        mean: expected number of runs, at least 1.
        shape: shape parameter of the distribution, 0 or more.

    Raises:
        TypeError, ValueError: a value lies outside its range, or a run holds another kind of event or none.

    Source: Papernot and Steinke 2022, "Hyperparameter Tuning with Rényi Differential Privacy".

    >>> from noisette.accounting import PoissonGaussian
    >>> RepeatAndSelect(run=((PoissonGaussian(0.01, 4.0), 1000),), mean=10.0, shape=1.0).relation
    'add or remove one record'
    """

    run: tuple[tuple[Sampled, int], ...]
    mean: float
    shape: float

    mechanism: ClassVar[str] = "repeated runs"
    sampling: ClassVar[str] = "as in each run"

    def __post_init__(self) -> None:
        positive(mean=self.mean)
        if isinstance(self.shape, bool) or not isinstance(self.shape, int | float) or not self.shape >= 0:
            raise ValueError(f"expected shape >= 0, got shape={self.shape!r}")
        if self.mean < 1:
            raise ValueError(f"expected mean >= 1, got mean={self.mean}")
        if not self.run:
            raise ValueError("expected the releases of one run, got none")
        for event, times in self.run:
            if not isinstance(event, Sampled):
                raise TypeError(f"expected releases of a Gaussian or a PoissonGaussian, got {event!r}")
            count(times=times)
