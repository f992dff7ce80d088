"""Events: which mechanism was released, with its parameters. Accountants compute what events cost."""

from __future__ import annotations

import enum
import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import ClassVar, Self, TypeAlias

from noisette._internal.checks import count, positive, probability


class Neighbouring(enum.Enum):
    """The neighbouring relation: the pairs of data sets that a guarantee makes hard to distinguish."""

    ADD_OR_REMOVE_ONE = "add or remove one record"
    REPLACE_ONE = "replace one record"
    ADD_OR_REMOVE_GROUP = "add or remove a group of records"


Parts: TypeAlias = tuple[tuple[str, float], ...]
"""The parts of one release, each with its share of the budget. Shares add up to 1; without parts: a gradient."""


class Event:
    """A released mechanism with its parameters; equal events are the same key of a mapping."""

    mechanism: ClassVar[str]
    """The name of this kind of event in the ledger."""
    neighbouring: ClassVar[Neighbouring] = Neighbouring.ADD_OR_REMOVE_ONE
    sampling: ClassVar[str]
    """How the records of a release are chosen, in a few words."""

    @property
    def relation(self) -> str:
        """The neighbouring relation in words. All events of one run have the same."""
        return self.neighbouring.value

    def __repr__(self) -> str:
        """The constructor call; a release without parts is shown without them."""
        values = {name: getattr(self, name) for name in getattr(self, "__match_args__", ())}
        shown = [f"{name}={value!r}" for name, value in values.items() if name != "parts" or value]
        return f"{type(self).__name__}({', '.join(shown)})"


@dataclass(frozen=True, slots=True, repr=False)
class Gaussian(Event):
    """One release: a sum over all records, plus Gaussian noise.

    Args:
        noise_multiplier: standard deviation of the noise in units of the sum's sensitivity to one record. Above 0.
        parts: the parts of the release, where it is not a gradient alone.

    Raises:
        TypeError, ValueError: a value is not a number, or lies outside its range.

    >>> Gaussian(noise_multiplier=7.0, parts=(("principal components", 1.0),))
    Gaussian(noise_multiplier=7.0, parts=(('principal components', 1.0),))
    """

    noise_multiplier: float
    parts: Parts = ()

    mechanism: ClassVar[str] = "Gaussian"
    sampling: ClassVar[str] = "none (every record)"
    sampling_rate: ClassVar[float] = 1.0

    def __post_init__(self) -> None:
        positive(noise_multiplier=self.noise_multiplier)
        _check_parts(self.parts)


@dataclass(frozen=True, slots=True, repr=False)
class PoissonGaussian(Event):
    """One release: a sum over a Poisson batch, plus Gaussian noise.

    Args:
        sampling_rate: probability, in (0, 1], with which each example enters the batch, independently of all others.
            1 is the whole data set.
        noise_multiplier: standard deviation of the noise in units of the sum's sensitivity to one example. Above 0.
        parts: the parts of the release, each with its share of the budget, where it is not a gradient alone. Shares
            add up to 1. They are recorded and change no privacy cost: the parts are one Gaussian mechanism.

    Raises:
        TypeError, ValueError: a value is not a number, or lies outside its range.

    >>> PoissonGaussian(sampling_rate=0.01, noise_multiplier=1.1)
    PoissonGaussian(sampling_rate=0.01, noise_multiplier=1.1)
    """

    sampling_rate: float
    noise_multiplier: float
    parts: Parts = ()

    mechanism: ClassVar[str] = "Poisson Gaussian"
    sampling: ClassVar[str] = "Poisson"

    def __post_init__(self) -> None:
        probability(sampling_rate=self.sampling_rate)
        positive(noise_multiplier=self.noise_multiplier)
        _check_parts(self.parts)

    @classmethod
    def joint(cls, sampling_rate: float, noise_multipliers: Mapping[str, float]) -> Self:
        """Several releases on one batch, each with its own noise multiplier: together one Gaussian mechanism.

        In units of the noise the sensitivity of part i is 1 / sigma_i, and that of all parts together
        1 / sigma_eff = sqrt(sum of 1 / sigma_i^2). Composing the parts as separate events would treat the batch as if
        it were sampled anew for each part.

        Raises:
            ValueError: there is no part, or a value is outside its range.

        >>> round(PoissonGaussian.joint(0.01, {"hidden layer": 4.0, "top layer": 4.0}).noise_multiplier, 4)
        2.8284
        """
        if not noise_multipliers:
            raise ValueError("expected the noise multiplier of at least one part, got none")
        positive(**{f"noise_multiplier of {name}": noise for name, noise in noise_multipliers.items()})
        inverse = math.fsum(noise**-2 for noise in noise_multipliers.values())
        shares = tuple((name, noise**-2 / inverse) for name, noise in noise_multipliers.items())
        return cls(sampling_rate, inverse**-0.5, shares)

    @classmethod
    def quantile_query(cls, sampling_rate: float, count_deviation: float) -> Self:
        """A noisy count of the examples on one side of a threshold, from which quantiles are estimated.

        Each example adds plus or minus one half to the count, so its sensitivity is 1/2.

        Args:
            sampling_rate: probability in (0, 1] that an example is in the batch.
            count_deviation: standard deviation of the noise on the count, in examples.

        Source: Andrew et al. 2021, algorithm 1.

        >>> PoissonGaussian.quantile_query(0.01, count_deviation=10.0)
        PoissonGaussian(sampling_rate=0.01, noise_multiplier=20.0, parts=(('count', 1.0),))
        """
        positive(count_deviation=count_deviation)
        return cls(sampling_rate, 2 * count_deviation, (("count", 1.0),))


Sampled: TypeAlias = Gaussian | PoissonGaussian
"""A release over a Poisson batch; a release over all records is one of rate 1."""


@dataclass(frozen=True, slots=True)
class FixedSizeGaussian(Event):
    """One release: a sum over a batch of fixed size, drawn without replacement, plus Gaussian noise.

    Args:
        batch_size: records in each batch, at most ``size``.
        size: records in the data set. It is public under this relation, which keeps the number of records.
        noise_multiplier: standard deviation of the noise in units of the clipping norm. Replacing one record changes
            the sum by up to twice that norm, which accountants take into account. Above 0.

    Raises:
        TypeError, ValueError: a value is not a number, or lies outside its range.

    >>> FixedSizeGaussian(batch_size=100, size=10_000, noise_multiplier=2.0).relation
    'replace one record'
    """

    batch_size: int
    size: int
    noise_multiplier: float

    mechanism: ClassVar[str] = "fixed-size Gaussian"
    neighbouring: ClassVar[Neighbouring] = Neighbouring.REPLACE_ONE
    sampling: ClassVar[str] = "fixed size, without replacement"

    def __post_init__(self) -> None:
        count(batch_size=self.batch_size, size=self.size)
        positive(noise_multiplier=self.noise_multiplier)
        if self.batch_size > self.size:
            raise ValueError(f"expected batch_size <= size, got batch_size={self.batch_size}, size={self.size}")


@dataclass(frozen=True, slots=True)
class GroupPrivacy(Event):
    """Another event, with the guarantee for a whole group of records that is added or removed at once.

    Args:
        event: a release over all records or over a Poisson batch.
        records: size of the group, at least 1.

    Raises:
        TypeError, ValueError: ``records`` is not a whole number of at least 1, or the event has another relation.

    >>> GroupPrivacy(PoissonGaussian(0.01, 4.0), records=3).relation
    'add or remove a group of 3 records'
    """

    event: Sampled
    records: int

    mechanism: ClassVar[str] = "seen by a group"
    neighbouring: ClassVar[Neighbouring] = Neighbouring.ADD_OR_REMOVE_GROUP

    def __post_init__(self) -> None:
        count(records=self.records)
        if not isinstance(self.event, Sampled):
            raise TypeError(f"expected the release of a Gaussian or a PoissonGaussian, got {self.event!r}")

    @property
    def sampling(self) -> str:  # pyright: ignore[reportIncompatibleVariableOverride]
        """The sampling of the event."""
        return self.event.sampling

    @property
    def relation(self) -> str:
        """The neighbouring relation with the size of the group."""
        return f"add or remove a group of {self.records} records"


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


Events: TypeAlias = Mapping[Event, int]
"""Which releases were made, and how many times each. Their order does not matter."""


def check_events(events: Events) -> None:
    """Check that keys are events of one neighbouring relation and values are integers of at least one.

    Raises:
        TypeError, ValueError: they are not; the message names what is wrong.
    """
    relations: dict[str, Event] = {}
    for event, times in events.items():
        if not isinstance(event, Event):
            raise TypeError(f"expected a mapping from events such as PoissonGaussian to times, got the key {event!r}")
        count(times=times)
        relations.setdefault(event.relation, event)
    if len(relations) > 1:
        listed = "; ".join(f"{event!r}: {relation}" for relation, event in relations.items())
        raise ValueError(f"events of different neighbouring relations cannot be composed: {listed}")


def _check_parts(parts: Parts) -> None:
    for name, share in parts:
        probability(**{f"share of {name}": share})
    if len(dict(parts)) < len(parts):
        raise ValueError(f"expected parts of different names, got {', '.join(name for name, _ in parts)}")
    if parts and not math.isclose(total := math.fsum(share for _, share in parts), 1, rel_tol=1e-12):
        raise ValueError(f"expected shares that add up to 1, got {total:g} of {', '.join(n for n, _ in parts)}")
