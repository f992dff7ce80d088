"""The budget of a run: its declarations and their checks, its parameters, and its cost beside the rest of a ledger."""

from __future__ import annotations

import math
import secrets
from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import partial
from typing import Any, Self

from noisette import errors as checks
from noisette.accounting.calibrate import SEE_PLAN, check_ranges
from noisette.accounting.events import Event, StepRelease, event_of, facts_of
from noisette.accounting.interface import Accountant, PrivacyCurve
from noisette.accounting.ledger import Ledger
from noisette.errors import PrivacyError


def check_numbers(
    *,
    expected_batch_size: float,
    sampling_rate: float | None,
    steps: int | None,
    public_size: int | None,
    epochs: float | None,
    epsilon: float | None,
    noise_multiplier: float | None,
    delta: float | None,
) -> None:
    """Check that every declared number is in its range, and that alternatives are not given together.

    Raises:
        ValueError: all problems at once.
    """
    checks.all_of(
        partial(_check_budget_is_complete, epsilon, noise_multiplier, delta),
        partial(checks.exactly_one, sampling_rate=sampling_rate, public_size=public_size),
        partial(checks.exactly_one, steps=steps, epochs=epochs),
        partial(checks.positive, expected_batch_size=expected_batch_size),
        partial(
            check_ranges,
            sampling_rate=sampling_rate,
            public_size=public_size,
            steps=steps,
            epochs=epochs,
            epsilon=epsilon,
            noise_multiplier=noise_multiplier,
            delta=delta,
        ),
    )


def _check_budget_is_complete(epsilon: float | None, noise_multiplier: float | None, delta: float | None) -> None:
    if epsilon is None and noise_multiplier is None:
        raise ValueError("expected epsilon, noise_multiplier or both, got neither")
    if epsilon is not None and delta is None:
        raise ValueError("epsilon needs delta: the probability with which the bound may fail")


def check_delta(delta: float | None, one_over_size: float, allow_large_delta: bool) -> None:
    """Check that delta is below one over the declared size, unless a larger one is allowed.

    Raises:
        ValueError: it is larger, and that is not allowed.
    """
    if delta is not None and delta >= one_over_size and not allow_large_delta:
        raise ValueError(
            f"delta={delta:g} is not below one over the declared size ({one_over_size:.2g}): releasing one record "
            "in the clear would satisfy it. Choose a smaller delta, or allow it with allow_large_delta=True "
            "(on the command line --allow-large-delta)"
        )


@dataclass(frozen=True)
class RunParameters:
    """What a run is allowed to release, and the id by which it finds its lines in the ledger.

    Args:
        event: the release of one step.
        expected_batch_size: the constant that the noised sum is divided by, in examples.
        steps: number of steps.
        delta: probability with which the bound on epsilon may fail, if declared.
        epsilon: the budget of everything in the ledger, if there is one.
        run: the id in the run's lines, drawn at random unless given.
    """

    event: StepRelease
    expected_batch_size: float
    steps: int
    delta: float | None = None
    epsilon: float | None = None
    run: str = field(default_factory=lambda: secrets.token_hex(8))

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
        """The parameters as plain values."""
        return vars(self) | {"event": facts_of(self.event)}

    @classmethod
    def of(cls, facts: Mapping[str, Any]) -> Self:
        """The parameters that these facts were written from.

        Raises:
            KeyError, TypeError, ValueError: they do not describe a run.
        """
        event = event_of(facts["event"])
        if not isinstance(event, StepRelease):
            raise ValueError(f"a run of steps does not release a {event!r}")
        checks.count(steps=facts["steps"])
        if type(facts["run"]) is not str or not facts["run"]:
            raise ValueError(f"expected the id of a run as text, got {facts['run']!r}")
        checks.positive(expected_batch_size=facts["expected_batch_size"])
        return cls(event, *(facts[name] for name in ("expected_batch_size", "steps", "delta", "epsilon", "run")))


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
