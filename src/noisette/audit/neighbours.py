"""How far one more record moves a whole batch: where records mix, it moves what the others add as well.

A canary's own axis does not see what the canary does to others. Here two batches that differ by one record are compared
as a whole, first without noise, then along the direction in which they differ most, through the real loop.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from copy import deepcopy
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from noisette._internal import checks
from noisette.audit.scores import Scores
from noisette.audit.step_audit import FALSE_ALARM, StepAudit, Verdict
from noisette.mechanisms.bounded_sum import BoundedSum, GradientBound
from noisette.mechanisms.gaussian import shares_of
from noisette.run.private import privatize
from noisette.validation.deterministic import DisableRandomness, randomness_disabled_in_recomputation

Records = tuple[Tensor, ...]  # columns, each with the records on its first axis
Draw = Callable[[int], Records]
Losses = Callable[[nn.Module, Records], Tensor]

ROUNDING = 1e-3  # what sums in single precision may differ by, in units of the bound
_SCALES = (1.0, 10.0, 1000.0)
_ROUNDS, _STRIDE = 10, 0.3


@dataclass(frozen=True)
class NeighbourAudit:
    """How far one record moved the sum of a batch, in units of the bound, for each pair of neighbours.

    ``noised`` has the scores of the worst pair, through the real loop.
    """

    reached: np.ndarray
    noised: StepAudit

    @property
    def worst(self) -> float:
        """The furthest that a record moved a sum. The bound is 1."""
        return float(self.reached.max())

    @property
    def findings(self) -> tuple[str, ...]:
        """What is wrong, in words; nothing if the bound held."""
        beyond = f"one record moves the sum of a batch by {self.worst:.3g} times the bound"
        return (*([beyond] if self.worst > 1 + ROUNDING else []), *self.noised.findings)

    @property
    def verdict(self) -> Verdict:
        """Violation if a record moved a sum beyond the bound, with noise or without."""
        return Verdict.VIOLATION if self.worst > 1 + ROUNDING else self.noised.verdict

    def facts(self, *, delta: float) -> dict[str, Any]:
        """All numbers, as plain values. They are about random records alone."""
        return {
            "verdict": self.verdict.value,
            "pairs": self.reached.size,
            "worst": self.worst,
            "noised": self.noised.facts(delta=delta),
        }


def audit_neighbours(
    make: Callable[[], GradientBound],
    draw: Draw,
    losses: Losses,
    *,
    noise_multiplier: float,
    pairs: int = 50,
    others: int = 15,
    steps: int = 100,
    false_alarm: float = FALSE_ALARM,
) -> NeighbourAudit:
    """Compare batches that differ by one record, on a model of your own.

    A third of the differing records is drawn, the others are drawn and made 10 or 1000 times larger, and every second
    one climbs to where its own gradient is large.

    Args:
        make: makes a bound and its model, with the same weights each time.
        draw: so many random public records, as columns of the model's inputs and what the losses need.
        losses: of a model and records, one for each.
        noise_multiplier: of the run.
        pairs: of neighbours that are compared without noise.
        others: records that both have.
        steps: with noise, for each of the two neighbours that differ most.
        false_alarm: of the audit with noise.

    Raises:
        ValueError: a number outside its domain.
        PrivacyError: the preflight refuses the model, or the bound the losses.
    """
    checks.all_of(
        lambda: checks.positive(noise_multiplier=noise_multiplier),
        lambda: checks.count(pairs=pairs, others=others, steps=steps),
    )
    bound = make()
    free = deepcopy(bound.model)  # a copy is not recorded
    differences = []
    for k in range(pairs):
        shared, extra = draw(others), draw(1)
        extra = _scaled(extra, _SCALES[k % len(_SCALES)])
        if k % 2:
            extra = _climbed(free, extra, losses)
        moved = _sum(bound, _joined(shared, extra), losses) - _sum(bound, shared, losses)
        differences.append((float(moved.norm()), shared, extra, moved))
    bound.close()
    reached = np.array([size for size, *_ in differences])
    size, shared, extra, moved = differences[int(reached.argmax())]
    noised = _noised(make, shared, extra, moved / max(size, 1e-30), size, losses, noise_multiplier, steps)
    return NeighbourAudit(reached, StepAudit(noised, false_alarm=false_alarm))


def _joined(shared: Records, extra: Records) -> Records:
    return tuple(torch.cat([one, other]) for one, other in zip(shared, extra, strict=True))


def _scaled(records: Records, factor: float) -> Records:
    inputs, *rest = records
    return (inputs * factor if inputs.is_floating_point() else inputs, *rest)


def _climbed(model: nn.Module, record: Records, losses: Losses) -> Records:
    """The record after some steps up the slope of its own gradient's norm, as far as there is one."""
    inputs, *rest = record
    if not inputs.is_floating_point():
        return record
    parameters = [p for p in model.parameters() if p.requires_grad]
    at = inputs.clone()
    stride = _STRIDE * float(inputs.abs().mean())
    for _ in range(_ROUNDS):
        at.requires_grad_()
        try:
            with DisableRandomness():
                [loss] = losses(model, (at, *rest))
            grads = torch.autograd.grad(loss, parameters, create_graph=True, allow_unused=True)
            size = torch.stack([g.square().sum() for g in grads if g is not None]).sum()
            [up] = torch.autograd.grad(size, [at])
        except RuntimeError:  # an operation without a second derivative, or a gradient that no input moves
            return (at.detach(), *rest)
        at = (at + stride * up.sign()).detach()
    return (at, *rest)


def _sum(bound: GradientBound, records: Records, losses: Losses) -> Tensor:
    """What the bound hands on, flat, in units of the noise at multiplier one: a record moves it by at most one."""
    with torch.enable_grad(), DisableRandomness():
        found = losses(bound.model, records)
    with randomness_disabled_in_recomputation(bound.model):
        bound.backward(found)
    sums = bound.pop_sums()
    return torch.cat([g.double().flatten() * w for part, w in _weights(sums) for g in part.grads])


def _weights(sums: Sequence[BoundedSum]) -> list[tuple[BoundedSum, float]]:
    return [(part, share**0.5 / part.bound) for part, share in zip(sums, shares_of(sums), strict=True)]


def _noised(
    make: Callable[[], GradientBound],
    shared: Records,
    extra: Records,
    direction: Tensor,
    size: float,
    losses: Losses,
    noise_multiplier: float,
    steps: int,
) -> Scores:
    """Scores of the record along the direction in which it moves the sum, of runs with it and without it."""
    runs = [
        _run(make(), records, direction, losses, noise_multiplier, steps)
        for records in (shared, _joined(shared, extra))
    ]
    values = np.stack(runs, 1).reshape(-1, 1)  # by turns
    inside = np.resize([False, True], values.shape[0]).reshape(-1, 1)
    bound = make()
    middle = float(_sum(bound, shared, losses) @ direction) / noise_multiplier
    bound.close()
    return Scores(values - middle, inside, noise_multiplier, size / noise_multiplier)


def _run(
    bound: GradientBound, records: Records, direction: Tensor, losses: Losses, noise_multiplier: float, steps: int
) -> np.ndarray:
    """What each step of a run with all of these records shows along the direction; the weights stay."""
    optimizer = torch.optim.SGD(list(bound.parameters.values()), lr=0.0)
    expected = len(records[0])
    seen = []
    with privatize(
        bound,
        optimizer,
        records,
        sampling_rate=1.0,
        expected_batch_size=expected,
        steps=steps,
        noise_multiplier=noise_multiplier,
    ) as run:
        for batch in run.batches():
            weights = _weights(bound.pop_sums())
            for piece in batch.microbatches(expected):
                with DisableRandomness():
                    found = losses(bound.model, piece)
                with randomness_disabled_in_recomputation(bound.model):
                    run.backward(found)
            optimizer.step()
            released = torch.cat([_grad(p).flatten() * w for part, w in weights for p in part.params])
            seen.append(float(released @ direction) * expected / noise_multiplier)
            optimizer.zero_grad()
    return np.array(seen)


def _grad(p: Tensor) -> Tensor:
    assert p.grad is not None, "released"
    return p.grad.double()
