"""A recipe at work: builds the model, trains it privately, and keeps what may be published about the run."""

from __future__ import annotations

import math
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path

import torch
from torch import Tensor, nn
from torch.optim.lr_scheduler import CosineAnnealingLR, LambdaLR, LRScheduler
from torch.optim.swa_utils import AveragedModel

from noisette import models
from noisette.accounting import TAIL_SHARE, Ledger, PldAccountant, epsilon_curve, steps_for
from noisette.bounding import PerExampleClip, PerLayer
from noisette.bounding.clipping_rules import Group
from noisette.data import DataSet, Split
from noisette.private_run import PrivateRun, privatize
from noisette.recipe import ACCOUNTANTS, PrivacySection, Recipe, TrainingSection
from noisette.schedule import schedule

F = nn.functional

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
    def layers(self) -> int:
        """How many layers are clipped on their own; 1 where all are clipped together."""
        return len(_layers(self.run.bound.model)) if self.recipe.privacy.per_layer else 1

    @property
    def epsilon(self) -> float:
        """What the whole run cost at the recipe's delta."""
        return self.run.epsilon(delta=self.recipe.privacy.delta)


Watch = Callable[[PrivateRun, Point], None]


def train(recipe: Recipe, data: DataSet, *, ledger_path: Path | None, on_step: Watch, points: int = 20) -> Outcome:
    """Train the recipe's model on ``data`` within the recipe's budget.

    Ctrl-C ends the run after the step at hand; the outcome then holds the model so far and is marked as interrupted.

    Args:
        recipe: the settings.
        data: what :func:`noisette.data.load` gave for the recipe's data section.
        ledger_path: file the ledger is written to; in memory if ``None``.
        on_step: called after each step with the run and the latest point (epsilon never under the true one).
        points: how many places in the run epsilon and test accuracy are taken at, evenly spaced.

    Guarantee: (epsilon, delta) of the recipe for adding or removing one training record, of everything in the outcome.

    Raises:
        ValueError: a model or a number that does not fit.
        PrivacyRefusal: the model mixes examples.
    """
    start = time.perf_counter()
    settings, device = recipe.training, torch.device("cuda" if torch.cuda.is_available() else "cpu")
    torch.manual_seed(settings.seed)
    ledger = Ledger(ledger_path, dataset=data.name)
    model = _model(recipe, data, ledger).to(device)
    fixed, trained = (model.features, model.head) if isinstance(model, models.FixedFeatures) else (None, model)
    clip, noise_multiplier = _bound(trained, recipe.privacy)
    sampling_rate, steps = _length(recipe, data.declared_size, noise_multiplier, ledger)
    optimizer = torch.optim.SGD(trained.parameters(), lr=settings.lr, momentum=settings.momentum)
    averaged = AveragedModel(trained, avg_fn=_warm_average(settings.averaging)) if settings.averaging else None
    run = privatize(
        clip,
        optimizer,
        _examples(data.train, fixed, device),
        expected_batch_size=settings.batch_size,
        sampling_rate=sampling_rate,
        steps=steps,
        epsilon=recipe.privacy.epsilon if noise_multiplier is None else None,
        noise_multiplier=noise_multiplier,
        delta=recipe.privacy.delta,
        accountant=ACCOUNTANTS[recipe.privacy.accountant],
        allow_large_delta=recipe.privacy.allow_large_delta,
        ledger=ledger,
    )
    published = averaged.module if averaged else trained
    outcome = Outcome(recipe, data, models.FixedFeatures(fixed, published) if fixed else published, run)
    test = _examples(data.test, fixed, device) if data.test else None
    with run:
        try:
            _train_steps(run, outcome, published, averaged, test, on_step, points)
        except KeyboardInterrupt:
            outcome.interrupted = True
    if outcome.interrupted:
        accuracy = evaluate(published, *test) if test else None
        outcome.points.append(Point(run.steps_taken, outcome.epsilon, accuracy))
    outcome.seconds = time.perf_counter() - start
    outcome.model.eval()
    return outcome


def _model(recipe: Recipe, data: DataSet, ledger: Ledger) -> nn.Module:
    """A fresh model, behind the private principal components of the records where the recipe asks for them."""
    shape, components = data.train.inputs.shape[1:], recipe.projection.components
    if not components:
        return models.build(recipe.model.name, shape, data.classes)
    from noisette.principal_components import private_pca  # scikit-learn takes a second: paid by those who project

    model = models.projected(recipe.model.name, shape, data.classes, components)
    rows = data.train.inputs.reshape(-1, math.prod(shape))
    found = private_pca(rows, components, recipe.projection.noise_multiplier, ledger=ledger)
    model.features.load_state_dict({"1.weight": torch.as_tensor(found.components_)})
    return model


def _bound(model: nn.Module, privacy: PrivacySection) -> tuple[PerExampleClip, float | None]:
    """What bounds one example, and the noise multiplier of all layers together if the recipe gives one.

    Noise of sigma C on each of K layers that are clipped to C is one Gaussian mechanism: bound C sqrt(K), noise
    multiplier sigma / sqrt(K).
    """
    if not privacy.per_layer:
        return PerExampleClip(model, max_grad_norm=privacy.max_grad_norm), privacy.noise_multiplier
    layers = len(_layers(model))
    clip = PerExampleClip(model, clipping=PerLayer(privacy.max_grad_norm * math.sqrt(layers)))
    noise = privacy.noise_multiplier
    return clip, noise if noise is None else noise / math.sqrt(layers)


def _layers(model: nn.Module) -> list[Group]:
    return PerLayer(1.0).groups([name for name, p in model.named_parameters() if p.requires_grad])


def _length(recipe: Recipe, size: int, noise_multiplier: float | None, ledger: Ledger) -> tuple[float, int]:
    """Sampling rate and steps: those of the recipe's epochs, or fewer where the noise is given and the budget ends."""
    privacy, training = recipe.privacy, recipe.training
    sampling_rate, steps = schedule(training.batch_size, None, None, size, training.epochs)
    if noise_multiplier is None:
        return sampling_rate, steps
    affordable = steps_for(
        epsilon=privacy.epsilon,
        delta=privacy.delta * (1 - TAIL_SHARE),
        sampling_rate=sampling_rate,
        noise_multiplier=noise_multiplier,
        accountant=ACCOUNTANTS[privacy.accountant],
        besides=ledger.events,
    )
    if affordable == 0:
        raise ValueError(
            f"epsilon={privacy.epsilon:g} at delta={privacy.delta:g} does not pay for one step of rate "
            f"{sampling_rate:.4g} with noise_multiplier={noise_multiplier:.4g}"
            + (f" beside {len(ledger.events)} other releases" if ledger.events else "")
            + "; give more of either"
        )
    return sampling_rate, min(steps, affordable)


def _train_steps(
    run: PrivateRun,
    outcome: Outcome,
    published: nn.Module,
    averaged: AveragedModel | None,
    test: tuple[Tensor, Tensor] | None,
    on_step: Watch,
    points: int,
) -> None:
    settings, model, optimizer = outcome.recipe.training, run.bound.model, run.optimizer
    rates = _learning_rates(run, settings)
    costs = _costs(run, outcome.recipe.privacy.epsilon, outcome.recipe.privacy.delta, points)
    for batch in run.batches():
        for inputs, targets in batch.pieces(settings.piece_size):
            run.backward(F.cross_entropy(model(inputs), targets, reduction="none"))
        optimizer.step()
        optimizer.zero_grad()
        rates.step()
        if averaged:
            averaged.update_parameters(model)
        if run.steps_taken in costs:
            accuracy = evaluate(published, *test) if test else None
            outcome.points.append(Point(run.steps_taken, costs[run.steps_taken], accuracy))
        following = next(step for step in costs if step >= run.steps_taken)
        latest = outcome.points[-1].test_accuracy if outcome.points else None
        on_step(run, Point(run.steps_taken, costs[following], latest))


def _learning_rates(run: PrivateRun, settings: TrainingSection) -> LRScheduler:
    """The learning rate of each step: a line to another one, half a cosine to zero, or constant."""
    if settings.lr_end is not None:
        steps, end = round(settings.lr_epochs / run.event.sampling_rate), settings.lr_end / settings.lr
        return LambdaLR(run.optimizer, lambda step: 1 + (end - 1) * min(1.0, step / steps))
    if settings.cosine:
        return CosineAnnealingLR(run.optimizer, run.steps)
    return LambdaLR(run.optimizer, lambda step: 1.0)


def _costs(run: PrivateRun, budget: float, delta: float, points: int) -> dict[int, float]:
    """Epsilon at evenly spaced steps of the run, the last one included; the whole run costs no more than its budget."""
    steps = sorted({max(1, round(run.steps * k / points)) for k in range(1, points + 1)})
    epsilons = epsilon_curve(
        run.event,
        checkpoints=steps,
        delta=run.delta_for_noise(delta),
        accountant=None if isinstance(run.accountant, PldAccountant) else run.accountant,
        besides=run.ledger.events,
    )
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
