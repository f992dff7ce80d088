"""The audit of neighbouring batches: how far one more record moves the clipped sum of a whole batch.

Two batches that differ by one record are compared as a whole: first without noise, then in the real loop, along the
direction in which they differ most.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from copy import deepcopy
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from noisette import errors as checks
from noisette.audit.step_audit import FALSE_ALARM, Scores, StepAudit, Verdict, released_steps
from noisette.core.loss import Loss, Microbatch
from noisette.core.release import ROUNDING, BoundedSum, GradientBound, shares_of

Records = tuple[Tensor, ...]  # columns, each with the records along its first axis
Draw = Callable[[int], Records]

_SCALES = (1.0, 10.0, 1000.0)
_ROUNDS, _STRIDE = 10, 0.3


@dataclass(frozen=True)
class NeighbourAudit:
    """How far one record moved the sum of a batch, in units of the bound, for each pair of neighbours.

    ``noised`` is the audit of the worst pair in the real loop.
    """

    reached: np.ndarray
    noised: StepAudit

    @property
    def worst(self) -> float:
        """The largest distance by which a record moved a sum. The bound is 1."""
        return float(self.reached.max())

    @property
    def findings(self) -> tuple[str, ...]:
        """What is wrong, in words; empty if the bound held."""
        beyond = f"one record moves the sum of a batch by {self.worst:.3g} times the bound"
        return (*([beyond] if self.worst > 1 + ROUNDING else []), *self.noised.findings)

    @property
    def verdict(self) -> Verdict:
        """Violation if a record moved a sum by more than the bound and its allowance for rounding, or with noise."""
        return Verdict.VIOLATION if self.worst > 1 + ROUNDING else self.noised.verdict

    def facts(self, *, delta: float) -> dict[str, Any]:
        """All results as plain values. They depend on random records only."""
        return {
            "verdict": self.verdict.value,
            "pairs": self.reached.size,
            "worst": self.worst,
            "noised": self.noised.facts(delta=delta),
        }


def audit_neighbours(
    make: Callable[[], GradientBound],
    draw: Draw,
    loss: Loss,
    *,
    noise_multiplier: float,
    pairs: int = 50,
    others: int = 15,
    steps: int = 100,
    false_alarm: float = FALSE_ALARM,
) -> NeighbourAudit:
    """Compare batches that differ by one record, on a model of your own.

    Dropout is switched off, so that both batches meet the same masks. A third of the differing records is used as
    drawn; the others are scaled by 10 or 1000. Every second one is then moved by gradient ascent on the norm of its own
    gradient.

    Args:
        make: makes a bound and its model, with the same weights each time.
        draw: returns this number of random public records, as columns of the model's inputs and what the losses need.
        loss: called as ``loss(model, *record)``, as by a run. See :class:`noisette.Loss`.
        noise_multiplier: of the run.
        pairs: number of pairs of neighbours that are compared without noise.
        others: number of records in both batches of a pair.
        steps: number of steps with noise, for each batch of the pair that differs most.
        false_alarm: of the audit with noise.

    Raises:
        ValueError: a number outside its domain.
        PrivacyError: the bound refuses the model or the loss.
    """
    checks.all_of(
        lambda: checks.positive(noise_multiplier=noise_multiplier),
        lambda: checks.count(pairs=pairs, others=others, steps=steps),
    )
    bound = _without_dropout(make())
    free = deepcopy(bound.model)
    differences = []
    for k in range(pairs):
        shared, extra = draw(others), draw(1)
        extra = _scaled(extra, _SCALES[k % len(_SCALES)])
        if k % 2:
            extra = _ascended(free, extra, loss)
        moved = _sum(bound, _joined(shared, extra), loss) - _sum(bound, shared, loss)
        differences.append((float(moved.norm()), shared, extra, moved))
    bound.close()
    reached = np.array([size for size, *_ in differences])
    size, shared, extra, moved = differences[int(reached.argmax())]
    noised = _noised(make, shared, extra, moved / max(size, 1e-30), size, loss, noise_multiplier, steps)
    return NeighbourAudit(reached, StepAudit(noised, false_alarm=false_alarm))


def _joined(shared: Records, extra: Records) -> Records:
    return tuple(torch.cat([one, other]) for one, other in zip(shared, extra, strict=True))


def _scaled(records: Records, factor: float) -> Records:
    inputs, *rest = records
    return (inputs * factor if inputs.is_floating_point() else inputs, *rest)


def _ascended(model: nn.Module, record: Records, loss: Loss) -> Records:
    """The record after some steps of sign ascent on the norm of its gradient, or as it was where that has no slope."""
    inputs, *rest = record
    if not inputs.is_floating_point():
        return record
    parameters = [p for p in model.parameters() if p.requires_grad]
    at = inputs.clone()
    stride = _STRIDE * float(inputs.abs().mean())
    for _ in range(_ROUNDS):
        at.requires_grad_()
        try:
            grads = torch.autograd.grad(loss(model, at, *rest).sum(), parameters, create_graph=True, allow_unused=True)
            size = torch.stack([g.square().sum() for g in grads if g is not None]).sum()
            [up] = torch.autograd.grad(size, [at])
        except RuntimeError:  # an operation has no second derivative, or the gradient does not depend on the input
            return (at.detach(), *rest)
        at = (at + stride * up.sign()).detach()
    return (at, *rest)


def _sum(bound: GradientBound, records: Records, loss: Loss) -> Tensor:
    """The bounded sum of a batch, flat, in units of the noise at multiplier one: a record moves it by at most one."""
    bound.add(loss, Microbatch(records, {}), ())
    sums = bound.pop_sums()
    return torch.cat([g.double().flatten() * w for part, w in _weights(sums) for g in part.grads])


def _without_dropout(bound: GradientBound) -> GradientBound:
    for module in bound.model.modules():
        if isinstance(module, nn.modules.dropout._DropoutNd):
            module.eval()
    return bound


def _weights(sums: Sequence[BoundedSum]) -> list[tuple[BoundedSum, float]]:
    return [(part, share**0.5 / part.bound) for part, share in zip(sums, shares_of(sums), strict=True)]


def _noised(
    make: Callable[[], GradientBound],
    shared: Records,
    extra: Records,
    direction: Tensor,
    size: float,
    loss: Loss,
    noise_multiplier: float,
    steps: int,
) -> Scores:
    """Scores along the direction in which the record moves the sum, of a run with it and a run without it."""
    runs = []
    for records in (shared, _joined(shared, extra)):
        bound, expected, scores = _without_dropout(make()), len(records[0]), []
        released_sums = released_steps(
            bound,
            records,
            lambda run, batch: run.accumulate(loss, *batch),
            noise_multiplier=noise_multiplier,
            sampling_rate=1.0,
            steps=steps,
            expected_batch_size=expected,
            microbatch_size=expected,
        )
        for _, _, sums in released_sums:  # at constant weights
            released = torch.cat([_grad(p).flatten() * w for part, w in _weights(sums) for p in part.params])
            scores.append(float(released @ direction) * expected / noise_multiplier)
        runs.append(scores)
    values = np.stack(runs, 1).reshape(-1, 1)  # alternately without and with the record
    inside = np.resize([False, True], values.shape[0]).reshape(-1, 1)
    bound = _without_dropout(make())
    middle = float(_sum(bound, shared, loss) @ direction) / noise_multiplier
    bound.close()
    return Scores(values - middle, inside, noise_multiplier, size / noise_multiplier)


def _grad(p: Tensor) -> Tensor:
    assert p.grad is not None, "released"
    return p.grad.double()
