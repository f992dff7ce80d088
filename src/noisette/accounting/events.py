"""Events: which mechanism was released, with its parameters. Accountants compute what events cost."""

from __future__ import annotations

import enum
import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass, fields
from typing import Any, ClassVar, Self, TypeAlias

from noisette.errors import all_of, below_one, count, not_negative, positive, probability


class Neighbouring(enum.Enum):
    """The neighbouring relation: the pairs of data sets that a guarantee makes hard to distinguish."""

    ADD_OR_REMOVE_ONE = "add or remove one record"
    REPLACE_ONE = "replace one record"
    ADD_OR_REMOVE_GROUP = "add or remove a group of records"
    ADD_OR_REMOVE_USER = "add or remove all records of one user"


class Event:
    """A released mechanism with its parameters; equal events are the same key of a mapping."""

    mechanism: ClassVar[str]
    """The name of this kind of event in the ledger."""
    neighbouring: ClassVar[Neighbouring] = Neighbouring.ADD_OR_REMOVE_ONE
    sampling: ClassVar[str]
    """How the records of a release are chosen, in a few words."""

    @property
    def round_length(self) -> int:
        """How many steps form a round, which is paid for as a whole: 1 but for noise that is correlated over steps."""
        return 1

    @property
    def relation(self) -> str:
        """The neighbouring relation in words. All events of one run have the same."""
        return self.neighbouring.value

    def __repr__(self) -> str:
        """The constructor call; a release without parts is shown without them."""
        values = {name: getattr(self, name) for name in getattr(self, "__match_args__", ())}
        shown = [f"{name}={value!r}" for name, value in values.items() if name != "parts" or value]
        return f"{type(self).__name__}({', '.join(shown)})"


Events: TypeAlias = Mapping[Event, int]
"""Which releases were made, and how many times each. Their order does not matter."""


def in_whole_rounds(event: Event, times: int) -> int:
    """This many releases of an event, rounded up to whole rounds."""
    return -(-times // event.round_length) * event.round_length


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


Parts: TypeAlias = tuple[tuple[str, float], ...]
"""The parts of one release, each with its share of the budget. Shares add up to 1; without parts: a gradient."""


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


@dataclass(frozen=True, slots=True, repr=False)
class TruncatedPoissonGaussian(Event):
    """One release: a sum over a Poisson batch of at most a fixed size, plus Gaussian noise.

    A Poisson batch with more than ``largest_batch`` records is replaced by as many of them, drawn at random.

    Args:
        sampling_rate: probability, in (0, 1], with which each record enters the batch, independently of all others.
        noise_multiplier: standard deviation of the noise in units of the clipping norm. Above 0.
        largest_batch: the most records of a batch, at least 1.
        most_records: the most records that the data set may have: public, and declared. At least 1.
        parts: the parts of the release, as in :class:`PoissonGaussian`.

    Raises:
        TypeError, ValueError: a value is not a number, or lies outside its range.

    >>> TruncatedPoissonGaussian(sampling_rate=0.01, noise_multiplier=1.1, largest_batch=150, most_records=10_000)
    TruncatedPoissonGaussian(sampling_rate=0.01, noise_multiplier=1.1, largest_batch=150, most_records=10000)
    """

    sampling_rate: float
    noise_multiplier: float
    largest_batch: int
    most_records: int
    parts: Parts = ()

    mechanism: ClassVar[str] = "truncated Poisson Gaussian"
    sampling: ClassVar[str] = "Poisson, at most a fixed number"

    def __post_init__(self) -> None:
        all_of(
            lambda: probability(sampling_rate=self.sampling_rate),
            lambda: positive(noise_multiplier=self.noise_multiplier),
            lambda: count(largest_batch=self.largest_batch, most_records=self.most_records),
        )
        _check_parts(self.parts)


@dataclass(frozen=True, slots=True, repr=False)
class BallsInBinsGaussian(Event):
    """One step of a pass over the data in which each record enters exactly one batch, drawn at random.

    At the beginning of a pass each record chooses one of ``bins`` batches, uniformly and independently of all others.
    The steps of a pass release the batches one by one: a sum over the batch, plus Gaussian noise.

    Args:
        bins: the batches of one pass, at least 1.
        noise_multiplier: standard deviation of the noise in units of the sum's sensitivity to one record. Above 0.
        parts: the parts of the release, as in :class:`PoissonGaussian`.

    Raises:
        TypeError, ValueError: a value is not a number, or lies outside its range.

    Source: Chua et al. 2024, "Balls-and-Bins Sampling for DP-SGD".

    >>> BallsInBinsGaussian(bins=100, noise_multiplier=2.0)
    BallsInBinsGaussian(bins=100, noise_multiplier=2.0)
    """

    bins: int
    noise_multiplier: float
    parts: Parts = ()

    mechanism: ClassVar[str] = "balls-in-bins Gaussian"
    sampling: ClassVar[str] = "each record in one batch of a pass"

    def __post_init__(self) -> None:
        all_of(lambda: count(bins=self.bins), lambda: positive(noise_multiplier=self.noise_multiplier))
        _check_parts(self.parts)

    @property
    def sampling_rate(self) -> float:
        """The probability that a record is in the batch of a step."""
        return 1 / self.bins


@dataclass(frozen=True, slots=True, repr=False)
class BandedGaussian(Event):
    """One step of banded matrix factorisation: noise that is correlated over ``bands`` steps, on cyclic batches.

    Each record belongs to one of ``bands`` groups, drawn at random once. Step t releases the sum over a Poisson batch
    of group t modulo ``bands``, plus noise that partly takes back the noise of the ``bands`` - 1 steps before: with the
    strategy matrix C, lower triangular, of ``bands`` diagonals and with columns of norm 1 at most, all steps together
    release C times the sums plus independent Gaussian noise. A record takes part at most once in ``bands`` consecutive
    steps, so its parts of C are orthogonal, and a round of ``bands`` steps costs as much as one Poisson batch of rate
    ``bands * sampling_rate`` with this noise multiplier. A round that was begun is paid for as a whole.

    Args:
        sampling_rate: probability, in (0, 1], that a record is in the batch of a step. At most 1 / ``bands``.
        noise_multiplier: standard deviation of the independent noise in units of the sum's sensitivity to one record.
            Above 0.
        bands: diagonals of C, and steps of a round. At least 1; 1 is a :class:`PoissonGaussian`.
        parts: the parts of the release, as in :class:`PoissonGaussian`.

    Raises:
        TypeError, ValueError: a value is not a number, or lies outside its range.

    Source: Choquette-Choo et al. 2023, "(Amplified) Banded Matrix Factorization", Theorem 4.

    >>> step = BandedGaussian(sampling_rate=0.01, noise_multiplier=1.1, bands=8)
    >>> step.of_round
    PoissonGaussian(sampling_rate=0.08, noise_multiplier=1.1)
    """

    sampling_rate: float
    noise_multiplier: float
    bands: int
    parts: Parts = ()

    mechanism: ClassVar[str] = "banded Gaussian"
    sampling: ClassVar[str] = "cyclic Poisson"

    def __post_init__(self) -> None:
        all_of(
            lambda: probability(sampling_rate=self.sampling_rate),
            lambda: positive(noise_multiplier=self.noise_multiplier),
            lambda: count(bands=self.bands),
        )
        _check_parts(self.parts)
        if self.bands * self.sampling_rate > 1 + 1e-9:  # 49 * (1 / 49) is not 1
            raise ValueError(
                f"expected bands * sampling_rate <= 1, got {self.bands} * {self.sampling_rate:g}: each of {self.bands} "
                f"groups takes part in every {self.bands}th step. Use at most {math.floor(1 / self.sampling_rate)} "
                "bands, or a smaller batch"
            )

    @property
    def round_length(self) -> int:
        """The steps of a round."""
        return self.bands

    @property
    def of_round(self) -> PoissonGaussian:
        """The release that costs as much as one round."""
        rate = self.bands * self.sampling_rate
        return PoissonGaussian(1.0 if rate > 1 - 1e-12 else rate, self.noise_multiplier, self.parts)


def _check_parts(parts: Parts) -> None:
    for name, share in parts:
        probability(**{f"share of {name}": share})
    if len(dict(parts)) < len(parts):
        raise ValueError(f"expected parts of different names, got {', '.join(name for name, _ in parts)}")
    if parts and not math.isclose(total := math.fsum(share for _, share in parts), 1, rel_tol=1e-12):
        raise ValueError(f"expected shares that add up to 1, got {total:g} of {', '.join(n for n, _ in parts)}")


@dataclass(frozen=True, slots=True)
class GroupPrivacy(Event):
    """Another event, with the guarantee for a whole group of records that is added or removed at once.

    Args:
        event: a release over all records or over a Poisson batch.
        records: size of the group, at least 1.

    Raises:
        TypeError, ValueError: ``records`` is not a whole number of at least 1, or the event has another relation.

    >>> from noisette.accounting import PoissonGaussian
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
class UserLevel(Event):
    """Another event, with the guarantee for all records of one user, whatever their number.

    Of each user at most ``records`` records are used. Where users are sampled instead of records, and each enters a
    batch with one record, ``records`` is 1.

    Args:
        event: a release over all records or over a Poisson batch.
        records: the most records of one user that enter a batch, each independently of the others. At least 1.

    Raises:
        TypeError, ValueError: ``records`` is not a whole number of at least 1, or the event has another relation.

    >>> from noisette.accounting import PoissonGaussian
    >>> UserLevel(PoissonGaussian(0.01, 4.0), records=3).relation
    'add or remove all records of one user'
    """

    event: Sampled
    records: int

    mechanism: ClassVar[str] = "seen by a user"
    neighbouring: ClassVar[Neighbouring] = Neighbouring.ADD_OR_REMOVE_USER

    def __post_init__(self) -> None:
        count(records=self.records)
        if not isinstance(self.event, Sampled):
            raise TypeError(f"expected the release of a Gaussian or a PoissonGaussian, got {self.event!r}")

    @property
    def sampling(self) -> str:  # pyright: ignore[reportIncompatibleVariableOverride]
        """The sampling of the event."""
        return self.event.sampling

    @property
    def sampling_rate(self) -> float:
        """The probability with which each record, or each user where users are sampled, enters a batch."""
        return self.event.sampling_rate

    @property
    def noise_multiplier(self) -> float:
        """Standard deviation of the noise in units of the sum's sensitivity to one record."""
        return self.event.noise_multiplier

    @property
    def parts(self) -> Parts:
        """The parts of the release, as in :class:`PoissonGaussian`."""
        return self.event.parts


StepRelease: TypeAlias = PoissonGaussian | TruncatedPoissonGaussian | BallsInBinsGaussian | BandedGaussian | UserLevel
"""The release of one step of training: how its batch is drawn, the noise, and whose guarantee it is."""


@dataclass(frozen=True, slots=True)
class Laplace(Event):
    """One release with Laplace noise.

    Args:
        noise_multiplier: scale of the noise in units of the L1 sensitivity: 1 / epsilon of the release. Above 0.

    Raises:
        TypeError, ValueError: the value is not a number above 0.

    >>> Laplace(noise_multiplier=2.0)
    Laplace(noise_multiplier=2.0)
    """

    noise_multiplier: float

    mechanism: ClassVar[str] = "Laplace"
    sampling: ClassVar[str] = "none (every record)"

    def __post_init__(self) -> None:
        positive(noise_multiplier=self.noise_multiplier)


@dataclass(frozen=True, slots=True)
class DiscreteGaussian(Event):
    """One released count with noise from the discrete Gaussian distribution, where one record changes the count by 1.

    Args:
        noise_multiplier: the parameter sigma of the distribution, close to its standard deviation. Above 0.

    Raises:
        TypeError, ValueError: the value is not a number above 0.

    Source: Canonne, Kamath and Steinke 2020, "The Discrete Gaussian for Differential Privacy".

    >>> DiscreteGaussian(noise_multiplier=5.0)
    DiscreteGaussian(noise_multiplier=5.0)
    """

    noise_multiplier: float

    mechanism: ClassVar[str] = "discrete Gaussian"
    sampling: ClassVar[str] = "none (every record)"

    def __post_init__(self) -> None:
        positive(noise_multiplier=self.noise_multiplier)


@dataclass(frozen=True, slots=True)
class ZcdpAmount(Event):
    """A cost that another tool states as zero-concentrated differential privacy.

    Args:
        rho: the cost, above 0.
        tool: what was released and by which tool, in a few words. It changes no privacy cost.

    Guarantee: nothing checks the amount; the ledger's guarantee holds if the statement of that tool does, for adding
    or removing one record.

    Raises:
        TypeError, ValueError: ``rho`` is not a number above 0.

    >>> ZcdpAmount(rho=0.1, tool="table of counts")
    ZcdpAmount(rho=0.1, tool='table of counts')
    """

    rho: float
    tool: str = ""

    mechanism: ClassVar[str] = "declared zCDP"
    sampling: ClassVar[str] = "not known"

    def __post_init__(self) -> None:
        positive(rho=self.rho)


@dataclass(frozen=True, slots=True)
class DpAmount(Event):
    """A cost that another tool states as epsilon with delta.

    Args:
        epsilon: the cost, 0 or more.
        delta: the probability with which the bound on epsilon may fail, in [0, 1).
        tool: what was released and by which tool, in a few words. It changes no privacy cost.

    Guarantee: nothing checks the amount; the ledger's guarantee holds if the statement of that tool does, for adding
    or removing one record.

    Raises:
        TypeError, ValueError: a value is not a number in its range.

    >>> DpAmount(epsilon=0.5, delta=1e-9, tool="synthetic table")
    DpAmount(epsilon=0.5, delta=1e-09, tool='synthetic table')
    """

    epsilon: float
    delta: float = 0.0
    tool: str = ""

    mechanism: ClassVar[str] = "declared epsilon and delta"
    sampling: ClassVar[str] = "not known"

    def __post_init__(self) -> None:
        all_of(lambda: not_negative(epsilon=self.epsilon), lambda: below_one(delta=self.delta))


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
