"""What a ledger costs for several records at once: a group, or all records of one user."""

from __future__ import annotations

import math
from collections import Counter
from dataclasses import dataclass, replace
from functools import cache

from noisette.accounting.events import (
    MOST_AMOUNT,
    DiscreteGaussian,
    DpAmount,
    Event,
    Events,
    Gaussian,
    GroupPrivacy,
    Laplace,
    Neighbouring,
    PoissonGaussian,
    UserLevel,
    ZcdpAmount,
)
from noisette.accounting.filters import RenyiOdometer
from noisette.accounting.interface import Accountant, PrivacyCurve
from noisette.accounting.pld import least_epsilon
from noisette.errors import UnsupportedEventError


def for_several(event: Event, number: int, neighbouring: Neighbouring) -> Event | None:
    """A release with the guarantee for so many records, or users, at once; ``None`` where no event is that.

    Args:
        event: the release.
        number: how many records or users of its own relation.
        neighbouring: what they are: a group, or a user who has no more records than that in the data set.

    Source: Dwork and Roth 2014, Theorem 2.2; for zCDP Bun and Steinke 2016, Proposition 1.9.

    >>> for_several(ZcdpAmount(0.1), 2, Neighbouring.ADD_OR_REMOVE_USER)
    ZcdpAmount(rho=0.4, neighbouring=add or remove all records of one user)
    """
    match event:
        case Gaussian() | Laplace():
            noise = max(event.noise_multiplier / number, 1 / MOST_AMOUNT)
            return replace(event, noise_multiplier=noise, neighbouring=neighbouring)
        case DiscreteGaussian():
            distance = number / event.noise_multiplier
            rho = min(distance * distance / 2, MOST_AMOUNT)
            return ZcdpAmount(rho, event.mechanism, neighbouring=neighbouring)
        case ZcdpAmount():
            return replace(event, rho=min(event.rho * number**2, MOST_AMOUNT), neighbouring=neighbouring)
        case DpAmount():
            epsilon, delta = event.epsilon * number, event.delta * several_deltas(event.epsilon, number)
            epsilon, delta = min(epsilon, MOST_AMOUNT), min(delta, 1 - 2**-53)
            return replace(event, epsilon=epsilon, delta=delta, neighbouring=neighbouring)
        case UserLevel():
            return replace(event, records=event.records * number, neighbouring=neighbouring)
        case PoissonGaussian() if neighbouring.unit == "user":
            return UserLevel(event, number, neighbouring=neighbouring)
        case PoissonGaussian():
            return GroupPrivacy(event, number)
        case _:
            return None


def several_deltas(epsilon: float, number: int) -> float:
    """What a release's delta is multiplied by for so many records at once, each of which has this epsilon."""
    if epsilon * number > 700:
        return math.inf
    return math.expm1(epsilon * number) / math.expm1(epsilon) if epsilon > 0 else number


@dataclass(frozen=True)
class SeveralCurve:
    """The privacy cost for several records at once, by that for one: they are added or removed one after the other.

    Args:
        curve: the cost for one record, or for one user.
        number: how many there are.

    Source: Dwork and Roth 2014, Theorem 2.2, with the sum of its proof.

    >>> from noisette.accounting import DpAmount, PldAccountant
    >>> alone = PldAccountant().compose({DpAmount(0.5, 1e-6): 1})
    >>> round(SeveralCurve(alone, 2).epsilon(delta=1e-5), 3)
    1.0
    """

    curve: PrivacyCurve
    number: int

    def epsilon(self, *, delta: float) -> float:
        """Epsilon at this delta; ``inf`` above 64, which would be no guarantee."""

        @cache
        def at(epsilon: float) -> float:
            return self.delta(epsilon=epsilon)

        is_finite = any(at(2.0**power) <= delta for power in range(7))
        return least_epsilon(at, delta, 1e-4) if is_finite else math.inf

    def delta(self, *, epsilon: float) -> float:
        """Delta at this epsilon."""
        one = epsilon / self.number
        return min(1.0, self.curve.delta(epsilon=one) * several_deltas(one, self.number))


def curve_for(events: Events, accountant: Accountant, number: int, neighbouring: Neighbouring) -> PrivacyCurve:
    """The cost of releases for so many records, or users, at once: exact where each release alone is known for them.

    Args:
        events: releases for one record or one user, or already for ``neighbouring``.
        accountant: computes the cost.
        number: how many there are.
        neighbouring: what they are together: a group, or a user with so many records.

    Raises:
        UnsupportedEventError: they are not known for several, or not together with those for ``neighbouring``.
    """
    known = {event for event in events if event.neighbouring == neighbouring}
    of_user = (Neighbouring.ADD_OR_REMOVE_ONE, Neighbouring.ADD_OR_REMOVE_USER)
    counted: Counter[Event] = Counter()
    for event, times in events.items():
        several = event if event in known else for_several(event, number, neighbouring)
        whole = event.neighbouring.for_several(number)
        is_part = event in known or whole == neighbouring or (event.neighbouring, neighbouring) == of_user
        if not is_part or (several is None and known):
            raise UnsupportedEventError(
                f"{event!r}, with a guarantee to {event.relation}, says nothing to {neighbouring}"
            )
        if several is None and isinstance(accountant, RenyiOdometer):
            raise UnsupportedEventError(f"{event!r} has no odometer for several records at once")
        if several is None:
            return SeveralCurve(accountant.compose(events), number)
        counted[several] += times
    return accountant.compose(counted)


def check_one_relation(events: Events) -> None:
    """Check that the releases of a ledger have a common cost.

    Raises:
        ValueError: they have several neighbouring relations; the message says what they promise for which.
    """
    relations = Counter[Neighbouring]()
    for event, times in events.items():
        relations[event.neighbouring] += times
    if len(relations) < 2:
        return
    promise = "they promise nothing together: keep a ledger for each"
    if set(relations) == {Neighbouring.ADD_OR_REMOVE_ONE, Neighbouring.ADD_OR_REMOVE_USER}:
        promise = (
            "together they promise something for users, if a user has at most K records in the data set: give "
            "--records-per-user K. For single records they promise nothing, since a release for users counts a user's "
            "records as a whole"
        )
    listed = " and ".join(f"{times:,} to {relation}" for relation, times in relations.items())
    raise ValueError(f"the ledger holds releases with different guarantees: {listed}; {promise}")
