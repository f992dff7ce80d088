"""The budget of a run: its declarations and their checks, its parameters, and its cost beside the rest of a ledger."""

import math
import secrets
from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import partial
from typing import Any, Self

from noisette.accounting.calibrate import NOISE_TAIL, SEE_PLAN, Given, check_ranges
from noisette.accounting.events import Event, StepRelease, event_of, facts_of
from noisette.accounting.filters import RenyiFilter, RenyiOdometer, all_events
from noisette.accounting.interface import Accountant
from noisette.accounting.ledger import Ledger, RecordedRun, Series, declared
from noisette.errors import PrivacyError, all_of, count, exactly_one, positive


def check_numbers(
    *, expected_batch_size: float, epsilon: Given, noise_multiplier: Given, delta: Given, **plan: Given
) -> None:
    """Check that every declared number is in its range, and that alternatives are not given together: all at once.

    ``plan`` are the sampling rate, steps, public size and epochs, or ``None``.
    """
    all_of(
        partial(_check_budget_is_complete, epsilon, noise_multiplier, delta),
        partial(exactly_one, sampling_rate=plan["sampling_rate"], public_size=plan["public_size"]),
        partial(exactly_one, steps=plan["steps"], epochs=plan["epochs"]),
        partial(positive, expected_batch_size=expected_batch_size),
        partial(check_ranges, **plan, epsilon=epsilon, noise_multiplier=noise_multiplier, delta=delta),
    )


def _check_budget_is_complete(epsilon: Given, noise_multiplier: Given, delta: Given) -> None:
    if epsilon == math.inf or noise_multiplier == 0:
        raise ValueError("to debug without noise, on public records, give noise_multiplier=1e-9 and no epsilon")
    if epsilon is None and noise_multiplier is None:
        raise ValueError("expected epsilon, noise_multiplier or both, got neither")
    if epsilon is not None and delta is None:
        raise ValueError("epsilon needs delta: the probability with which the bound may fail")


def check_delta(delta: float | None, one_over_size: float, allow_large_delta: bool) -> None:
    """Check that delta is below one over the declared size, unless a larger one is allowed."""
    if delta is not None and delta >= one_over_size and not allow_large_delta:
        raise ValueError(
            f"delta={delta:g} is not below one over the declared size ({one_over_size:.2g}): releasing one record "
            "in the clear would satisfy it. Choose a smaller delta, or allow it with allow_large_delta=True "
            "(on the command line --allow-large-delta)"
        )


@dataclass(frozen=True)
class RunParameters:
    """What a run is allowed to release, and the id by which it finds its lines in the ledger."""

    event: StepRelease  # of one step
    expected_batch_size: float  # the constant that the noised sum is divided by
    steps: int
    delta: float | None = None
    epsilon: float | None = None  # the budget of everything in the ledger, if there is one
    run: str = field(default_factory=lambda: secrets.token_hex(8))  # the id in the run's lines
    declaration: str = ""  # the name of what was declared together with the run, if anything was

    @property
    def recorded(self) -> RecordedRun:
        return RecordedRun(self.run, planned=self.steps, declaration=self.declaration)

    def spent(self, ledger: Ledger) -> int:
        """How many steps of this run a ledger holds: taken, reserved, or lost in a crash."""
        return sum(steps for series, steps in ledger.paid.items() if series.run == self.run)

    def beside(self, ledger: Ledger) -> dict[Event, int]:
        """The events in a ledger that are not of this run, with how often each happens."""
        beside: Counter[Event] = Counter()
        for series, times in ledger.paid.items():
            if series.run != self.run:
                beside[series.event] += times
        return dict(beside)

    def facts(self) -> dict[str, Any]:
        return vars(self) | {"event": facts_of(self.event)}

    @classmethod
    def of(cls, facts: Mapping[str, Any]) -> Self:
        """The parameters that these facts were written from; a ``KeyError`` or ``ValueError`` if they are of none."""
        event = event_of(facts["event"])
        if not isinstance(event, StepRelease):
            raise ValueError(f"a run of steps does not release a {event!r}")
        count(steps=facts["steps"])
        if type(facts["run"]) is not str or not facts["run"]:
            raise ValueError(f"expected the id of a run as text, got {facts['run']!r}")
        positive(expected_batch_size=facts["expected_batch_size"])
        numbers = (facts[name] for name in ("expected_batch_size", "steps", "delta", "epsilon", "run"))
        return cls(event, *numbers, declaration=str(facts.get("declaration", "")))


@dataclass(eq=False)
class PrivacyBudget:
    """Computes the privacy cost of a run together with everything else in its ledger at the time of each call.

    Guarantee: every epsilon up to 900 is an upper bound. A budget holds however the declarations in the ledger were
    chosen by each other's results, see :mod:`noisette.accounting.filters`, if it was fixed before the first of them.
    """

    _terms: RunParameters
    accountant: Accountant
    ledger: Ledger

    def epsilon(self, of: Mapping[Series, int], *, delta: float) -> float:
        """Epsilon of what a ledger has paid or made; of several declarations the odometer's, or the budget if kept."""
        check_ranges(delta=delta)
        left, declarations = delta - NOISE_TAIL, declared(of.items())
        if len(declarations) < 2:
            return self.accountant.compose(all_events(declarations)).epsilon(delta=left)
        found = RenyiOdometer().compose(all_events(declarations)).epsilon(delta=left)
        budget, of_budget = self._terms.epsilon, self._terms.delta
        if budget is not None and of_budget is not None and delta >= of_budget:
            return found if self._excess(0, budget, of_budget) else min(found, budget)
        return found

    def _excess(self, steps: int, budget: float, delta: float) -> str | None:
        """How this many further steps would exceed the budget, if they do."""
        further = [(self._terms.recorded.series(self._terms.event), steps)] if steps else []
        declarations = declared([*self.ledger.paid.items(), *further])
        if len(declarations) < 2:
            epsilon = self.accountant.compose(all_events(declarations)).epsilon(delta=delta - NOISE_TAIL)
            by = f"the {self.accountant.name} accountant"
        else:
            limit = RenyiFilter(budget, delta)
            if problem := limit.problem_of_plans(declarations):
                return problem
            epsilon = limit.compose(all_events(declarations)).epsilon(delta=delta - NOISE_TAIL)
            by = f"the Rényi filter, for {len(declarations)} declarations"
        if epsilon <= budget * (1 + 1e-9):  # the last digits depend on the order of the events
            return None
        return f"with the {steps} steps that are left the ledger would reach epsilon={epsilon:.4g} by {by}"

    def check_budget(self, steps: int) -> None:
        """Check that this many further steps keep the budget, if there is one, or raise a ``PrivacyError``."""
        budget, delta = self._terms.epsilon, self._terms.delta
        if budget is None or delta is None:
            return
        if problem := self._excess(steps, budget, delta):
            raise PrivacyError(
                f"{problem}, beyond the budget of {budget:g}: the noise is too small for so many steps, or other "
                f"releases were made meanwhile. Take fewer steps, more noise or a larger budget: {SEE_PLAN}"
            )
