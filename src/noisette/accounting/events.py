"""Events: which mechanism was released, with its parameters. Accountants compute what events cost."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, fields
from typing import Any, ClassVar, NamedTuple, TypeAlias, get_args

from noisette.errors import below_one, count, not_negative, positive, probability

__all__ = ["BallsInBinsGaussian", "BandedGaussian", "DiscreteGaussian", "DpAmount", "Event", "Events", "Gaussian"]
__all__ += ["FixedSizeGaussian", "GroupPrivacy", "Laplace", "Neighbouring", "PoissonGaussian", "RepeatAndSelect"]
__all__ += ["ReplacedPoissonGaussian", "TruncatedPoissonGaussian", "UserLevel", "ZcdpAmount"]


@dataclass(frozen=True, slots=True, repr=False)
class Neighbouring:
    """The neighbouring relation: the pairs of data sets that a guarantee makes hard to distinguish.

    In one of them ``number`` units more, at least 1, take part, or they are ``replaced`` by others. The unit is
    "record", or "user" for all records of one person, whatever their number.

    >>> str(Neighbouring.ADD_OR_REMOVE_USER), str(Neighbouring(number=3))
    ('add or remove all records of one user', 'add or remove a group of 3 records')
    """

    unit: str = "record"
    number: int = 1
    replaced: bool = False

    ADD_OR_REMOVE_ONE: ClassVar[Neighbouring]
    REPLACE_ONE: ClassVar[Neighbouring]
    ADD_OR_REMOVE_USER: ClassVar[Neighbouring]

    def __post_init__(self) -> None:
        count(number=self.number)
        if self.unit not in ("record", "user"):
            raise ValueError(f"expected the unit record or user, got {self.unit!r}")

    def __str__(self) -> str:
        several = self.number > 1
        changed = f"a group of {self.number} {self.unit}s" if several else f"one {self.unit}"
        whole = "all records of " if self.unit == "user" else ""
        return f"{'replace' if self.replaced else 'add or remove'} {whole}{changed}"

    __repr__ = __str__

    def for_several(self, number: int) -> Neighbouring:
        return Neighbouring(self.unit, self.number * number, self.replaced)

    @classmethod
    def of(cls, text: str) -> Neighbouring:
        """The relation with this name, as ``str`` gives it; a ``ValueError`` if there is none."""
        number = int("".join(filter(str.isdecimal, text)) or 1)
        found = cls("user" if "user" in text else "record", number, text.startswith("replace"))
        if str(found) != text:
            raise ValueError(f"no neighbouring relation is called {text!r}")
        return found


Neighbouring.ADD_OR_REMOVE_ONE = Neighbouring()
Neighbouring.REPLACE_ONE = Neighbouring(replaced=True)
Neighbouring.ADD_OR_REMOVE_USER = Neighbouring("user")


class Event:
    """A released mechanism with its parameters; equal events are the same key of a mapping.

    Parameters of one name mean the same in every kind of event, unless it says otherwise:

    - ``neighbouring``: for whom the guarantee is. Where it is a parameter, all others are stated for it: the noise of a
      release for users is in units of the sensitivity to one user.
    - ``sampling_rate``: probability, in (0, 1], with which each record enters the batch, independently of all others.
    - ``noise_multiplier``: standard deviation of the noise in units of the sum's sensitivity to one record. Above 0.
    - ``parts``: the parts of the release, each with its share of the budget, where it is not a gradient alone. Shares
      add up to 1. They are recorded and change no privacy cost: the parts are one Gaussian mechanism.
    - ``tool``: what was released and by which tool, in a few words. It changes no privacy cost.

    A parameter of the wrong type or out of range is a ``TypeError`` or a ``ValueError``.
    """

    mechanism: ClassVar[str] = ""  # the name of this kind of event in the ledger
    sampling: ClassVar[str] = ""  # how the records of a release are chosen, in a few words

    def __init_subclass__(cls, mechanism: str = "", sampling: str = "") -> None:
        cls.mechanism, cls.sampling = mechanism or cls.mechanism, sampling or cls.sampling

    def __post_init__(self) -> None:
        for name, value in self.parameters().items():
            _PARAMETERS[name].check(**{name: value})
        if not isinstance(self.neighbouring, Neighbouring):
            raise TypeError(f"expected neighbouring to be a Neighbouring, got neighbouring={self.neighbouring!r}")

    def parameters(self) -> dict[str, Any]:
        """The parameters by name; a release without parts has none of that name."""
        values = {name: getattr(self, name) for name in getattr(self, "__match_args__", ())}
        return {name: value for name, value in values.items() if name != "parts" or value}

    round_length = 1  # steps that are counted as a whole: more where noise is correlated over steps

    @property
    def neighbouring(self) -> Neighbouring:
        return Neighbouring.ADD_OR_REMOVE_ONE

    @property
    def relation(self) -> str:
        """The neighbouring relation in words."""
        return str(self.neighbouring)

    def __repr__(self) -> str:
        return self._with(repr)

    def __str__(self) -> str:
        """The same with three figures of each number, for a message: a search may have found the others."""
        return self._with(lambda value: f"{value:.3g}" if isinstance(value, float) else repr(value))

    def _with(self, text: Callable[[Any], str]) -> str:
        shown = [f"{name}={text(value)}" for name, value in self.parameters().items() if value != ""]
        if isinstance(self, _StatedFor) and self.neighbouring != Neighbouring.ADD_OR_REMOVE_ONE:
            shown.append(f"neighbouring={self.neighbouring}")
        return f"{type(self).__name__}({', '.join(shown)})"


@dataclass(frozen=True, slots=True, repr=False, kw_only=True)
class _StatedFor(Event):
    """An event whose parameters are stated for the neighbouring relation that it names."""

    neighbouring: Neighbouring = Neighbouring.ADD_OR_REMOVE_ONE  # pyright: ignore[reportIncompatibleMethodOverride]


Events: TypeAlias = Mapping[Event, int]
"""Which releases were made, and how many times each. Their order does not matter."""


class Declaration(NamedTuple):
    """Releases whose parameters were all fixed before the first of them, such as a run."""

    name: tuple[object, ...]
    events: Events  # that count: made, or allowed
    planned: Events  # that were declared; a run that is stopped early makes fewer


def in_whole_rounds(event: Event, times: int) -> int:
    """This many releases of an event, rounded up to whole rounds."""
    return -(-times // event.round_length) * event.round_length


def check_events(events: Events) -> None:
    """Check that keys are events of one neighbouring relation and values are integers of at least one."""
    relations: dict[str, str] = {}
    if not isinstance(events, Mapping):
        raise TypeError(f"expected a mapping from events to times, such as Ledger.read(path).events, got {events!r}")
    for event, times in events.items():
        if not isinstance(event, Event):
            raise TypeError(f"expected a mapping from events such as PoissonGaussian to times, got the key {event!r}")
        count(times=times)
        relations.setdefault(event.relation, type(event).__name__)
    if len(relations) > 1:
        listed = "; ".join(f"{kind}: {relation}" for relation, kind in relations.items())
        raise ValueError(
            f"events of different neighbouring relations cannot be composed: {listed}. State all of them for one, as "
            "neighbouring=Neighbouring.ADD_OR_REMOVE_USER with the noise for a user, or keep a ledger for each; "
            "noisette ledger price --records-per-user K gives the cost for users of releases stated for records"
        )


Parts: TypeAlias = tuple[tuple[str, float], ...]


@dataclass(frozen=True, slots=True, repr=False)
class Gaussian(_StatedFor, mechanism="Gaussian", sampling="none (every record)"):
    """One release: a sum over all records, plus Gaussian noise."""

    noise_multiplier: float
    parts: Parts = ()

    sampling_rate: ClassVar[float] = 1.0


@dataclass(frozen=True, slots=True, repr=False)
class PoissonGaussian(Event, mechanism="Poisson Gaussian", sampling="Poisson"):
    """One release: a sum over a Poisson batch, plus Gaussian noise. A rate of 1 is the whole data set."""

    sampling_rate: float
    noise_multiplier: float
    parts: Parts = ()


Sampled: TypeAlias = Gaussian | PoissonGaussian
"""A release over a Poisson batch; a release over all records is one of rate 1."""


@dataclass(frozen=True, slots=True, repr=False)
class FixedSizeGaussian(Event, mechanism="fixed-size Gaussian", sampling="fixed size, without replacement"):
    """One release: a sum over a batch of fixed size, drawn without replacement, plus Gaussian noise.

    Args:
        size: records in the data set. It is public under this relation, which keeps the number of records.
        noise_multiplier: standard deviation of the noise in units of the clipping norm. Replacing one record changes
            the sum by up to twice that norm, which accountants take into account.
    """

    batch_size: int
    size: int
    noise_multiplier: float

    neighbouring: ClassVar[Neighbouring] = Neighbouring.REPLACE_ONE  # pyright: ignore[reportIncompatibleMethodOverride]

    def __post_init__(self) -> None:
        Event.__post_init__(self)
        if self.batch_size > self.size:
            raise ValueError(f"expected batch_size <= size, got batch_size={self.batch_size}, size={self.size}")


@dataclass(frozen=True, slots=True, repr=False)
class ReplacedPoissonGaussian(Event, mechanism="Poisson Gaussian, replaced record", sampling="Poisson"):
    """One release over a Poisson batch, plus Gaussian noise in units of the norm, seen by a record that is replaced."""

    sampling_rate: float
    noise_multiplier: float

    neighbouring: ClassVar[Neighbouring] = Neighbouring.REPLACE_ONE  # pyright: ignore[reportIncompatibleMethodOverride]


@dataclass(frozen=True, slots=True, repr=False)
class TruncatedPoissonGaussian(
    Event, mechanism="truncated Poisson Gaussian", sampling="Poisson, at most a fixed number"
):
    """One release: a sum over a Poisson batch of at most a fixed size, plus Gaussian noise.

    A Poisson batch with more than ``largest_batch`` records is replaced by as many of them, drawn at random. The noise
    multiplier is in units of the clipping norm. ``most_records`` is the declared, public limit of the data set.
    """

    sampling_rate: float
    noise_multiplier: float
    largest_batch: int
    most_records: int
    parts: Parts = ()


@dataclass(frozen=True, slots=True, repr=False)
class BallsInBinsGaussian(Event, mechanism="balls-in-bins Gaussian", sampling="each record in one batch of a pass"):
    """One step of a pass over the data in which each record enters exactly one batch, drawn at random.

    At the beginning of a pass each record chooses one of ``bins`` batches, uniformly and independently of all others.
    The steps release the batches one by one, each plus Gaussian noise. A pass that was begun counts as a whole.
    Source: Chua et al. 2024, "Balls-and-Bins Sampling for DP-SGD".
    """

    bins: int
    noise_multiplier: float
    parts: Parts = ()

    @property
    def sampling_rate(self) -> float:
        return 1 / self.bins

    @property
    def round_length(self) -> int:  # pyright: ignore[reportIncompatibleVariableOverride]
        return self.bins

    @property
    def of_round(self) -> PoissonGaussian | BallsInBinsGaussian:
        """What costs as much as a pass: itself, counted once, or a batch of all records where noise hides no bin."""
        known = self.bins == 1 or self.noise_multiplier < 0.05
        return PoissonGaussian(1.0, self.noise_multiplier, self.parts) if known else self


@dataclass(frozen=True, slots=True, repr=False)
class BandedGaussian(Event, mechanism="banded Gaussian", sampling="cyclic Poisson"):
    """One step of banded matrix factorisation: noise that is correlated over ``bands`` steps, on cyclic batches.

    Each record belongs to one of ``bands`` groups, drawn at random once. Step t releases the sum over a Poisson batch
    of group t modulo ``bands``, plus noise that partly takes back that of the ``bands`` - 1 steps before. With the
    strategy matrix C, lower triangular, of ``bands`` diagonals and with columns of norm 1 at most, all steps together
    release C times the sums plus independent Gaussian noise, that of the noise multiplier. A record takes part at most
    once in ``bands`` consecutive steps, so its parts of C are orthogonal, and a round of ``bands`` steps, also one that
    was only begun, costs as much as one Poisson batch of rate ``bands * sampling_rate``.
    Source: Choquette-Choo et al. 2023, "(Amplified) Banded Matrix Factorization", Theorem 4.

    >>> BandedGaussian(sampling_rate=0.01, noise_multiplier=1.1, bands=8).of_round
    PoissonGaussian(sampling_rate=0.08, noise_multiplier=1.1)
    """

    sampling_rate: float
    noise_multiplier: float
    bands: int
    parts: Parts = ()

    def __post_init__(self) -> None:
        Event.__post_init__(self)
        if self.bands * self.sampling_rate > 1 + 1e-9:  # 49 * (1 / 49) is not 1
            most = math.floor(1 / self.sampling_rate)
            raise ValueError(
                f"expected bands * sampling_rate <= 1, got {self.bands} * {self.sampling_rate:g}: each of {self.bands} "
                f"groups takes part in every {self.bands}th step. Use at most {most} bands, or a smaller batch"
            )

    @property
    def round_length(self) -> int:  # pyright: ignore[reportIncompatibleVariableOverride]
        return self.bands

    @property
    def of_round(self) -> PoissonGaussian:
        rate = self.bands * self.sampling_rate
        return PoissonGaussian(1.0 if rate > 1 - 1e-12 else rate, self.noise_multiplier, self.parts)


@dataclass(frozen=True, slots=True, repr=False)
class OfSeveral(Event):
    """The release of one event with the guarantee for several records at once: a group, or those of one user."""

    event: Sampled
    records: int

    sampling = property(lambda self: self.event.sampling)  # pyright: ignore[reportAssignmentType]
    sampling_rate = property(lambda self: self.event.sampling_rate)  # of users, where these are sampled
    noise_multiplier = property(lambda self: self.event.noise_multiplier)
    parts = property(lambda self: self.event.parts)


@dataclass(frozen=True, slots=True, repr=False)
class GroupPrivacy(OfSeveral, mechanism="seen by a group"):
    """Another event, with the guarantee for a whole group of ``records`` that is added or removed at once."""

    @property
    def neighbouring(self) -> Neighbouring:
        return self.event.neighbouring.for_several(self.records)


@dataclass(frozen=True, slots=True, repr=False)
class UserLevel(OfSeveral, mechanism="seen by a user"):
    """Another event, with the guarantee for all records of one user, of which at most ``records`` are used.

    Each of them enters a batch independently. Where users are sampled, and enter a batch with one record, that is 1.
    """

    neighbouring: Neighbouring = field(default=Neighbouring.ADD_OR_REMOVE_USER, kw_only=True)  # pyright: ignore[reportIncompatibleMethodOverride]


StepRelease: TypeAlias = PoissonGaussian | TruncatedPoissonGaussian | BallsInBinsGaussian | BandedGaussian | UserLevel
"""The release of one step of training: how its batch is drawn, the noise, and whose guarantee it is."""


@dataclass(frozen=True, slots=True, repr=False)
class Laplace(_StatedFor, mechanism="Laplace", sampling="none (every record)"):
    """One release with Laplace noise, whose scale is in units of the L1 sensitivity: 1 / epsilon of the release."""

    noise_multiplier: float


@dataclass(frozen=True, slots=True, repr=False)
class DiscreteGaussian(_StatedFor, mechanism="discrete Gaussian", sampling="none (every record)"):
    """One released count with noise from the discrete Gaussian distribution, where one record changes the count by 1.

    The noise multiplier is the parameter sigma of the distribution, close to its standard deviation.
    Source: Canonne, Kamath and Steinke 2020, "The Discrete Gaussian for Differential Privacy".
    """

    noise_multiplier: float


@dataclass(frozen=True, slots=True, repr=False)
class ZcdpAmount(_StatedFor, mechanism="declared zCDP", sampling="not known"):
    """A cost that another ``tool`` states as zero-concentrated differential privacy; nothing checks the amount."""

    rho: float
    tool: str = ""


@dataclass(frozen=True, slots=True, repr=False)
class DpAmount(_StatedFor, mechanism="declared epsilon and delta", sampling="not known"):
    """A cost that another ``tool`` states as epsilon with delta; nothing checks the amount."""

    epsilon: float
    delta: float = 0.0
    tool: str = ""


@dataclass(frozen=True, slots=True, repr=False)
class RepeatAndSelect(Event, mechanism="repeated runs", sampling="as in each run"):
    """A search: the same run repeated a random number of times, of which only the best result is released.

    The number of runs is drawn from a truncated negative binomial distribution before the search; ``shape=0`` is the
    logarithmic distribution, ``shape=1`` the geometric one, ``shape=inf`` the Poisson distribution.

    ``run`` has the releases of one run, as pairs of an event and the number of times that it happens, and ``mean`` is
    the expected number of runs, at least 1.
    Source: Papernot and Steinke 2022, "Hyperparameter Tuning with Rényi Differential Privacy".
    """

    run: tuple[tuple[Sampled, int], ...]
    mean: float
    shape: float

    def __post_init__(self) -> None:
        Event.__post_init__(self)
        check_events(dict(self.run))
        if self.mean < 1:
            raise ValueError(f"expected mean >= 1, got mean={self.mean}")

    @property
    def neighbouring(self) -> Neighbouring:
        return self.run[0][0].neighbouring


_OfBatches: TypeAlias = FixedSizeGaussian | ReplacedPoissonGaussian | TruncatedPoissonGaussian | BallsInBinsGaussian
_Others: TypeAlias = GroupPrivacy | UserLevel | RepeatAndSelect | Laplace | DiscreteGaussian | ZcdpAmount | DpAmount
Supported: TypeAlias = Sampled | _OfBatches | _Others
"""The events that accountants compose. Rounds of banded steps become Poisson batches before."""

MOST_AMOUNT = 1e9  # an epsilon or a rho beyond this counts as infinite

_EVENTS: dict[str, type[Event]] = {event.mechanism: event for event in (*get_args(Supported), BandedGaussian)}


def facts_of(event: Event) -> dict[str, Any]:
    """The plain values that a ledger stores of an event: its mechanism and relation, and all its parameters."""
    if not isinstance(event, tuple(_EVENTS.values())):
        raise TypeError(f"expected an event of this package, got {event!r}")
    stored = {name: _PARAMETERS[name].to_plain(value) for name, value in event.parameters().items()}
    return {"mechanism": event.mechanism, "neighbouring": event.relation, "sampling": event.sampling, **stored}


def event_of(facts: Mapping[str, Any]) -> Event:
    """The event that these facts were written from; or a ``KeyError``, ``TypeError`` or ``ValueError``.

    >>> event_of(facts_of(PoissonGaussian(0.01, 4.0)))
    PoissonGaussian(sampling_rate=0.01, noise_multiplier=4.0)
    """
    if (mechanism := facts["mechanism"]) not in _EVENTS:
        raise ValueError(f"no event has the mechanism {mechanism!r}")
    kind, facts = _EVENTS[mechanism], {"parts": {}, "neighbouring": str(Neighbouring.ADD_OR_REMOVE_ONE), **facts}
    return kind(**{each.name: _PARAMETERS[each.name].from_plain(facts[each.name]) for each in fields(kind)})  # pyright: ignore[reportArgumentType] - every event is a dataclass


class _Parameter(NamedTuple):
    """How a parameter of events is checked, and how it is stored in JSON and restored."""

    check: Callable[..., object] = dict  # of any value
    to_plain: Callable[[Any], Any] = lambda value: value
    from_plain: Callable[[Any], Any] = lambda value: value


def _parts_add_up(*, parts: Parts) -> None:
    for name, share in parts:
        probability(**{f"share of {name}": share})
    if len(dict(parts)) < len(parts):
        raise ValueError(f"expected parts of different names, got {', '.join(name for name, _ in parts)}")
    if not math.isclose(total := math.fsum(share for _, share in parts), 1, rel_tol=1e-12):
        raise ValueError(f"expected shares that add up to 1, got {total:g} of {', '.join(n for n, _ in parts)}")


def _sampled(*, event: object) -> None:
    if not isinstance(event, Sampled):
        raise TypeError(f"expected the release of a Gaussian or a PoissonGaussian, got {event!r}")


def _shape_of_runs(*, shape: object) -> None:
    if isinstance(shape, bool) or not isinstance(shape, int | float) or not shape >= 0:
        raise ValueError(f"expected shape >= 0, got shape={shape!r}")


def _releases(*, run: tuple[tuple[Event, int], ...]) -> None:
    if not run:
        raise ValueError("expected the releases of one run, got none")
    for event, times in run:
        _sampled(event=event)
        count(times=times)


_COUNTS = ("batch_size", "size", "largest_batch", "most_records", "bins", "bands", "records")
_PARAMETERS = {
    "sampling_rate": _Parameter(probability, float),
    "noise_multiplier": _Parameter(positive, float),
    **dict.fromkeys(_COUNTS, _Parameter(count)),
    **dict.fromkeys(("mean", "rho"), _Parameter(positive, float)),
    "epsilon": _Parameter(not_negative, float),
    "delta": _Parameter(below_one, float),
    "tool": _Parameter(),
    # An infinite shape is not a JSON number, so it is written as a string, which float() reads.
    "shape": _Parameter(_shape_of_runs, lambda shape: str(float(shape)), float),
    "neighbouring": _Parameter(to_plain=str, from_plain=Neighbouring.of),
    "parts": _Parameter(_parts_add_up, dict, lambda parts: tuple(dict(parts).items())),
    "event": _Parameter(_sampled, facts_of, event_of),
    "run": _Parameter(
        _releases,
        lambda run: [[facts_of(event), times] for event, times in run],
        lambda run: tuple((event_of(facts), times) for facts, times in run),
    ),
}
