"""The parameters of a run: declared before its first step and fixed until its last, also when it is resumed."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Self

from noisette._internal import checks
from noisette.accounting.events import Events, StepRelease
from noisette.accounting.serialization import event_of, facts_of


@dataclass(frozen=True)
class RunParameters:
    """What a run is allowed to release, and what the ledger held before it began.

    Args:
        event: the release of one step.
        expected_batch_size: the constant that the noised sum is divided by, in examples.
        steps: number of steps.
        delta: probability with which the bound on epsilon may fail, if declared.
        epsilon: the budget of everything in the ledger, if there is one.
        before: how often the ledger held ``event`` when the run began.
    """

    event: StepRelease
    expected_batch_size: float
    steps: int
    delta: float | None = None
    epsilon: float | None = None
    before: int = 0

    def spent(self, events: Events) -> int:
        """How many steps of this run a ledger holds: taken, reserved, or lost in a crash."""
        return events.get(self.event, 0) - self.before

    def beside(self, events: Events) -> dict[Any, int]:
        """The events in a ledger that are not of this run, with how often each happens."""
        own = min(max(self.spent(events), 0), self.steps)
        return {
            event: times - own * (event == self.event)
            for event, times in events.items()
            if event != self.event or times > own
        }

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
        checks.count(steps=facts["steps"], before=facts["before"] + 1)
        checks.positive(expected_batch_size=facts["expected_batch_size"])
        return cls(event, *(facts[name] for name in ("expected_batch_size", "steps", "delta", "epsilon", "before")))
