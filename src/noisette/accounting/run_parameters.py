"""The terms of a run: what was declared before its first step, and holds until its last, whoever resumes it."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Self

from noisette._internal import checks
from noisette.accounting import Events, PoissonGaussian
from noisette.accounting.serialization import event_of, facts_of


@dataclass(frozen=True)
class RunParameters:
    """What a run may do, and what was spent before it began.

    Args:
        event: the release of one step.
        expected_batch_size: the constant that the noised sum is divided by, in examples.
        steps: number of steps.
        delta: probability with which the bound on epsilon may fail, if declared.
        epsilon: the budget, if there is one: of everything in the ledger.
        before: how often ``event`` stood in the ledger when the run began.
    """

    event: PoissonGaussian
    expected_batch_size: float
    steps: int
    delta: float | None = None
    epsilon: float | None = None
    before: int = 0

    def spent(self, events: Events) -> int:
        """How many steps of this run stand in a ledger: taken, reserved, or lost with a process that died."""
        return events.get(self.event, 0) - self.before

    def beside(self, events: Events) -> dict[Any, int]:
        """What stands in a ledger beside this run."""
        own = min(max(self.spent(events), 0), self.steps)
        return {
            event: times - own * (event == self.event)
            for event, times in events.items()
            if event != self.event or times > own
        }

    def facts(self) -> dict[str, Any]:
        """The terms as plain values."""
        return {
            "event": facts_of(self.event),
            "expected_batch_size": self.expected_batch_size,
            "steps": self.steps,
            "delta": self.delta,
            "epsilon": self.epsilon,
            "before": self.before,
        }

    @classmethod
    def of(cls, facts: Mapping[str, Any]) -> Self:
        """The terms that these facts were written of.

        Raises:
            KeyError, TypeError, ValueError: they are the facts of no run.
        """
        event = event_of(facts["event"])
        if not isinstance(event, PoissonGaussian):
            raise ValueError(f"a run of steps releases a PoissonGaussian, not {event!r}")
        checks.count(steps=facts["steps"], before=facts["before"] + 1)
        checks.positive(expected_batch_size=facts["expected_batch_size"])
        return cls(event, *(facts[name] for name in ("expected_batch_size", "steps", "delta", "epsilon", "before")))
