"""Training by a recipe: the length and the cost of its run, and the loop, which a run without privacy shares."""

import math
import os
import secrets
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack
from dataclasses import asdict, dataclass, field, replace
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from noisette.accounting import Ledger, steps_for
from noisette.accounting.calibrate import schedule
from noisette.accounting.filters import accountant_beside
from noisette.core.release import GradientBound
from noisette.data import DataSet
from noisette.data.dataset import Target
from noisette.nn.batch_norm import in_evaluation
from noisette.nn.features import Loss, Whitening
from noisette.ranks import AnyRanks, ranks_of
from noisette.ranks.launch import refuse_several_processes
from noisette.run.checkpoint import SavedRun, as_kept, check_declared_again
from noisette.run.private import PrivateRun, ledger_on_ranks, privatize
from noisette.training.build import TrainingSetup, outputs, principal_components_of
from noisette.training.defaults import NETWORK_REACH, TABLE, TABLE_NORM, learning_rate_for
from noisette.training.recipe import ACCOUNTANTS, Recipe, TrainingSection, check_plain
from noisette.training.report.facts import ClassFigures, NumberFigures, Point, epsilon_after

_POINTS = 20
# Of Adam without privacy: the most and the least rate, and how far it moves a weight at most, half with a cosine.
_FASTEST, _SLOWEST, _WAY = 0.03, 0.001, 1.5
_SET_BY = ("OMP_NUM_THREADS", "MKL_NUM_THREADS", "OPENBLAS_NUM_THREADS")
_AT_IMPORT = torch.get_num_threads()
_ROUNDS = 5
_SHORT = 0.04  # seconds of a step that is long enough to be measured
_GAIN = 0.9  # all threads are taken where their time is at most this share of one thread's


@dataclass
class Outcome:
    """A finished run, which is private unless it is said."""

    recipe: Recipe
    data: DataSet
    model: nn.Module
    run: Any  # a PrivateRun, or a PlainRun without privacy
    points: list[Point] = field(default_factory=list)
    seconds: float = 0.0  # for calibration, training and evaluation
    resumed: int = 0  # how many times
    public_weights: str = ""  # the SHA-256 of the file of the first weights, as it was read; "" if they were random
    test: ClassFigures | NumberFigures | None = None  # of the model on its test examples

    @property
    def epsilon(self) -> float:
        """The privacy cost of the whole run at the recipe's delta, infinite without privacy."""
        return self.run.epsilon(delta=self.recipe.privacy.delta)


Watch = Callable[[Any, Point], None]  # of the run, which is a PrivateRun unless it has no privacy


def start_run(
    recipe: Recipe, setup: TrainingSetup, size: int, ledger: Ledger, ranks: AnyRanks, declaration: str
) -> PrivateRun:
    """The private run of a recipe on data of this declared size, before its first step.

    It has fewer steps than the epochs if noise is given and the budget allows fewer, of Poisson batches of records.
    """
    privacy, training, noise = recipe.privacy, recipe.training, setup.noise_multiplier
    accountant = ACCOUNTANTS[privacy.accountant]
    sampling_rate, steps = schedule(training.batch_size, None, None, size, training.epochs)
    if noise is not None and recipe.data.users is None and training.batches == "poisson":
        budget = {"epsilon": privacy.epsilon, "delta": privacy.delta}
        affordable = steps_for(
            **budget,
            sampling_rate=sampling_rate,
            noise_multiplier=noise,
            accountant=accountant_beside(ledger.declarations, accountant, declaration=declaration, **budget),
            prior_events=ledger.events,
        )
        steps = min(steps, max(1, affordable))  # one that the budget does not allow is refused
    return privatize(
        setup.bound,
        setup.optimizer,
        setup.examples,
        expected_batch_size=training.batch_size,
        public_size=size,
        steps=steps,
        epsilon=privacy.epsilon,
        noise_multiplier=noise,
        delta=privacy.delta,
        accountant=accountant,
        allow_large_delta=privacy.allow_large_delta,
        ledger=ledger,
        sampling=setup.sampling,
        users=setup.users,
        ranks=ranks,
        declaration=declaration,
    )


def with_rate(recipe: Recipe, run: PrivateRun) -> Recipe:
    """The recipe with a learning rate: its own, or the one that the rule gives, from public numbers of the run."""
    training = recipe.training
    if training.lr is not None:
        return recipe
    norm = recipe.privacy.max_grad_norm  # a table's larger one is there to clip less, not for shorter steps
    constant = learning_rate_for(
        dimensions=sum(p.numel() for group in run.optimizer.param_groups for p in group["params"] if p.requires_grad),
        noise_multiplier=run.noise_multiplier,
        expected_batch_size=training.batch_size,
        steps=run.steps,
        max_grad_norm=min(norm, TABLE_NORM) if recipe.model.name == TABLE else norm,
        reach=NETWORK_REACH,
        momentum=training.momentum,
    )
    on_average = 0.5 if training.cosine and training.lr_end is None else 1.0  # of the first rate
    return replace(recipe, training=replace(training, lr=constant / on_average))


def learning_rate(settings: TrainingSection, *, spent: int, steps: int, sampling_rate: float) -> float:
    """The learning rate of the step after ``spent`` of ``steps``, also of lost ones: a run ends at the planned rate."""
    assert settings.lr is not None, "a run resolves it before its first step"
    if settings.lr_end is not None:
        moved = min(1.0, spent / round(settings.lr_epochs / sampling_rate))
        return settings.lr + (settings.lr_end - settings.lr) * moved
    return settings.lr * ((1 + math.cos(math.pi * spent / steps)) / 2 if settings.cosine else 1)


def train(
    recipe: Recipe,
    data: DataSet,
    *,
    public: DataSet | None = None,
    ledger_path: Path | None = None,
    on_step: Watch,
    checkpoint: Path | None = None,
    points: int = _POINTS,
    ranks: AnyRanks | None = None,
    ledger: Ledger | None = None,
    noise_multiplier: float | None = None,
) -> Outcome:
    """Train the recipe's model on ``data`` within its privacy budget.

    Args:
        public: the data set that the recipe's public examples come from, if it has any.
        ledger_path: of the ledger's file; in memory if ``None``. An open one can be given as ``ledger`` instead.
        on_step: called after each step with the run and a point, whose epsilon is at least the one spent so far. If it
            raises ``KeyboardInterrupt`` or ``SystemExit``, the run is saved first.
        checkpoint: folder where the run is saved, before its first step and at every point, for :func:`resume`.
        points: how many times epsilon and test accuracy are measured, at evenly spaced steps.
        ranks: as for :func:`noisette.privatize`. Rank 0 alone has a ledger and writes checkpoints.
        noise_multiplier: that of a whole step; by the recipe unless given.

    Guarantee: (epsilon, delta) of the recipe for adding or removing one training record, of everything in the outcome.

    Raises:
        ValueError: the model, a number or the public examples do not fit.
        PrivacyError: the model mixes examples, or public examples are private records too.
    """
    start = time.perf_counter()
    ranks = ranks_of(ranks)
    with ExitStack() as opened:
        ledger = ledger or opened.enter_context(Ledger(ledger_path if ranks.rank == 0 else None, dataset=data.name))
        declaration = secrets.token_hex(8) if recipe.projection.components else ""  # of the projection and the steps
        of_records = partial(principal_components_of, recipe, data, ledger, ranks, declaration)
        setup = TrainingSetup(recipe, data, public, of_records)
        if noise_multiplier is not None:
            setup.noise_multiplier = noise_multiplier
        shared = ledger_on_ranks(ledger if ranks.rank == 0 else None, ranks, opened)
        with start_run(recipe, setup, data.declared_size, shared, ranks, declaration) as run:
            outcome = Outcome(with_rate(recipe, run), data, setup.published, run, public_weights=setup.public_weights)
            return _Training(setup, outcome, checkpoint, start, points, ranks).finish(on_step)


def resume(
    recipe: Recipe,
    data: DataSet,
    *,
    public: DataSet | None = None,
    on_step: Watch,
    checkpoint: Path,
    ranks: AnyRanks | None = None,
) -> Outcome:
    """Continue a run that :func:`train` saved in the folder ``checkpoint``, for the steps that are left.

    Recipe, data and public examples are those of the run; the other arguments are as for :func:`train`.

    Guarantee: that of :func:`train`, for everything that all processes of the run released together.

    Raises:
        FileNotFoundError: nothing was saved there, or the ledger is missing.
        ValueError: a file was truncated or altered, or recipe, data or what is public are not those of the run.
        PrivacyError: the ledger is not that of the run, or is in use.
    """
    start, before = time.perf_counter(), SavedRun.read(checkpoint)
    saved, declared = before.extras, (before.terms, recipe.privacy)
    check_declared_again(*({"epsilon": of.epsilon, "delta": of.delta} for of in declared))
    with as_kept():
        whitening = Whitening(**saved["whitening"]) if recipe.model.whitened else None
        points, public_digest = [Point(**point) for point in saved["points"]], saved["public examples"]
        resumed, began, places = saved["resumed"] + 1, start - saved["seconds"], saved["places"]
    setup = TrainingSetup(recipe, data, public, lambda: saved["principal components"], whitening)
    if setup.public_digest != public_digest:
        given = "the public examples or first weights"
        raise ValueError(f"{given} are not those that the run began with; resume it with the same files")
    ranks = ranks_of(ranks)
    with PrivateRun.resume(
        checkpoint,
        setup.bound,
        setup.optimizer,
        setup.examples,
        accountant=ACCOUNTANTS[recipe.privacy.accountant],
        users=setup.users,
        ranks=ranks,
    ) as run:
        if setup.averaged:
            setup.averaged.load_state_dict(saved["averaged"])
        outcome = Outcome(with_rate(recipe, run), data, setup.published, run, public_weights=setup.public_weights)
        outcome.points, outcome.resumed = points, resumed
        return _Training(setup, outcome, checkpoint, began, places, ranks).finish(on_step)


@dataclass(frozen=True)
class _PlainBatch:
    """The records of one step."""

    tensors: Sequence[Tensor]
    indices: Tensor

    def microbatches(self, size: int) -> Iterator[list[Tensor]]:
        return ([tensor[part] for tensor in self.tensors] for part in self.indices.split(size) if len(part))


@dataclass
class PlainRun:
    """What the loop needs of a run, without privacy: Poisson batches and the mean of their gradients."""

    bound: GradientBound  # which is not used as one
    optimizer: torch.optim.Optimizer
    tensors: Sequence[Tensor]
    sampling_rate: float
    expected_batch_size: int
    steps: int
    steps_spent: int = 0

    def batches(self) -> Iterator[_PlainBatch]:
        for _ in range(self.steps):
            chosen = torch.rand(len(self.tensors[0])) < self.sampling_rate
            self.steps_spent += 1
            yield _PlainBatch(self.tensors, chosen.nonzero().squeeze(1).to(self.tensors[0].device))

    def accumulate(self, losses: Loss, *batch: Tensor) -> None:
        (losses(self.bound.model, *batch).sum() / self.expected_batch_size).backward()

    def epsilon(self, *, delta: float) -> float:
        return math.inf


def train_without_privacy(recipe: Recipe, data: DataSet, *, public: DataSet | None = None, on_step: Watch) -> Outcome:
    """Train the recipe's model on Poisson batches of its size, with nothing clipped and no noise: a baseline.

    A recipe without a learning rate is trained by Adam.

    Guarantee: none. The weights may tell everything about the records.

    Raises:
        ValueError: the model or the public examples do not fit, or the recipe trains otherwise than on such batches.
        PrivacyError: public examples are private records too, or there are several processes.
    """
    refuse_several_processes("a baseline")
    start, training = time.perf_counter(), recipe.training
    check_plain(recipe)
    rate, steps = schedule(training.batch_size, None, None, data.declared_size, training.epochs)
    if training.lr is None:  # the rule is for clipped gradients
        lr = min(_FASTEST, max(_SLOWEST, _WAY / steps))
        recipe = replace(recipe, training=replace(training, optimizer="adam", lr=lr, momentum=0.0))
    setup = TrainingSetup(recipe, data, public)
    run = PlainRun(setup.bound, setup.optimizer, setup.examples.tensors, rate, training.batch_size, steps)
    outcome = Outcome(recipe, data, setup.published, run, public_weights=setup.public_weights)
    return _Training(setup, outcome, None, start, _POINTS, ranks_of(None)).finish(on_step)


@dataclass
class _Training:
    """The remaining steps of a run that began at ``start``, on the clock of ``time.perf_counter``."""

    setup: TrainingSetup
    outcome: Outcome
    checkpoint: Path | None
    start: float
    places: int
    ranks: AnyRanks

    def __post_init__(self) -> None:
        """Compute epsilon at evenly spaced steps, the last one among them; it is never above the budget of the run."""
        run, privacy = self.outcome.run, self.outcome.recipe.privacy
        steps = sorted({max(1, round(run.steps * k / self.places)) for k in range(1, self.places + 1)})
        self.costs: dict[int, float] = dict.fromkeys(steps, math.inf)
        if not isinstance(run, PlainRun):
            self.costs = {step: min(epsilon_after(run, step, privacy.delta), privacy.epsilon) for step in steps}

    def finish(self, on_step: Watch) -> Outcome:
        outcome = self.outcome
        self._save()
        self._train(on_step)
        if not outcome.points or outcome.points[-1].step < outcome.run.steps_spent:
            self._add_point(outcome.epsilon)
        outcome.seconds = time.perf_counter() - self.start
        outcome.model.eval()
        outcome.test = self._figures()
        return outcome

    def _train(self, on_step: Watch) -> None:
        run, points, settings = self.outcome.run, self.outcome.points, self.outcome.recipe.training
        model, optimizer, averaged = self.setup.bound.model, self.setup.optimizer, self.setup.averaged
        views = self.outcome.recipe.augmentation.views
        at_once = max(1, settings.microbatch_size // views)
        examples = min(settings.batch_size, at_once) * views
        choose_threads(model, self.setup.loss, self.setup.inputs, self.setup.examples.tensors[1], examples)
        self._set_learning_rate()
        for batch in run.batches():
            for inputs, targets in batch.microbatches(at_once):
                run.accumulate(self.setup.losses, inputs, targets)
            optimizer.step()
            optimizer.zero_grad()
            self._set_learning_rate()
            if averaged:
                averaged.update(model, spent=run.steps_spent, steps=run.steps)
            if run.steps_spent in self.costs:
                self._add_point(self.costs[run.steps_spent])
                self._save()
            following = next(step for step in self.costs if step >= run.steps_spent)
            latest = points[-1] if points else Point(0, 0.0, None)
            self._show(on_step, replace(latest, step=run.steps_spent, epsilon=self.costs[following]))

    def _show(self, on_step: Watch, point: Point) -> None:
        """Call ``on_step``; where it asks one rank to stop, all save the run and stop."""
        asked: KeyboardInterrupt | SystemExit | None = None
        try:
            on_step(self.outcome.run, point)
        except (KeyboardInterrupt, SystemExit) as stop:
            asked = stop
        kinds = {"Ctrl-C": isinstance(asked, KeyboardInterrupt), "SIGTERM": isinstance(asked, SystemExit)}
        on_any = self.ranks.largest("the end of a step", kinds)
        if any(on_any.values()):
            self._save()
            raise asked or (SystemExit() if on_any["SIGTERM"] else KeyboardInterrupt())

    def _set_learning_rate(self) -> None:
        run, settings = self.outcome.run, self.outcome.recipe.training
        rate = learning_rate(settings, spent=run.steps_spent, steps=run.steps, sampling_rate=run.sampling_rate)
        for group in self.setup.optimizer.param_groups:
            group["lr"] = rate

    def _add_point(self, epsilon: float) -> None:
        figures = self._figures()
        measured = (getattr(figures, name, None) for name in ("accuracy", "rmse", "log_loss"))
        self.outcome.points.append(Point(self.outcome.run.steps_spent, epsilon, *measured))

    def _figures(self) -> ClassFigures | NumberFigures | None:
        if self.setup.test is None:
            return None
        (inputs, targets), target = self.setup.test, self.outcome.data.target
        scores, right = outputs(self.setup.tested, inputs), targets.cpu().numpy()
        return class_figures(scores, right) if target is None else number_figures(scores, right, target)

    def _save(self) -> None:
        outcome, setup = self.outcome, self.setup
        if self.checkpoint is None or isinstance(outcome.run, PlainRun):
            return
        extras: dict[str, Any] = {
            "averaged": setup.averaged.state_dict() if setup.averaged else None,
            "points": [asdict(point) for point in outcome.points],
            "places": self.places,
            "seconds": time.perf_counter() - self.start,
            "resumed": outcome.resumed,
            "public examples": setup.public_digest,
        }
        if setup.components is not None:
            extras["principal components"] = setup.components
        if setup.whitening is not None:
            extras["whitening"] = setup.whitening.state_dict()
        outcome.run.save(self.checkpoint, extras)


def choose_threads(
    model: nn.Module, loss: Callable[[Tensor, Tensor], Tensor], inputs: Tensor, targets: Tensor, examples: int
) -> int:
    """Let torch compute with one thread or with all, and return the number: small operations wait for their threads.

    Steps of at most so many examples, all zeros, are measured, unless the user has set a number or there is a GPU.
    """
    everything = torch.get_num_threads()
    chosen_before = everything != _AT_IMPORT or any(os.environ.get(name) for name in _SET_BY)
    if everything == 1 or chosen_before or inputs.device.type != "cpu":
        return everything
    weights = [p for p in model.parameters() if p.requires_grad]

    def seconds(threads: int, count: int) -> float:
        x, y = inputs.new_zeros((count, *inputs.shape[1:])), targets.new_zeros((count, *targets.shape[1:]))
        torch.set_num_threads(threads)
        start = time.perf_counter()
        torch.autograd.grad(loss(model(x), y).sum(), weights, allow_unused=True)
        return time.perf_counter() - start

    with torch.random.fork_rng(devices=[]), in_evaluation(model), torch.enable_grad():
        count = 1
        seconds(1, count)  # the first step makes the plans of the operations
        while count < examples and seconds(1, count) < _SHORT:
            count = min(2 * count, examples)
        chosen = quickest(everything, lambda threads: seconds(threads, count))
    torch.set_num_threads(chosen)
    return chosen


def quickest(everything: int, seconds: Callable[[int], float]) -> int:
    """All threads if their shortest step is clearly shorter than that of one, else one."""
    alone = min(seconds(1) for _ in range(_ROUNDS))
    seconds(everything)  # the first step with all threads starts them
    return everything if any(seconds(everything) <= _GAIN * alone for _ in range(_ROUNDS)) else 1


def class_figures(scores: np.ndarray, targets: np.ndarray) -> ClassFigures:
    """The figures for scores (n, classes) and classes (n,)."""
    from sklearn.metrics import average_precision_score, confusion_matrix, precision_recall_curve, roc_auc_score

    classes = scores.shape[1]
    table = confusion_matrix(targets, scores.argmax(1), labels=range(classes))
    sizes, right = table.sum(1), table.diagonal()
    present = np.flatnonzero(sizes)
    shares = sizes[present] / sizes.sum()
    found = torch.as_tensor(scores, dtype=torch.float64).log_softmax(1).numpy()
    auc, log_loss, means, average_precision, curve = None, None, (), None, ()
    if np.isfinite(scores).all():
        log_loss, means = -float(found[np.arange(len(targets)), targets].mean()), tuple(np.exp(found).mean(0).tolist())
        if len(present) > 1:
            chosen = present if classes > 2 else [1]
            auc = float(np.mean([roc_auc_score(targets == k, found[:, k]) for k in chosen]))
            if classes == 2:
                rarer = int(sizes[1] <= sizes[0])
                average_precision = float(average_precision_score(targets == rarer, found[:, rarer]))
                precision, recall, _ = precision_recall_curve(targets == rarer, found[:, rarer])
                at = np.unique(np.searchsorted(recall[::-1], np.linspace(0.02, 1, 50)))
                curve = tuple(zip(recall[::-1][at].tolist(), precision[::-1][at].tolist(), strict=True))
    return ClassFigures(
        accuracy=float(right.sum() / sizes.sum()),
        base_rate=float(shares.max()),
        macro_accuracy=float(np.mean(right[present] / sizes[present])),
        auc=auc,
        confusion=tuple(tuple(row) for row in table.tolist()),
        log_loss=log_loss,
        base_log_loss=abs(float(shares @ np.log(shares))),  # no -0.0
        mean_probabilities=means,
        average_precision=average_precision,
        recall_precision=curve,
    )


def number_figures(predictions: np.ndarray, targets: np.ndarray, target: Target) -> NumberFigures:
    """The figures for predictions (n, 1) and targets (n,), both on the scale of the model from -1 to 1."""
    right = target.unscaled(targets)
    errors = target.unscaled(predictions[:, 0]) - right
    return NumberFigures(
        rmse=float(np.sqrt(np.mean(errors**2))),
        mae=float(np.abs(errors).mean()),
        base_rmse=float(right.std()),
        base_mae=float(np.abs(right - np.median(right)).mean()),
        unit=target.unit,
    )
