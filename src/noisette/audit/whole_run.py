"""The audit of whole runs: canaries are scored over all steps, so that Poisson sampling is part of what is tested.

Half of the canaries are records of the run, the other half are not. Each has an axis of its own, so one run gives as
many scores as there are canaries.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass
from typing import Any

import numpy as np
import torch

from noisette import errors as checks
from noisette.accounting import Accountant
from noisette.audit.canary_models import CanaryModel, Rows
from noisette.audit.certificate import certified_epsilon
from noisette.audit.step_audit import Verdict
from noisette.audit.step_game import BoundFactory, CanaryAxes, released_steps

_MICROBATCH = 4096
_CANARIES = 20_000
DELTAS = (1e-2, 1e-5)  # error rates prove most at a large delta

OnStep = Callable[[int, int], None]  # takes the number of steps done, and of all


def likelihood_ratio(scores: np.ndarray, shift: float, sampling_rate: float) -> np.ndarray:
    """The log-likelihood ratio of in and out for one step, (canaries,).

    No score is more powerful if no other record is on a canary's axis.
    """
    return np.log1p(sampling_rate * np.expm1(scores * shift - shift**2 / 2))


@dataclass(frozen=True)
class Point:
    """The guaranteed upper bound on a run's epsilon at a delta, and the certified lower bound."""

    delta: float
    guaranteed: float
    certified: float


@dataclass(frozen=True)
class RunAudit:
    """What the scores of canaries ``inside`` and ``outside`` of the data set of whole runs prove."""

    inside: np.ndarray
    outside: np.ndarray
    points: tuple[Point, ...]
    false_alarm: float

    @property
    def findings(self) -> tuple[str, ...]:
        """What is wrong, in words; empty if the guarantee is not refuted."""
        return tuple(
            f"at delta={p.delta:g} the run costs epsilon={p.certified:.3g} or more; at most {p.guaranteed:.3g} is "
            "guaranteed"
            for p in self.points
            if p.certified > p.guaranteed
        )

    @property
    def verdict(self) -> Verdict:
        """Violation if the guarantee is refuted at one of the deltas."""
        return Verdict.VIOLATION if self.findings else Verdict.CONSISTENT

    def facts(self) -> dict[str, Any]:
        """All results as plain values. They depend on canaries only, on no record."""
        return {
            "verdict": self.verdict.value,
            "scores_in": self.inside.size,
            "scores_out": self.outside.size,
            "false_alarm": self.false_alarm,
            "points": [asdict(p) for p in self.points],
            "findings": list(self.findings),
        }


def audit_run(
    bound_of: BoundFactory,
    *,
    noise_multiplier: float,
    sampling_rate: float,
    steps: int,
    canary_model: Callable[[], CanaryModel] = lambda: Rows(_CANARIES),
    score: Callable[[np.ndarray, float, float], np.ndarray] = likelihood_ratio,
    join: Callable[[np.ndarray, np.ndarray], np.ndarray] = np.add,
    runs: int = 1,
    deltas: Sequence[float] = DELTAS,
    false_alarm: float = 1e-6,
    accountant: Accountant | None = None,
    on_step: OnStep = lambda done, of: None,
) -> RunAudit:
    """Score canaries over whole runs of :func:`noisette.privatize`, and test the epsilon that is guaranteed.

    Args:
        bound_of: makes the bound of a model.
        noise_multiplier: of the runs.
        sampling_rate: of the runs.
        steps: of each run.
        canary_model: makes model, records and losses.
        score: of the canaries in one step; takes their components of the release in units of the noise, their shift if
            they are in the batch, and the sampling rate.
        join: combines the scores of earlier steps with those of the next.
        runs: number of runs, each with all canaries.
        deltas: at which epsilon is tested.
        false_alarm: probability that a correct mechanism is called a violation, at any of the deltas.
        accountant: of the runs; that of ``privatize`` unless given.
        on_step: called after each step.

    Guarantee: the scores are independent for the documented mechanism, so a guarantee that holds is refuted with
    probability ``false_alarm`` at most.

    Raises:
        ValueError: a number outside its domain.
        PrivacyError: the bound refuses the model or the losses.
    """
    checks.all_of(
        lambda: checks.count(runs=runs),
        lambda: checks.open_fraction(false_alarm=false_alarm),
        *(lambda delta=delta: checks.open_fraction(delta=delta) for delta in deltas),
    )
    inside: list[np.ndarray] = []
    outside: list[np.ndarray] = []
    guaranteed: list[float] = []
    for k in range(runs):
        made = canary_model()
        half = made.canaries // 2
        records = torch.cat([made.records[:half], made.records[made.canaries :]])
        bound = bound_of(made.model)
        expected = max(1.0, sampling_rate * len(records))
        total = None
        trained = released_steps(
            bound,
            records,
            lambda run, batch, made=made: run.accumulate(lambda model, record: made.losses(model(record)), batch),
            noise_multiplier=noise_multiplier,
            sampling_rate=sampling_rate,
            steps=steps,
            expected_batch_size=expected,
            microbatch_size=_MICROBATCH,
            accountant=accountant,
        )
        for step, (run, _, sums) in enumerate(trained, 1):
            axes = CanaryAxes.of(sums, bound.parameters)
            scores = axes.scores(made.canaries, expected) / noise_multiplier
            of_step = score(scores, axes.shift / noise_multiplier, sampling_rate)
            total = of_step if total is None else join(total, of_step)
            on_step(k * steps + step, runs * steps)
            if k == 0 and step == steps:
                guaranteed = [run.epsilon(delta=delta) for delta in deltas]
        assert total is not None, "at least one step"
        inside.append(total[:half])
        outside.append(total[half:])
    both, alpha = (np.concatenate(inside), np.concatenate(outside)), false_alarm / len(deltas)
    points = tuple(
        Point(delta, epsilon, certified_epsilon(*both, delta=delta, alpha=alpha))
        for delta, epsilon in zip(deltas, guaranteed, strict=True)
    )
    return RunAudit(*both, points, false_alarm)
