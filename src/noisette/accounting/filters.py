"""Costs of a whole ledger: whatever was chosen after looking at earlier results, and for several records at once.

Accountants compose releases whose parameters were all fixed before the first. A ledger with several declarations may
hold others: who trains a first model, looks at it, and fits a second one into the rest of the budget chooses the second
by the outcome of the first. The privacy loss distribution of both then says too little (Rogers et al. 2016), while
Rényi divergences may be added up. Let P and Q be the distributions of everything that is released, with and without a
record; L_t the logarithm of their ratio at what the first t releases were; and rho_t(alpha) the sum of the Rényi
divergences of order alpha of these releases, whose parameters depend on outcomes before them. Given those outcomes, the
mean of exp((alpha - 1) L) under P for the next release is at most exp((alpha - 1) rho) for its rho, so

    M_t = exp((alpha - 1) (L_t - rho_t(alpha)))

never grows in the mean: it is a supermartingale from 1 on (Feldman and Zrnic 2021; Lécuyer 2021), also with P for Q.

Filter. Let the budget (epsilon, delta) fix some orders, each with a share delta_alpha of delta and the limit
epsilon - c(alpha, delta_alpha), where c is the conversion of Canonne, Kamath and Steinke 2020, Proposition 12. Stop
before a release with which the limits of all orders would be exceeded. Delta is the sum over all paths of what P
exceeds e^epsilon Q by. Every path ends with an order within its limit; assign it to one. For an order, the paths
assigned to it are paths of the process that stops when this order's limit would be exceeded. For all losses

    (1 - e^(epsilon - L))+ <= e^((alpha - 1) (L - epsilon)) (1 - 1/alpha)^alpha / (alpha - 1),

and within the limit the right side is at most delta_alpha M. So the paths of this order contribute at most delta_alpha,
and all together delta. No order may depend on results, so they are functions of the budget alone.

A first declaration alone in its ledger is composed as before, and its budget may then be exhausted beyond every order's
limit. Others follow only where its whole plan is within a limit, even if it was stopped early: otherwise stopping would
have been a choice between two budgets. So every path with several declarations, or the choice of them, is a filter's.

Odometer. Without a budget set beforehand, M_t exceeds K / delta at any time with probability at most delta / K (Ville's
inequality). So with probability 1 - delta, for all K orders and at all times at once,
L_t <= rho_t(alpha) + log(K / delta) / (alpha - 1): epsilon is the least of these.
"""

import math
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import cache, cached_property

import numpy as np

from noisette.accounting import events as kinds
from noisette.accounting.events import MOST_AMOUNT, Declaration, Event, Events, Neighbouring
from noisette.accounting.interface import Accountant, PrivacyCurve, composed_events
from noisette.accounting.pld import least_epsilon
from noisette.accounting.rdp import RdpAccountant, RdpCurve, conversion
from noisette.errors import UnsupportedEventError, open_fraction, positive

_SHARES = (0.8, 0.1, 0.1)  # of delta: of the best order of a Gaussian mechanism, of half and of twice that order
_CANDIDATES = np.geomspace(1.1, 4096, 1000)  # of the best order
ODOMETER_ORDERS = (1.5, 2, 3, 4, 5, 7, 10, 14, 20, 28, 40, 56, 80, 112, 160, 256)


def _divergences(events: Events, orders: tuple[float, ...]) -> np.ndarray:
    for event in composed_events(events):
        if isinstance(event, kinds.DpAmount) and event.delta > 0:
            raise UnsupportedEventError(
                f"{event} has no Rényi divergences, so no bound holds where later releases are chosen by the results "
                "of earlier ones. Declare everything together before the first release, with one name as declaration=, "
                "or charge its epsilon alone and take its delta off that of the budget"
            )
    return RdpAccountant(orders=orders).compose(events).divergences


@dataclass(frozen=True)
class RenyiFilter:
    """The accountant that keeps a budget, fixed before the first release, where others are chosen by earlier results.

    Guarantee: releases whose epsilon by this accountant never exceeds the budget are (epsilon, delta)-differentially
    private together, however each was chosen by the results before it.
    Source: Feldman and Zrnic 2021, "Individual Privacy Accounting via a Rényi Filter"; Lécuyer 2021, "Practical Privacy
    Filters and Odometers with Rényi Differential Privacy"; for several orders, the proof above.

    >>> round(RenyiFilter(2.5, 1e-5).compose({kinds.Gaussian(noise_multiplier=4.0): 4}).epsilon(delta=1e-5), 2)
    2.2
    """

    name = "rdp-filter"

    budget: float
    budget_delta: float

    def __post_init__(self) -> None:
        positive(budget=self.budget)
        open_fraction(budget_delta=self.budget_delta)

    @cached_property
    def orders(self) -> tuple[float, ...]:
        """The order at which the budget allows most divergence over order (Gaussian noise), half of it, and twice."""
        added = conversion(_CANDIDATES, math.log(_SHARES[0] * self.budget_delta))
        best = float(_CANDIDATES[np.argmax((self.budget - added) / _CANDIDATES)])
        return tuple(round(order) if order > 8 else round(order, 1) for order in (best, max(best / 2, 1.1), 2 * best))

    def compose(self, events: Events) -> RdpCurve:
        return RdpCurve(np.array(self.orders), _divergences(events, self.orders), True, np.array(_SHARES))

    def problem_of_plans(self, declarations: Sequence[Declaration]) -> str:
        """Why nothing may be declared beside one of these, "" if something may."""
        need = "which the other releases in the ledger need, as one may have been chosen by the results of the other"
        for each in declarations:
            epsilon = self.compose(each.planned).epsilon(delta=self.budget_delta)
            if epsilon > self.budget * (1 + 1e-9):
                listed = ", ".join(f"{times} × {event!r}" for event, times in each.planned.items())
                return f"a declaration of {listed} has epsilon={epsilon:.4g} by the Rényi filter, {need}"
        return ""


@dataclass(frozen=True)
class RenyiOdometer:
    """The accountant of what was spent so far, without a budget, whatever was chosen by earlier results.

    Guarantee: with probability 1 - delta, at all times at once, the privacy loss is at most the epsilon until then.
    Source: Lécuyer 2021, "Practical Privacy Filters and Odometers with Rényi Differential Privacy"; the proof above.

    >>> round(RenyiOdometer().compose({kinds.Gaussian(noise_multiplier=4.0): 4}).epsilon(delta=1e-5), 2)
    2.84
    """

    name = "rdp-odometer"
    description = "Rényi odometer, for releases chosen by earlier results"

    def compose(self, events: Events) -> RdpCurve:
        shares = np.full(len(ODOMETER_ORDERS), 1 / len(ODOMETER_ORDERS))
        return RdpCurve(np.array(ODOMETER_ORDERS), _divergences(events, ODOMETER_ORDERS), False, shares)


def accountant_beside(
    earlier: Sequence[Declaration], accountant: Accountant, *, declaration: str, epsilon: float, delta: float
) -> Accountant:
    """The accountant for a further run within a budget: the given one, or the filter where others were declared before.

    ``earlier`` is what the ledger holds, and ``declaration`` the name of what was declared together with the run. A
    ``ValueError`` says that an earlier declaration alone may exceed the filter, so that nothing may follow it.
    """
    others = [each for each in earlier if not declaration or each.name != (declaration,)]
    if not others:
        return accountant
    limit = RenyiFilter(epsilon, delta)
    if problem := limit.problem_of_plans(others):
        raise ValueError(
            f"{problem}; choose a larger epsilon than {epsilon:g} for all of them, or go on with the earlier run. For "
            "other records take another ledger"
        )
    return limit


def all_events(declarations: Sequence[Declaration]) -> Events:
    """The releases of all declarations together."""
    return sum((Counter(each.events) for each in declarations), Counter[Event]())


def for_several(event: Event, number: int, neighbouring: Neighbouring) -> Event | None:
    """A release with the guarantee for so many records, or users, at once; ``None`` where no event is that.

    ``neighbouring`` is what they are: a group, or a user who has no more records than that in the data set.
    Source: Dwork and Roth 2014, Theorem 2.2; for zCDP Bun and Steinke 2016, Proposition 1.9.

    >>> for_several(kinds.ZcdpAmount(0.1), 2, Neighbouring.ADD_OR_REMOVE_USER)
    ZcdpAmount(rho=0.4, neighbouring=add or remove all records of one user)
    """
    match event:
        case kinds.Gaussian() | kinds.Laplace():
            noise = max(event.noise_multiplier / number, 1 / MOST_AMOUNT)
            return replace(event, noise_multiplier=noise, neighbouring=neighbouring)
        case kinds.DiscreteGaussian():
            distance = number / event.noise_multiplier
            rho = min(distance * distance / 2, MOST_AMOUNT)
            return kinds.ZcdpAmount(rho, event.mechanism, neighbouring=neighbouring)
        case kinds.ZcdpAmount():
            return replace(event, rho=min(event.rho * number**2, MOST_AMOUNT), neighbouring=neighbouring)
        case kinds.DpAmount():
            epsilon = min(event.epsilon * number, MOST_AMOUNT)
            delta = min(event.delta * several_deltas(event.epsilon, number), 1 - 2**-53)
            return replace(event, epsilon=epsilon, delta=delta, neighbouring=neighbouring)
        case kinds.UserLevel():
            return replace(event, records=event.records * number, neighbouring=neighbouring)
        case kinds.PoissonGaussian() if neighbouring.unit == "user":
            return kinds.UserLevel(event, number, neighbouring=neighbouring)
        case kinds.PoissonGaussian():
            return kinds.GroupPrivacy(event, number)
    return None


def several_deltas(epsilon: float, number: int) -> float:
    """What a release's delta is multiplied by for so many records at once, each of which has this epsilon."""
    if epsilon * number > 700:
        return math.inf
    return math.expm1(epsilon * number) / math.expm1(epsilon) if epsilon > 0 else number


@dataclass(frozen=True)
class SeveralCurve:
    """The privacy cost for several records, or users, by that for one: they are added or removed one after the other.

    Source: Dwork and Roth 2014, Theorem 2.2, with the sum of its proof.
    """

    curve: PrivacyCurve
    number: int

    def epsilon(self, *, delta: float) -> float:
        """Epsilon at this delta; ``inf`` above 64, which would be no guarantee."""
        at = cache(lambda epsilon: self.delta(epsilon=epsilon))
        is_finite = any(at(2.0**power) <= delta for power in range(7))
        return least_epsilon(at, delta, 1e-4) if is_finite else math.inf

    def delta(self, *, epsilon: float) -> float:
        one = epsilon / self.number
        return min(1.0, self.curve.delta(epsilon=one) * several_deltas(one, self.number))


def curve_for(events: Events, accountant: Accountant, number: int, neighbouring: Neighbouring) -> PrivacyCurve:
    """The cost of releases for so many records, or users, at once: exact where each release alone is known for them.

    ``events`` are releases for one record or one user, or already for ``neighbouring``: a group, or a user with so many
    records; an ``UnsupportedEventError`` says where they are not known for several, or not together.
    """
    known = {event for event in events if event.neighbouring == neighbouring}
    of_user = (Neighbouring.ADD_OR_REMOVE_ONE, Neighbouring.ADD_OR_REMOVE_USER)
    counted: Counter[Event] = Counter()
    for event, times in events.items():
        several = event if event in known else for_several(event, number, neighbouring)
        whole = event.neighbouring.for_several(number)
        is_part = event in known or whole == neighbouring or (event.neighbouring, neighbouring) == of_user
        if not is_part or (several is None and known):
            raise UnsupportedEventError(f"{event}, a guarantee to {event.relation}, says nothing to {neighbouring}")
        if several is None and isinstance(accountant, RenyiOdometer):
            raise UnsupportedEventError(f"{event} has no odometer for several records at once")
        if several is None:
            return SeveralCurve(accountant.compose(events), number)
        counted[several] += times
    return accountant.compose(counted)


def check_one_relation(events: Events) -> None:
    """Check that the releases of a ledger have one neighbouring relation, or say what they promise for which."""
    relations = sum((Counter({event.neighbouring: times}) for event, times in events.items()), Counter[Neighbouring]())
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
