"""The membership-inference game on one step: canaries join each batch by a fair coin, and an attacker scores them.

The gradient of each canary points along an axis of its own, so one step gives as many scores as there are canaries.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from noisette import errors as checks
from noisette.accounting import Accountant
from noisette.audit.canary_models import Axes, CanaryModel
from noisette.core.batches import Batch
from noisette.core.release import BoundedSum, GradientBound, shares_of
from noisette.run.private import PrivateRun
from noisette.run.privatize import privatize

_MICROBATCH = 200
_LR = 0.1

BoundFactory = Callable[[nn.Module], GradientBound]


@dataclass(frozen=True)
class Scores:
    """Scores of canaries in units of the noise: N(0, 1) for those out of a batch, N(``shift``, 1) for those in it.

    Args:
        values: (steps, canaries).
        inside: whether the canary was in the step's batch, (steps, canaries).
        noise_multiplier: the documented one; one record moves all of a step by at most one over it.
        shift: the documented mean of those in: one over the noise multiplier where canaries reach every bound.
    """

    values: np.ndarray
    inside: np.ndarray
    noise_multiplier: float
    shift: float

    @property
    def of_those_in(self) -> np.ndarray:
        """The scores of canaries that were in the batch, in one row."""
        return self.values[self.inside]

    @property
    def of_those_out(self) -> np.ndarray:
        """The scores of canaries that were not, in one row."""
        return self.values[~self.inside]

    @property
    def residuals(self) -> np.ndarray:
        """The scores less the documented means, which leaves the noise, (steps, canaries)."""
        return self.values - self.shift * self.inside


def run_step_game(
    bound_of: BoundFactory, *, noise_multiplier: float, canary_model: CanaryModel | None = None, steps: int = 24
) -> Scores:
    """Score canaries in the real training loop of :func:`noisette.privatize`.

    Args:
        bound_of: makes the bound of a model, such as ``lambda model: PerExampleClip(model, 1.0)``.
        noise_multiplier: of the run.
        canary_model: model, records and losses; ``Axes()`` unless given.
        steps: number of steps; each gives a score for every canary.

    Raises:
        ValueError: a number outside its domain.
        PrivacyError: the bound refuses the model or the losses.
    """
    checks.all_of(lambda: checks.positive(noise_multiplier=noise_multiplier), lambda: checks.count(steps=steps))
    canary_model = canary_model if canary_model is not None else Axes()
    bound = bound_of(canary_model.model)
    expected = len(canary_model.records) / 2
    values, coins, shift = [], [], 0.0
    for _, batch, sums in released_steps(
        bound,
        canary_model.records,
        lambda run, records: run.accumulate(lambda model, record: canary_model.losses(model(record)), records),
        noise_multiplier=noise_multiplier,
        sampling_rate=0.5,
        steps=steps,
        expected_batch_size=expected,
        microbatch_size=_MICROBATCH,
        lr=_LR,
    ):
        axes = CanaryAxes.of(sums, bound.parameters)
        shift = axes.shift / noise_multiplier
        values.append(axes.scores(canary_model.canaries, expected) / noise_multiplier)
        coins.append(np.isin(np.arange(canary_model.canaries), batch.indices))
    return Scores(np.array(values), np.array(coins), noise_multiplier, shift)


def released_steps(
    bound: GradientBound,
    records: Tensor | tuple[Tensor, ...],
    add: Callable[[PrivateRun, Any], None],
    *,
    noise_multiplier: float,
    sampling_rate: float,
    steps: int,
    expected_batch_size: float,
    microbatch_size: int,
    lr: float = 0.0,
    accountant: Accountant | None = None,
) -> Iterator[tuple[PrivateRun, Batch, Sequence[BoundedSum]]]:
    """Train with the real loop, and stop after each step while its release is in the parameters' ``grad``.

    Args:
        bound: of the model that is trained.
        records: the data set.
        add: adds the gradients of a microbatch, by ``run.accumulate``.
        noise_multiplier: of the run.
        sampling_rate: of the run.
        steps: of the run.
        expected_batch_size: by which each sum is divided.
        microbatch_size: the largest number of records in a call of ``add``.
        lr: learning rate of SGD; 0 keeps the weights.
        accountant: of the run; that of ``privatize`` unless given.

    Yields:
        The run, the batch, and sums that hold nothing but the bounds of this step.
    """
    optimizer = torch.optim.SGD(list(bound.parameters.values()), lr=lr)
    with privatize(
        bound,
        optimizer,
        records,
        sampling_rate=sampling_rate,
        expected_batch_size=expected_batch_size,
        steps=steps,
        noise_multiplier=noise_multiplier,
        accountant=accountant,
    ) as run:
        for batch in run.batches():
            sums = bound.pop_sums()
            for microbatch in batch.microbatches(microbatch_size):
                add(run, microbatch)
            optimizer.step()
            yield run, batch, sums
            optimizer.zero_grad()


@dataclass(frozen=True)
class CanaryAxes:
    """The directions in which canaries move a release, in units of the noise at multiplier one.

    A canary reaches the bound of each sum by equal amounts in each of its parameters.
    """

    weights: Sequence[tuple[Tensor, float]]  # each parameter with the weight of its elements in a score
    shift: float  # mean score of a canary that is in the batch

    @classmethod
    def of(cls, sums: Sequence[BoundedSum], parameters: Mapping[str, Tensor]) -> CanaryAxes:
        """For a release of these sums; sums of anything but parameters, such as a count, are ignored."""
        trained = {id(p) for p in parameters.values()}
        reached = [
            (part, share)
            for part, share in zip(sums, shares_of(sums), strict=True)
            if all(id(p) in trained for p in part.params)
        ]
        length = math.sqrt(sum(share for _, share in reached))
        weights = [
            (p, share / (part.bound * math.sqrt(len(part.params)) * length))
            for part, share in reached
            for p in part.params
        ]
        return cls(weights, length)

    def scores(self, canaries: int, expected_batch_size: float) -> np.ndarray:
        """The component of the released gradients along the axis of each canary, (canaries,)."""
        scores = torch.zeros(canaries, dtype=torch.float64)
        for p, weight in self.weights:
            assert p.grad is not None
            scores += p.grad.double().flatten()[:canaries] * (weight * expected_batch_size)
        return scores.numpy()
