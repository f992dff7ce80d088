"""A recipe at work: builds the model, trains it privately, and keeps what may be published about the run."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path

import torch
from torch import Tensor, nn
from torch.optim.lr_scheduler import CosineAnnealingLR
from torch.optim.swa_utils import AveragedModel

from noisette import models
from noisette.accounting import Ledger, epsilon_curve
from noisette.bounding import PerExampleClip
from noisette.data import DataSet, Split
from noisette.private_run import PrivateRun, privatize
from noisette.recipe import Recipe, TrainingSection

F = nn.functional

_POINTS = 20  # places in a run where epsilon and test accuracy are taken
_EVALUATED_AT_ONCE = 2000


@dataclass(frozen=True)
class Point:
    """What may be known of a run after a step: its cost, and its accuracy on the public test set if there is one."""

    step: int
    epsilon: float
    test_accuracy: float | None


@dataclass
class Outcome:
    """A finished or interrupted run."""

    recipe: Recipe
    data: DataSet
    model: nn.Module
    run: PrivateRun
    points: list[Point] = field(default_factory=list)
    seconds: float = 0.0  # of training and evaluation
    interrupted: bool = False

    @property
    def parameters(self) -> int:
        """Number of trained scalars."""
        return sum(p.numel() for p in self.run.bound.parameters.values())

    @property
    def epsilon(self) -> float:
        """What the whole run cost at the recipe's delta."""
        return self.run.epsilon(delta=self.recipe.privacy.delta)


Watch = Callable[[PrivateRun, Point], None]


def train(recipe: Recipe, data: DataSet, *, ledger_path: Path | None, on_step: Watch) -> Outcome:
    """Train the recipe's model on ``data`` within the recipe's budget.

    Ctrl-C ends the run after the step at hand; the outcome then holds the model so far and is marked as interrupted.

    Args:
        recipe: the settings.
        data: what :func:`noisette.data.load` gave for the recipe's data section.
        ledger_path: file the ledger is written to; in memory if ``None``.
        on_step: called after each step with the run and the latest point (epsilon never under the true one).

    Guarantee: (epsilon, delta) of the recipe for adding or removing one training record, of everything in the outcome.

    Raises:
        ValueError: a model or a number that does not fit.
        PrivacyRefusal: the model mixes examples.
    """
    settings, device = recipe.training, torch.device("cuda" if torch.cuda.is_available() else "cpu")
    torch.manual_seed(settings.seed)
    model = models.build(recipe.model.name, data.train.inputs.shape[1:], data.classes).to(device)
    optimizer = torch.optim.SGD(model.parameters(), lr=settings.lr, momentum=settings.momentum)
    averaged = AveragedModel(model, multi_avg_fn=_warm_average(settings.averaging)) if settings.averaging else None
    run = privatize(
        PerExampleClip(model, max_grad_norm=recipe.privacy.max_grad_norm),
        optimizer,
        _tensors(data.train, device),
        expected_batch_size=settings.batch_size,
        public_size=data.declared_size,
        epochs=settings.epochs,
        epsilon=recipe.privacy.epsilon,
        delta=recipe.privacy.delta,
        allow_large_delta=recipe.privacy.allow_large_delta,
        ledger=Ledger(ledger_path, dataset=data.name),
    )
    published = averaged.module if averaged else model
    outcome = Outcome(recipe, data, published, run)
    test = _tensors(data.test, device) if data.test else None
    start = time.perf_counter()
    with run:
        try:
            _train_steps(run, outcome, averaged, settings, test, on_step)
        except KeyboardInterrupt:
            outcome.interrupted = True
    outcome.seconds = time.perf_counter() - start
    model.eval()
    return outcome


def _train_steps(
    run: PrivateRun,
    outcome: Outcome,
    averaged: AveragedModel | None,
    settings: TrainingSection,
    test: tuple[Tensor, Tensor] | None,
    on_step: Watch,
) -> None:
    model, optimizer = run.bound.model, run.optimizer
    schedule = CosineAnnealingLR(optimizer, run.steps) if settings.cosine else None
    costs = _costs(run, outcome.recipe.privacy.delta)
    for batch in run.batches():
        for inputs, targets in batch.pieces(settings.piece_size):
            run.backward(F.cross_entropy(model(inputs), targets, reduction="none"))
        optimizer.step()
        optimizer.zero_grad()
        if schedule:
            schedule.step()
        if averaged:
            averaged.update_parameters(model)
        if run.steps_taken in costs:
            accuracy = evaluate(outcome.model, *test) if test else None
            outcome.points.append(Point(run.steps_taken, costs[run.steps_taken], accuracy))
        following = next(step for step in costs if step >= run.steps_taken)
        latest = outcome.points[-1].test_accuracy if outcome.points else None
        on_step(run, Point(run.steps_taken, costs[following], latest))


def _costs(run: PrivateRun, delta: float) -> dict[int, float]:
    """Epsilon at evenly spaced steps of the run, the last one included."""
    steps = sorted({max(1, round(run.steps * k / _POINTS)) for k in range(1, _POINTS + 1)})
    return dict(zip(steps, epsilon_curve(run.event, checkpoints=steps, delta=delta), strict=True))


def _warm_average(decay: float) -> Callable[[list[Tensor], list[Tensor], Tensor | int], None]:
    """Exponential average of the weights, shorter at first so that the initial weights are soon forgotten."""

    def average(kept: list[Tensor], current: list[Tensor], count: Tensor | int) -> None:
        weight = 1 - min(decay, (1 + int(count)) / (10 + int(count)))
        torch._foreach_lerp_(kept, current, weight)

    return average


def _tensors(split: Split, device: torch.device) -> tuple[Tensor, Tensor]:
    return torch.as_tensor(split.inputs, device=device), torch.as_tensor(split.targets, device=device)


@torch.no_grad()
def evaluate(model: nn.Module, inputs: Tensor, targets: Tensor) -> float:
    """Share of examples whose highest score is their class."""
    was_training = model.training
    model.eval()
    pairs = zip(inputs.split(_EVALUATED_AT_ONCE), targets.split(_EVALUATED_AT_ONCE), strict=True)
    right = sum(int((model(x).argmax(1) == y).sum()) for x, y in pairs)
    model.train(was_training)
    return right / len(targets)
