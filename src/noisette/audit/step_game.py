"""The game on one step: canaries toss coins whether they take part, and their scores are what an attacker can see.

Each canary's gradient points along an axis of its own, so one step gives as many samples as there are canaries.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping, Sequence

import numpy as np
import torch
from torch import Tensor, nn

from noisette._internal import checks
from noisette.audit.canary_models import Axes, Canaries, CanaryModel
from noisette.audit.scores import Scores
from noisette.mechanisms.bounded_sum import BoundedSum, GradientBound
from noisette.mechanisms.gaussian import shares_of
from noisette.run.private import privatize

_MICROBATCH = 200
_LR = 0.1

MakesBound = Callable[[nn.Module], GradientBound]
Step = Callable[[Tensor], Tensor]


def run_step_game(
    bound_of: MakesBound, *, noise_multiplier: float, canary_model: CanaryModel | None = None, steps: int = 24
) -> Scores:
    """Play the game through the real loop of :func:`noisette.privatize`.

    Args:
        bound_of: makes the bound of a model, such as ``lambda model: PerExampleClip(model, 1.0)``.
        noise_multiplier: of the run.
        canary_model: model, records and losses; ``Axes()`` unless given.
        steps: how many; each gives a score for every canary.

    Raises:
        ValueError: a number outside its domain.
        PrivacyError: the preflight, or the bound, refuses.
    """
    checks.all_of(lambda: checks.positive(noise_multiplier=noise_multiplier), lambda: checks.count(steps=steps))
    canary_model = canary_model if canary_model is not None else Axes()
    bound = bound_of(canary_model.model)
    optimizer = torch.optim.SGD(list(bound.parameters.values()), lr=_LR)
    expected = len(canary_model.records) / 2
    values, coins, shift = [], [], 0.0
    with privatize(
        bound,
        optimizer,
        canary_model.records,
        sampling_rate=0.5,
        expected_batch_size=expected,
        steps=steps,
        noise_multiplier=noise_multiplier,
    ) as run:
        for batch in run.batches():
            axes = Axis.of(
                bound.pop_sums(), bound.parameters
            )  # nothing is pending yet, but the bounds of the batch stand
            for piece in batch.microbatches(_MICROBATCH):
                run.backward(canary_model.losses(bound.model(piece)))
            optimizer.step()
            shift = axes.shift / noise_multiplier
            values.append(axes.scores(canary_model.canaries, expected) / noise_multiplier)
            coins.append(np.isin(np.arange(canary_model.canaries), batch.indices))
            optimizer.zero_grad()
    return Scores(np.array(values), np.array(coins), noise_multiplier, shift)


class Axis:
    """The direction in which a canary moves a release, in units of the noise at multiplier one.

    A canary reaches the bound of each sum by equal numbers in each of its parameters.
    """

    def __init__(self, weights: Sequence[tuple[Tensor, float]], shift: float) -> None:
        self._weights = weights
        self.shift = shift  # of a canary that takes part

    @classmethod
    def of(cls, sums: Sequence[BoundedSum], parameters: Mapping[str, Tensor]) -> Axis:
        """For a release of these sums; what is no parameter, such as a count, is left aside."""
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
        """What the released gradients show along the axis of each canary, (canaries,)."""
        seen = torch.zeros(canaries, dtype=torch.float64)
        for p, weight in self._weights:
            assert p.grad is not None
            seen += p.grad.double().flatten()[:canaries] * (weight * expected_batch_size)
        return seen.numpy()


def play_step(
    step: Step, *, bound: float, noise_multiplier: float, canaries: Canaries | None = None, steps: int = 24
) -> Scores:
    """Play the game on a training step of your own.

    Args:
        step: takes the records of a batch, (n, ``canaries.width``), and returns the noised sum of their clipped
            gradients, flat, (``canaries.width``,): before any division by a batch size, or multiplied with it. The
            batch is drawn by the game.
        bound: the claimed bound on one example.
        noise_multiplier: the claimed standard deviation of the noise in units of the bound.
        canaries: the records; ``Canaries()`` unless given.
        steps: how many.

    Raises:
        ValueError: a number outside its domain, or the step returned something else.
    """
    checks.all_of(
        lambda: checks.positive(bound=bound, noise_multiplier=noise_multiplier), lambda: checks.count(steps=steps)
    )
    canaries = canaries if canaries is not None else Canaries()
    records, values, coins = canaries.records, [], []
    for inside in _coins(steps, len(records)):
        noised = step(records[torch.as_tensor(inside)])
        if not isinstance(noised, Tensor) or noised.numel() != canaries.width:
            got = tuple(noised.shape) if isinstance(noised, Tensor) else type(noised).__name__
            raise ValueError(f"expected the step to return a tensor of {canaries.width} numbers, got {got}")
        seen = noised.detach().cpu().double().flatten()[: canaries.count].numpy()
        values.append(seen / (noise_multiplier * bound))
        coins.append(inside[: canaries.count])
    return Scores(np.array(values), np.array(coins), noise_multiplier, 1 / noise_multiplier)


def _coins(steps: int, records: int) -> Iterator[np.ndarray]:
    generator = np.random.default_rng()
    for _ in range(steps):
        yield generator.random(records) < 0.5
