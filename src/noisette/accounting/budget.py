"""What a run and all else in its ledger cost, once the tail of the noise generator is taken off delta."""

from __future__ import annotations

import math
from collections import Counter

from noisette._internal import checks
from noisette.accounting import TAIL_SHARE, Accountant, Event, Ledger, PrivacyCurve, tail_delta, tail_delta_of
from noisette.accounting.run_parameters import RunParameters
from noisette.errors import PrivacyError


def delta_left_for_noise(delta: float, ledger: Ledger) -> float:
    """What the tail of the noise leaves of delta, before the noise of a run is known.

    Raises:
        ValueError: nothing is left.
    """
    earlier = tail_delta_of(ledger.events)
    left = delta * (1 - TAIL_SHARE) - earlier
    if left <= 0:
        raise ValueError(
            f"delta={delta:g} is too small beside what stands in the ledger: the tail of its noise alone takes up to "
            f"{earlier:.2g}; choose a larger delta, or declare noise_multiplier instead of epsilon"
        )
    return left


class PrivacyBudget:
    """Prices a run together with everything else in its ledger.

    Args:
        terms: of the run.
        accountant: prices the ledger.
        ledger: what is priced, as it stands when a price is asked for.
        dimensions: number of elements that each step noises.

    Guarantee: every price is an upper bound.

    Raises:
        PrivacyError: the noise is so small that the tail of its generator shows in the declared delta.
    """

    def __init__(self, terms: RunParameters, accountant: Accountant, ledger: Ledger, dimensions: int) -> None:
        self.accountant = accountant
        self.ledger = ledger
        self._terms = terms
        self._prices: dict[frozenset[tuple[Event, int]], PrivacyCurve] = {}
        event, delta = terms.event, terms.delta
        self._tail = tail_delta(
            noise_multiplier=event.noise_multiplier,
            sampling_rate=event.sampling_rate,
            steps=terms.steps,
            dimensions=dimensions,
        )
        if delta is not None and self._tail > TAIL_SHARE * delta:
            raise PrivacyError(
                f"noise_multiplier={event.noise_multiplier:.4g} is so small that the tail of the noise generator alone "
                f"costs delta={self._tail:.2g}, more than {TAIL_SHARE:.0%} of delta={delta:.2g}; ask for more noise"
            )

    def epsilon(self, *, delta: float, more_steps: int = 0) -> float:
        """What the ledger costs at this delta, with so many more steps of the run."""
        checks.open_fraction(delta=delta)
        events = Counter(self.ledger.events)
        events[self._terms.event] += more_steps
        spent = frozenset((event, times) for event, times in events.items() if times)
        if spent not in self._prices:
            self._prices[spent] = self.accountant.compose(dict(spent))
        left = self.delta_for_noise(delta)
        return self._prices[spent].epsilon(delta=left) if left > 0 else math.inf

    def delta_for_noise(self, delta: float) -> float:
        """What is left of this delta for the Gaussian mechanisms, once the noise generator's tail is taken off.

        That is the tail of this run as planned, and of all else that stands in the ledger.
        """
        return delta - self._tail - tail_delta_of(self._terms.beside(self.ledger.events))

    def check_budget(self, steps: int) -> None:
        """So many more steps are within the budget, if there is one.

        Raises:
            PrivacyError: they are not.
        """
        budget, delta = self._terms.epsilon, self._terms.delta
        if budget is None or delta is None:
            return
        price = self.epsilon(delta=delta, more_steps=steps)
        if price > budget * (1 + 1e-9):  # the order of the events moves the last digits
            raise PrivacyError(
                f"with its {steps} steps left the run would take the ledger to epsilon={price:.4g} by the "
                f"{self.accountant.name} accountant, beyond the budget of {budget:g}: the noise is too small for so "
                "many steps, or other releases were made meanwhile. Take fewer steps, more noise or a larger budget"
            )
