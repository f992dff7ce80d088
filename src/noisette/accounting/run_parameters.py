"""The parameters of a run: declared before its first step and fixed until its last, also when it is resumed."""

from __future__ import annotations

import secrets
from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Self

from noisette import errors as checks
from noisette.accounting import Event, Ledger
from noisette.accounting.events import StepRelease
from noisette.accounting.serialization import event_of, facts_of


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
