"""The audit of a whole run: what its steps together show of canaries, with the sampling that makes them rare.

Half of the canaries are records of the run, the other half are not. Each has an axis of its own, so one run gives as
many samples as there are canaries.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

import numpy as np
import torch

from noisette._internal import checks
from noisette.accounting import Accountant
from noisette.audit.canary_models import CanaryModel, Rows
from noisette.audit.certificate import certified_epsilon
from noisette.audit.step_audit import Verdict
from noisette.audit.step_game import Axis, MakesBound
from noisette.run.private import privatize

_MICROBATCH = 4096
_CANARIES = 20_000
DELTAS = (1e-2, 1e-5)  # rates prove most where delta is large

Progress = Callable[[int, int], None]  # of so many done, and in all


class RunScore(Protocol):
    """How the scores of a canary's steps become one."""

    def __call__(self, steps: np.ndarray, shift: float, sampling_rate: float) -> np.ndarray:
        """Of one step, to be added up or compared with those before, (canaries,)."""
        ...

    def join(self, before: np.ndarray, now: np.ndarray) -> np.ndarray:
        """Of the steps before and the step of now."""
        ...


@dataclass(frozen=True)
class LikelihoodRatio:
    """The best score where the other records leave a canary's axis alone: how much likelier in than out."""

    def __call__(self, steps: np.ndarray, shift: float, sampling_rate: float) -> np.ndarray:
        return np.log1p(sampling_rate * np.expm1(steps * shift - shift**2 / 2))

    def join(self, before: np.ndarray, now: np.ndarray) -> np.ndarray:
        return before + now


@dataclass(frozen=True)
class Largest:
    """The largest score of all steps, for canaries in a crowd."""

    def __call__(self, steps: np.ndarray, shift: float, sampling_rate: float) -> np.ndarray:
        return steps

    def join(self, before: np.ndarray, now: np.ndarray) -> np.ndarray:
        return np.maximum(before, now)


@dataclass(frozen=True)
class Point:
    """What a run may cost at a delta, and what it costs at least."""

    delta: float
    claimed: float
    certified: float


@dataclass(frozen=True)
class RunAudit:
    """What the scores of whole runs prove; ``inside`` and ``outside`` are those of canaries in them and not."""

    inside: np.ndarray
    outside: np.ndarray
    points: tuple[Point, ...]
    false_alarm: float

    @property
    def findings(self) -> tuple[str, ...]:
        """What is wrong, in words; nothing if the claim stands."""
        return tuple(
            f"at delta={p.delta:g} the run costs epsilon={p.certified:.3g} or more, {p.claimed:.3g} claimed"
            for p in self.points
            if p.certified > p.claimed
        )

    @property
    def verdict(self) -> Verdict:
        """Violation if the claim is refuted at one of the deltas."""
        return Verdict.VIOLATION if self.findings else Verdict.CONSISTENT

    def facts(self) -> dict[str, Any]:
        """All numbers, as plain values. They are about canaries alone."""
        return {
            "verdict": self.verdict.value,
            "scores_in": self.inside.size,
            "scores_out": self.outside.size,
            "false_alarm": self.false_alarm,
            "points": [{"delta": p.delta, "claimed": p.claimed, "certified": p.certified} for p in self.points],
            "findings": list(self.findings),
        }


def audit_run(
    bound_of: MakesBound,
    *,
    noise_multiplier: float,
    sampling_rate: float,
    steps: int,
    canary_model: Callable[[], CanaryModel] = lambda: Rows(_CANARIES),
    score: RunScore = LikelihoodRatio(),
    runs: int = 1,
    deltas: Sequence[float] = DELTAS,
    false_alarm: float = 1e-6,
    accountant: Accountant | None = None,
    on_step: Progress = lambda done, of: None,
) -> RunAudit:
    """Play whole runs of :func:`noisette.privatize` and hold what they show against what they cost.

    Args:
        bound_of: makes the bound of a model.
        noise_multiplier: of the runs.
        sampling_rate: of the runs.
        steps: of each run.
        canary_model: makes model, records and losses.
        score: how a canary's steps become one score.
        runs: how many, each with all canaries.
        deltas: at which the run is priced.
        false_alarm: probability with which a right mechanism is called a violation, at any of the deltas.
        accountant: prices the runs; that of ``privatize`` unless given.
        on_step: told how many steps of how many are done.

    Guarantee: the scores are independent for the documented mechanism, so a claim that holds is refuted with
    probability ``false_alarm`` at most.

    Raises:
        ValueError: a number outside its domain.
        PrivacyError: the preflight, or the bound, refuses.
    """
    checks.all_of(
        lambda: checks.count(runs=runs),
        lambda: checks.open_fraction(false_alarm=false_alarm),
        *(lambda delta=delta: checks.open_fraction(delta=delta) for delta in deltas),
    )
    inside: list[np.ndarray] = []
    outside: list[np.ndarray] = []
    claimed: list[float] = []
    for k in range(runs):
        made = canary_model()
        half = made.canaries // 2
        records = torch.cat([made.records[:half], made.records[made.canaries :]])
        bound = bound_of(made.model)
        optimizer = torch.optim.SGD(list(bound.parameters.values()), lr=0.0)
        expected = max(1.0, sampling_rate * len(records))
        total = None
        with privatize(
            bound,
            optimizer,
            records,
            sampling_rate=sampling_rate,
            expected_batch_size=expected,
            steps=steps,
            noise_multiplier=noise_multiplier,
            accountant=accountant,
        ) as run:
            for step, batch in enumerate(run.batches(), 1):
                axis = Axis.of(bound.pop_sums(), bound.parameters)
                for piece in batch.microbatches(_MICROBATCH):
                    run.backward(made.losses(bound.model(piece)))
                optimizer.step()
                seen = axis.scores(made.canaries, expected) / noise_multiplier
                now = score(seen, axis.shift / noise_multiplier, sampling_rate)
                total = now if total is None else score.join(total, now)
                optimizer.zero_grad()
                on_step(k * steps + step, runs * steps)
            claimed = claimed or [run.epsilon(delta=delta) for delta in deltas]
        assert total is not None, "at least one step"
        inside.append(total[:half])
        outside.append(total[half:])
    of_those_in, of_those_out = np.concatenate(inside), np.concatenate(outside)
    points = tuple(
        Point(delta, claim, certified_epsilon(of_those_in, of_those_out, delta=delta, alpha=false_alarm / len(deltas)))
        for delta, claim in zip(deltas, claimed, strict=True)
    )
    return RunAudit(of_those_in, of_those_out, points, false_alarm)
