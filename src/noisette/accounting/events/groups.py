"""Releases as several records together see them: a group of records, or all records of a user."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar, TypeAlias

from noisette.accounting.events.event import Event, Neighbouring
from noisette.accounting.events.gaussian import (
    BallsInBinsGaussian,
    BandedGaussian,
    Parts,
    PoissonGaussian,
    Sampled,
    TruncatedPoissonGaussian,
)
from noisette.errors import count


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
