"""The privacy cost of a run together with its ledger, with a part of delta reserved for the noise generator's tail."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Mapping

from noisette._internal import checks
from noisette.accounting import TAIL_SHARE, Accountant, Event, Ledger, PrivacyCurve, tail_delta_of
from noisette.accounting.budget_search import SEE_PLAN
from noisette.accounting.events import in_whole_rounds
from noisette.accounting.ledger.lines import Series
from noisette.accounting.noise_tail import MOST_DIMENSIONS
from noisette.accounting.run_parameters import RunParameters
from noisette.errors import PrivacyError


def tail_delta_in(paid: Mapping[Series, int]) -> float:
    """The part of delta that the tail of the noise takes in all these releases of a ledger.

    A line that does not state the number of elements with noise counts as the largest release.
    """
    times: Counter[tuple[Event, int]] = Counter()
    for series, steps in paid.items():
        times[series.event, series.dimensions or MOST_DIMENSIONS] += steps
    return min(1.0, sum(tail_delta_of({event: n}, dimensions=elements) for (event, elements), n in times.items()))


def delta_left_for_noise(delta: float, ledger: Ledger) -> float:
    """The delta for the Gaussian mechanisms before the noise multiplier of a run is known: delta less the tails.

    Raises:
        ValueError: nothing of delta is left.
    """
    earlier = tail_delta_in(ledger.paid)
    left = delta * (1 - TAIL_SHARE) - earlier
    if left <= 0:
        raise ValueError(
            f"delta={delta:g} is too small for this ledger: the tail of its noise alone takes up to {earlier:.2g}; "
            "choose a larger delta, or declare noise_multiplier instead of epsilon"
        )
    return left


class PrivacyBudget:
    """Computes the privacy cost of a run together with everything else in its ledger.

    Args:
        terms: the parameters of the run.
        accountant: computes the cost.
        ledger: the releases, as recorded at the time of each call.
        dimensions: number of elements that each step adds noise to.

    Guarantee: every epsilon is an upper bound.

    Raises:
        PrivacyError: the noise is so small that the tail of its generator needs too much of the declared delta.
    """

    def __init__(self, terms: RunParameters, accountant: Accountant, ledger: Ledger, dimensions: int) -> None:
        self.accountant = accountant
        self.ledger = ledger
        self._terms = terms
        self._curves: dict[frozenset[tuple[Event, int]], PrivacyCurve] = {}
        event, delta = terms.event, terms.delta
        self._tail = tail_delta_of({event: terms.steps}, dimensions=dimensions)
        if delta is not None and self._tail > TAIL_SHARE * delta:
            raise PrivacyError(
                f"noise_multiplier={event.noise_multiplier:.4g} is so small that the tail of the noise generator alone "
                f"costs delta={self._tail:.2g}, more than {TAIL_SHARE:.0%} of delta={delta:.2g}; use more noise"
            )

    def epsilon(self, *, delta: float, more_steps: int = 0) -> float:
        """Epsilon of the ledger at this delta, with this many further steps of the run."""
        checks.open_fraction(delta=delta)
        events = Counter(self.ledger.events)
        events[self._terms.event] += more_steps
        spent = frozenset((event, times) for event, times in events.items() if times)
        if spent not in self._curves:
            self._curves[spent] = self.accountant.compose(dict(spent))
        left = self.delta_for_noise(delta)
        return self._curves[spent].epsilon(delta=left) if left > 0 else math.inf

    def delta_for_noise(self, delta: float) -> float:
        """The part of this delta that is left for the Gaussian mechanisms.

        The tail of the noise generator takes the rest: that of this run as planned, and of all else in the ledger.
        """
        planned = in_whole_rounds(self._terms.event, self._terms.steps)
        copies = max(1.0, self._terms.spent(self.ledger) / planned)  # 1 unless a copy of the run went on too
        others = {series: times for series, times in self.ledger.paid.items() if series.run != self._terms.run}
        return delta - self._tail * copies - tail_delta_in(others)

    def check_budget(self, steps: int) -> None:
        """Check that this many further steps keep the budget, if there is one.

        Raises:
            PrivacyError: they do not.
        """
        budget, delta = self._terms.epsilon, self._terms.delta
        if budget is None or delta is None:
            return
        epsilon = self.epsilon(delta=delta, more_steps=steps)
        if epsilon > budget * (1 + 1e-9):  # the last digits depend on the order of the events
            raise PrivacyError(
                f"with the {steps} steps that are left the ledger would reach epsilon={epsilon:.4g} by the "
                f"{self.accountant.name} accountant, beyond the budget of {budget:g}: the noise is too small for so "
                "many steps, or other releases were made meanwhile. Take fewer steps, more noise or a larger budget: "
                + SEE_PLAN
            )
