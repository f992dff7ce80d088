"""The privacy cost of a run together with its ledger."""

from __future__ import annotations

import math
from collections import Counter

from noisette import errors as checks
from noisette.accounting import Accountant, Event, Ledger, PrivacyCurve
from noisette.accounting.budget_search import SEE_PLAN
from noisette.accounting.run_parameters import RunParameters
from noisette.errors import PrivacyError

NOISE_TAIL = 1e-30
"""What the end of the tail of this library's noise adds to delta at most, at any epsilon up to 900.

It covers all releases together, up to 1e40 values with noise, whatever the mechanisms are: see ``core.noise``.
"""


class PrivacyBudget:
    """Computes the privacy cost of a run together with everything else in its ledger.

    Args:
        terms: the parameters of the run.
        accountant: computes the cost.
        ledger: the releases, as recorded at the time of each call.

    Guarantee: every epsilon up to 900 is an upper bound.
    """

    def __init__(self, terms: RunParameters, accountant: Accountant, ledger: Ledger) -> None:
        self.accountant = accountant
        self.ledger = ledger
        self._terms = terms
        self._curves: dict[frozenset[tuple[Event, int]], PrivacyCurve] = {}

    def epsilon(self, *, delta: float, more_steps: int = 0) -> float:
        """Epsilon of the ledger at this delta, with this many further steps of the run."""
        checks.open_fraction(delta=delta)
        events = Counter(self.ledger.events)
        events[self._terms.event] += more_steps
        spent = frozenset((event, times) for event, times in events.items() if times)
        if spent not in self._curves:
            self._curves[spent] = self.accountant.compose(dict(spent))
        return self._curves[spent].epsilon(delta=delta - NOISE_TAIL) if delta > NOISE_TAIL else math.inf

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
