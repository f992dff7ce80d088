"""A recipe at work: builds the model, trains it privately, and keeps what may be published about the run."""

from __future__ import annotations

import math
import time
from collections.abc import Callable
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from noisette.accounting import Ledger, PldAccountant, epsilon_curve, steps_for
from noisette.data import DataSet
from noisette.learner import Learner, layers_of, principal_components_of
from noisette.private_run import PrivateRun, privatize
from noisette.recipe import ACCOUNTANTS, Recipe, TrainingSection
from noisette.saving import SavedRun
from noisette.schedule import schedule
from noisette.spending import delta_to_calibrate

F = nn.functional

_EVALUATED_AT_ONCE = 2000


@dataclass(frozen=True)
class Point:
    """What may be known of a run after a step: its cost, and its accuracy on the public test set if there is one.

    ``step`` counts those that are paid for, whether they moved the weights or were lost with a process that died.
    """

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
    resumed: int = 0  # how many times

    @property
    def parameters(self) -> int:
        """Number of trained scalars."""
        return sum(p.numel() for p in self.run.bound.parameters.values())

    @property
    def layers(self) -> int:
        """How many layers are clipped on their own; 1 where all are clipped together."""
        return len(layers_of(self.run.bound.model)) if self.recipe.privacy.per_layer else 1

    @property
    def epsilon(self) -> float:
        """What the whole run cost at the recipe's delta."""
        return self.run.epsilon(delta=self.recipe.privacy.delta)


Watch = Callable[[PrivateRun, Point], None]


def train(
    recipe: Recipe,
    data: DataSet,
    *,
    ledger_path: Path | None,
    on_step: Watch,
    checkpoint: Path | None = None,
    points: int = 20,
) -> Outcome:
    """Train the recipe's model on ``data`` within the recipe's budget.

    Ctrl-C ends the run after the step at hand; the outcome then holds the model so far and is marked as interrupted.

    Args:
        recipe: the settings.
        data: what :func:`noisette.data.load` gave for the recipe's data section.
        ledger_path: file the ledger is written to; in memory if ``None``.
        on_step: called after each step with the run and the latest point (epsilon never under the true one). Where it
            raises ``SystemExit``, the run is saved before that goes on.
        checkpoint: folder where the run is saved, before its first step and at every point, for :func:`resume`; it is
            not saved if ``None``.
        points: how many places in the run epsilon and test accuracy are taken at, evenly spaced.

    Guarantee: (epsilon, delta) of the recipe for adding or removing one training record, of everything in the outcome.

    Raises:
        ValueError: a model or a number that does not fit.
        PrivacyRefusal: the model mixes examples.
    """
    start = time.perf_counter()
    with Ledger(ledger_path, dataset=data.name) as ledger:
        learner = Learner(recipe, data, lambda: principal_components_of(recipe, data, ledger))
        sampling_rate, steps = _length(recipe, data.declared_size, learner.noise_multiplier, ledger)
        run = privatize(
            learner.bound,
            learner.optimizer,
            learner.examples,
            expected_batch_size=recipe.training.batch_size,
            sampling_rate=sampling_rate,
            steps=steps,
            epsilon=recipe.privacy.budget,
            noise_multiplier=learner.noise_multiplier,
            delta=recipe.privacy.delta,
            accountant=ACCOUNTANTS[recipe.privacy.accountant],
            allow_large_delta=recipe.privacy.allow_large_delta,
            ledger=ledger,
        )
        with run:
            outcome = Outcome(recipe, data, learner.published, run)
            return _Training(learner, outcome, checkpoint, start, points).whole(on_step)


def resume(recipe: Recipe, data: DataSet, *, on_step: Watch, checkpoint: Path) -> Outcome:
    """Go on with a run that :func:`train` saved, with what is left of its steps, and save it there again.

    Args:
        recipe: that of the run.
        data: that of the run.
        on_step: as for :func:`train`.
        checkpoint: the folder where the run was saved.

    Guarantee: that of :func:`train`, of all that every process of the run released together.

    Raises:
        FileNotFoundError: nothing was saved there, or the ledger is gone.
        ValueError: a file was cut or altered, or recipe or data are not those of the run.
        PrivacyRefusal: the ledger is not that of the run, or is in use.
    """
    start = time.perf_counter()
    kept = SavedRun.read(checkpoint).extras
    learner = Learner(recipe, data, lambda: kept["principal components"])
    accountant = ACCOUNTANTS[recipe.privacy.accountant]
    run = PrivateRun.resume(checkpoint, learner.bound, learner.optimizer, learner.examples, accountant=accountant)
    with run:
        if learner.averaged:
            learner.averaged.load_state_dict(kept["averaged"])
        outcome = Outcome(
            recipe,
            data,
            learner.published,
            run,
            points=[Point(**point) for point in kept["points"]],
            resumed=kept["resumed"] + 1,
        )
        training = _Training(learner, outcome, checkpoint, start - kept["seconds"], kept["places"])
        return training.whole(on_step)


class _Training:
    """The steps of a run, from where it stands to its end.

    Args:
        learner: what is trained.
        outcome: what is known of the run so far.
        checkpoint: folder where the run is saved, if it is.
        start: when the run began, on the clock of ``time.perf_counter``.
        places: how many places in the run a point is taken at.
    """

    def __init__(self, learner: Learner, outcome: Outcome, checkpoint: Path | None, start: float, places: int) -> None:
        self._learner, self._outcome, self._checkpoint, self._start = learner, outcome, checkpoint, start
        self._places = places
        self._taken_before = outcome.run.steps_taken
        self._costs = _costs(outcome.run, outcome.recipe.privacy.budget, outcome.recipe.privacy.delta, places)

    def whole(self, on_step: Watch) -> Outcome:
        """What became of the run at its end, or when Ctrl-C was pressed."""
        outcome = self._outcome
        try:
            self._save()
            self._train(on_step)
        except KeyboardInterrupt:
            if outcome.run.steps_taken == self._taken_before:
                raise  # nothing new to keep
            outcome.interrupted = True
        except SystemExit:
            self._save()
            raise
        if not outcome.points or outcome.points[-1].step < outcome.run.steps_spent:
            self._add_point(outcome.epsilon)
        outcome.seconds = time.perf_counter() - self._start
        outcome.model.eval()
        return outcome

    def _train(self, on_step: Watch) -> None:
        run, points, settings = self._outcome.run, self._outcome.points, self._outcome.recipe.training
        model, optimizer, averaged = run.bound.model, run.optimizer, self._learner.averaged
        _set_learning_rate(run, settings)
        for batch in run.batches():
            for inputs, targets in batch.pieces(settings.piece_size):
                run.backward(F.cross_entropy(model(inputs), targets, reduction="none"))
            optimizer.step()
            optimizer.zero_grad()
            _set_learning_rate(run, settings)
            if averaged:
                averaged.update_parameters(model)
            if run.steps_spent in self._costs:
                self._add_point(self._costs[run.steps_spent])
                self._save()
            following = next(step for step in self._costs if step >= run.steps_spent)
            latest = points[-1].test_accuracy if points else None
            on_step(run, Point(run.steps_spent, self._costs[following], latest))

    def _add_point(self, epsilon: float) -> None:
        accuracy = evaluate(self._learner.learned, *self._learner.test) if self._learner.test else None
        self._outcome.points.append(Point(self._outcome.run.steps_spent, epsilon, accuracy))

    def _save(self) -> None:
        if self._checkpoint is None:
            return
        outcome, learner = self._outcome, self._learner
        extras: dict[str, Any] = {
            "averaged": learner.averaged.state_dict() if learner.averaged else None,
            "points": [asdict(point) for point in outcome.points],
            "places": self._places,
            "seconds": time.perf_counter() - self._start,
            "resumed": outcome.resumed,
        }
        if learner.components is not None:
            extras["principal components"] = learner.components
        outcome.run.save(self._checkpoint, extras)


def _length(recipe: Recipe, size: int, noise_multiplier: float | None, ledger: Ledger) -> tuple[float, int]:
    """Sampling rate and steps: those of the recipe's epochs, or fewer where the noise is given and the budget ends."""
    privacy, training = recipe.privacy, recipe.training
    sampling_rate, steps = schedule(training.batch_size, None, None, size, training.epochs)
    if noise_multiplier is None:
        return sampling_rate, steps
    affordable = steps_for(
        epsilon=privacy.budget,
        delta=delta_to_calibrate(privacy.delta, ledger),
        sampling_rate=sampling_rate,
        noise_multiplier=noise_multiplier,
        accountant=ACCOUNTANTS[privacy.accountant],
        besides=ledger.events,
    )
    if affordable == 0:
        raise ValueError(
            f"epsilon={privacy.budget:g} at delta={privacy.delta:g} does not pay for one step of rate "
            f"{sampling_rate:.4g} with noise_multiplier={noise_multiplier:.4g}"
            + (f" beside {len(ledger.events)} other releases" if ledger.events else "")
            + "; give more of either"
        )
    return sampling_rate, min(steps, affordable)


def _set_learning_rate(run: PrivateRun, settings: TrainingSection) -> None:
    """For the next step: a line to another learning rate, half a cosine to zero, or a constant.

    It follows the steps that are paid for, so a run that lost some ends where it was meant to.
    """
    spent, rate = run.steps_spent, settings.lr
    if settings.lr_end is not None:
        moved = min(1.0, spent / round(settings.lr_epochs / run.event.sampling_rate))
        rate += (settings.lr_end - settings.lr) * moved
    elif settings.cosine:
        rate *= (1 + math.cos(math.pi * spent / run.steps)) / 2
    for group in run.optimizer.param_groups:
        group["lr"] = rate


def _costs(run: PrivateRun, budget: float, delta: float, points: int) -> dict[int, float]:
    """Epsilon at evenly spaced steps of the run, the last one included; the whole run costs no more than its budget."""
    steps = sorted({max(1, round(run.steps * k / points)) for k in range(1, points + 1)})
    epsilons = epsilon_curve(
        run.event,
        checkpoints=steps,
        delta=run.delta_for_noise(delta),
        accountant=None if isinstance(run.accountant, PldAccountant) else run.accountant,
        besides=run.terms.beside(run.ledger.events),
    )
    return {step: min(epsilon, budget) for step, epsilon in zip(steps, epsilons, strict=True)}


@torch.no_grad()
def evaluate(model: nn.Module, inputs: Tensor, targets: Tensor) -> float:
    """Share of examples whose highest score is their class."""
    was_training = model.training
    model.eval()
    pairs = zip(inputs.split(_EVALUATED_AT_ONCE), targets.split(_EVALUATED_AT_ONCE), strict=True)
    right = sum(int((model(x).argmax(1) == y).sum()) for x, y in pairs)
    model.train(was_training)
    return right / len(targets)
