"""The games played against a run or a recipe, on what is its own and public about it."""

from __future__ import annotations

import numpy as np
import torch

from noisette.audit.canary_models import LipschitzAxes, Rows
from noisette.audit.neighbours import NeighbourAudit, Records, audit_neighbours
from noisette.audit.step_audit import StepAudit, audit_bound
from noisette.audit.subject import Subject
from noisette.audit.whole_run import Progress, RunAudit, audit_run

_CANARIES, _DENSE_CANARIES = 20_000, 4_096


def play_step(subject: Subject, *, steps: int) -> StepAudit:
    """The step audit under the subject's way of bounding, and its noise."""
    noise = subject.claim.noise_multiplier
    return audit_bound(subject.bound_of, noise_multiplier=noise, canary_model=subject.canary_model(), steps=steps)


def play_neighbours(subject: Subject, *, pairs: int) -> NeighbourAudit:
    """Batches that differ by one record, on the subject's own model and random records.

    Raises:
        ValueError: the recipe is not known.
        PrivacyError: the preflight refuses the model.
    """
    learner = subject.learner()
    inputs, targets = (column.clone() for column in learner.examples.tensors)
    learner.bound.close()
    random = np.random.default_rng()

    def draw(n: int) -> Records:
        chosen = torch.as_tensor(random.integers(0, len(inputs), n))
        return inputs[chosen], targets[chosen]

    return audit_neighbours(
        lambda: subject.learner().bound,
        draw,
        lambda model, records: learner.loss(model(records[0]), records[1]),
        noise_multiplier=subject.claim.noise_multiplier,
        pairs=pairs,
        steps=20,
    )


def play_runs(subject: Subject, *, on_step: Progress) -> RunAudit:
    """Whole runs of the subject's length, with its sampling and its noise."""
    return audit_run(
        subject.bound_of,
        noise_multiplier=subject.claim.noise_multiplier,
        sampling_rate=subject.claim.sampling_rate,
        steps=subject.steps,
        canary_model=lambda: LipschitzAxes(_DENSE_CANARIES) if subject.lipschitz else Rows(_CANARIES),
        on_step=on_step,
    )
