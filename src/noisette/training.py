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
from noisette.recipe import Recipe

F = nn.functional

_POINTS = 20  # places in a run where epsilon and test accuracy are taken
_EVALUATED_AT_ONCE = 2000
_FEATURES_AT_ONCE = 100


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
    seconds: float = 0.0  # of calibration, training and evaluation
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
    start = time.perf_counter()
    settings, device = recipe.training, torch.device("cuda" if torch.cuda.is_available() else "cpu")
    torch.manual_seed(settings.seed)
    model = models.build(recipe.model.name, data.train.inputs.shape[1:], data.classes).to(device)
    fixed, trained = (model.features, model.head) if isinstance(model, models.FixedFeatures) else (None, model)
    optimizer = torch.optim.SGD(trained.parameters(), lr=settings.lr, momentum=settings.momentum)
    averaged = AveragedModel(trained, avg_fn=_warm_average(settings.averaging)) if settings.averaging else None
    run = privatize(
        PerExampleClip(trained, max_grad_norm=recipe.privacy.max_grad_norm),
        optimizer,
        _examples(data.train, fixed, device),
        expected_batch_size=settings.batch_size,
        public_size=data.declared_size,
        epochs=settings.epochs,
        epsilon=recipe.privacy.epsilon,
        delta=recipe.privacy.delta,
        allow_large_delta=recipe.privacy.allow_large_delta,
        ledger=Ledger(ledger_path, dataset=data.name),
    )
    published = averaged.module if averaged else trained
    outcome = Outcome(recipe, data, models.FixedFeatures(fixed, published) if fixed else published, run)
    test = _examples(data.test, fixed, device) if data.test else None
    with run:
        try:
            _train_steps(run, outcome, published, averaged, test, on_step)
        except KeyboardInterrupt:
            outcome.interrupted = True
    if outcome.interrupted:
        accuracy = evaluate(published, *test) if test else None
        outcome.points.append(Point(run.steps_taken, outcome.epsilon, accuracy))
    outcome.seconds = time.perf_counter() - start
    outcome.model.eval()
    return outcome


def _train_steps(
    run: PrivateRun,
    outcome: Outcome,
    published: nn.Module,
    averaged: AveragedModel | None,
    test: tuple[Tensor, Tensor] | None,
    on_step: Watch,
) -> None:
    settings, model, optimizer = outcome.recipe.training, run.bound.model, run.optimizer
    schedule = CosineAnnealingLR(optimizer, run.steps) if settings.cosine else None
    costs = _costs(run, outcome.recipe.privacy.epsilon, outcome.recipe.privacy.delta)
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
            accuracy = evaluate(published, *test) if test else None
            outcome.points.append(Point(run.steps_taken, costs[run.steps_taken], accuracy))
        following = next(step for step in costs if step >= run.steps_taken)
        latest = outcome.points[-1].test_accuracy if outcome.points else None
        on_step(run, Point(run.steps_taken, costs[following], latest))


def _costs(run: PrivateRun, budget: float, delta: float) -> dict[int, float]:
    """Epsilon at evenly spaced steps of the run, the last one included; the whole run costs no more than its budget."""
    steps = sorted({max(1, round(run.steps * k / _POINTS)) for k in range(1, _POINTS + 1)})
    epsilons = epsilon_curve(run.event, checkpoints=steps, delta=run.delta_for_noise(delta))
    return {step: min(epsilon, budget) for step, epsilon in zip(steps, epsilons, strict=True)}


def _warm_average(decay: float) -> Callable[[Tensor, Tensor, Tensor | int], Tensor]:
    """Exponential average of the weights, shorter at first so that the initial weights are soon forgotten."""

    def average(kept: Tensor, current: Tensor, count: Tensor | int) -> Tensor:
        return torch.lerp(kept, current, 1 - min(decay, (1 + int(count)) / (10 + int(count))))

    return average


def _examples(split: Split, fixed: nn.Module | None, device: torch.device) -> tuple[Tensor, Tensor]:
    """Inputs of what is trained, and targets: the split itself, or its fixed features, computed once."""
    inputs, targets = torch.as_tensor(split.inputs), torch.as_tensor(split.targets, device=device)
    if fixed is None:
        return inputs.to(device), targets
    with torch.no_grad():
        shape = fixed(torch.zeros(1, *inputs.shape[1:], device=device)).shape[1:]
        features = torch.empty(len(inputs), *shape, device=device)
        pairs = zip(features.split(_FEATURES_AT_ONCE), inputs.split(_FEATURES_AT_ONCE), strict=True)
        for place, part in pairs:
            place.copy_(fixed(part.to(device)))
    return features, targets


@torch.no_grad()
def evaluate(model: nn.Module, inputs: Tensor, targets: Tensor) -> float:
    """Share of examples whose highest score is their class."""
    was_training = model.training
    model.eval()
    pairs = zip(inputs.split(_EVALUATED_AT_ONCE), targets.split(_EVALUATED_AT_ONCE), strict=True)
    right = sum(int((model(x).argmax(1) == y).sum()) for x, y in pairs)
    model.train(was_training)
    return right / len(targets)
