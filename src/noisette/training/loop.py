"""Training by a recipe: the length and the cost of its run, the loop, and a small run that stands for a large one."""

from __future__ import annotations

import gc
import secrets
import time
from contextlib import ExitStack
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

from noisette import errors as checks
from noisette.accounting import Ledger, PldAccountant, epsilon_curve, epsilon_for, noise_multiplier_for, steps_for
from noisette.accounting.calibrate import SEE_PLAN, schedule
from noisette.accounting.filters import RenyiOdometer, accountant_beside
from noisette.clipping.registry import CLIPPING_RULES
from noisette.data import DataSet
from noisette.nn.features import Whitening
from noisette.ranks import AnyRanks, ranks_of
from noisette.run.checkpoint import SavedRun
from noisette.run.private import PrivateRun, ledger_on_ranks
from noisette.run.privatize import privatize
from noisette.training.build import TrainingSetup, principal_components_of
from noisette.training.defaults import NETWORK_REACH, learning_rate_for
from noisette.training.evaluation import Outcome, Watch, certified_curve, class_figures, number_figures, outputs
from noisette.training.optimizers import learning_rate
from noisette.training.recipe import ACCOUNTANTS, Recipe, TrainingSection
from noisette.training.report.facts import ClassFigures, NumberFigures, Point
from noisette.training.threads import choose_threads

_OF_COSINE = 0.5  # the mean of half a cosine from one to zero
_ROOM = 1.001  # of the budget of a small run above its price, which the run computes again


def start_run(
    recipe: Recipe, setup: TrainingSetup, size: int, ledger: Ledger, ranks: AnyRanks, declaration: str
) -> PrivateRun:
    """The private run of a recipe on data of this declared size, before its first step.

    It has the steps of the recipe's epochs; fewer if the noise is given and the budget allows fewer, which is computed
    with Poisson batches of records alone: with others a run that exceeds the budget is refused. What the ledger holds
    of the same declaration was fixed together with the run.
    """
    privacy, training, noise = recipe.privacy, recipe.training, setup.noise_multiplier
    accountant = ACCOUNTANTS[privacy.accountant]
    sampling_rate, steps = schedule(training.batch_size, None, None, size, training.epochs)
    if noise is not None and recipe.data.users is None and training.batches == "poisson":
        affordable = steps_for(
            epsilon=privacy.epsilon,
            delta=privacy.delta,
            sampling_rate=sampling_rate,
            noise_multiplier=noise,
            accountant=accountant_beside(
                ledger.declarations, accountant, declaration=declaration, epsilon=privacy.epsilon, delta=privacy.delta
            ),
            prior_events=ledger.events,
        )
        if affordable == 0:
            raise ValueError(
                f"epsilon={privacy.epsilon:g} at delta={privacy.delta:g} does not allow one step of rate "
                f"{sampling_rate:.4g} with noise_multiplier={noise:.4g}"
                + (f" beside {len(ledger.events)} other releases" if ledger.events else "")
                + f"; raise epsilon or noise_multiplier: {SEE_PLAN}"
            )
        steps = min(steps, affordable)
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
    constant = learning_rate_for(
        dimensions=sum(p.numel() for group in run.optimizer.param_groups for p in group["params"] if p.requires_grad),
        noise_multiplier=run.noise_multiplier,
        expected_batch_size=training.batch_size,
        steps=run.steps,
        max_grad_norm=recipe.privacy.max_grad_norm,
        reach=NETWORK_REACH,
        momentum=training.momentum,
    )
    rate = constant / _OF_COSINE if training.cosine and training.lr_end is None else constant
    return replace(recipe, training=replace(training, lr=rate))


def costs(run: PrivateRun, recipe: Recipe, steps: list[int]) -> dict[int, float]:
    """Epsilon spent after each of these steps; never more than the budget, which holds for the whole run."""
    accountant = None if isinstance(run.accountant, PldAccountant) else run.accountant
    epsilons = epsilon_curve(
        run.event,
        checkpoints=steps,
        delta=recipe.privacy.delta,
        accountant=RenyiOdometer() if run.is_beside_others else accountant,
        prior_events=run.terms.beside(run.ledger),
    )
    return {step: min(epsilon, recipe.privacy.epsilon) for step, epsilon in zip(steps, epsilons, strict=True)}


def train(
    recipe: Recipe,
    data: DataSet,
    *,
    public: DataSet | None = None,
    ledger_path: Path | None,
    on_step: Watch,
    checkpoint: Path | None = None,
    points: int = 20,
    ranks: AnyRanks | None = None,
    ledger: Ledger | None = None,
    noise_multiplier: float | None = None,
) -> Outcome:
    """Train the recipe's model on ``data`` within its privacy budget.

    Ctrl-C ends the run after the current step; the outcome then holds the model so far and is marked as interrupted.

    Args:
        recipe: the settings.
        data: the records that it names; ``public``: the data set that its public examples come from, if it has any.
        ledger_path: of the ledger's file; in memory if ``None``. An open ledger, such as that of one run of a search,
            can be given as ``ledger`` instead.
        on_step: called after each step with the run and a point, whose epsilon is at least the one spent so far. If it
            raises ``SystemExit``, the run is saved first.
        checkpoint: folder where the run is saved, before its first step and at every point, for :func:`resume`; it is
            not saved if ``None``.
        points: how many times epsilon and test accuracy are measured, at evenly spaced steps.
        ranks: as for :func:`noisette.privatize`. Rank 0 alone has a ledger and writes checkpoints.
        noise_multiplier: that of a whole step; by the recipe unless given.

    Guarantee: (epsilon, delta) of the recipe for adding or removing one training record, of everything in the outcome.

    Raises:
        ValueError: the model, a number or the public examples do not fit.
        PrivacyError: the model mixes examples, or public examples are private records too.
    """
    start = time.perf_counter()
    gc.collect()  # runs are parts of cycles: the records of earlier ones would stay in memory for many runs
    ranks = ranks_of(ranks)
    with ExitStack() as opened:
        ledger = ledger or opened.enter_context(Ledger(ledger_path if ranks.rank == 0 else None, dataset=data.name))
        declaration = secrets.token_hex(8) if recipe.projection.components else ""  # of the projection and the steps
        setup = TrainingSetup(
            recipe, data, public, lambda: principal_components_of(recipe, data, ledger, ranks, declaration)
        )
        if noise_multiplier is not None:
            setup.noise_multiplier = noise_multiplier
        shared, _ = ledger_on_ranks(ledger if ranks.rank == 0 else None, ranks)
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
    start = time.perf_counter()
    saved = SavedRun.read(checkpoint).extras
    whitening = Whitening(**saved["whitening"]) if recipe.model.whitened else None
    setup = TrainingSetup(recipe, data, public, lambda: saved["principal components"], whitening)
    if setup.public_digest != saved["public examples"]:
        raise ValueError(
            "the public examples, first weights or word vectors are not those that the run began with; resume it with "
            "the same files"
        )
    ranks = ranks_of(ranks)
    run = PrivateRun.resume(
        checkpoint,
        setup.bound,
        setup.optimizer,
        setup.examples,
        accountant=ACCOUNTANTS[recipe.privacy.accountant],
        users=setup.users,
        ranks=ranks,
    )
    with run:
        if setup.averaged:
            setup.averaged.restore(saved["averaged"])
        outcome = Outcome(
            with_rate(recipe, run),
            data,
            setup.published,
            run,
            points=[Point(**point) for point in saved["points"]],
            resumed=saved["resumed"] + 1,
            public_weights=setup.public_weights,
        )
        training = _Training(setup, outcome, checkpoint, start - saved["seconds"], saved["places"], ranks)
        return training.finish(on_step)


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
        self.taken_before = self.outcome.run.steps_taken
        self.costs = costs(self.outcome.run, self.outcome.recipe, _evenly_spaced(self.outcome.run.steps, self.places))

    def finish(self, on_step: Watch) -> Outcome:
        """The outcome at the end of the run, or when Ctrl-C was pressed."""
        outcome = self.outcome
        try:
            self._save()
            self._train(on_step)
        except KeyboardInterrupt:
            if outcome.run.steps_taken == self.taken_before:
                raise  # no step was taken
            outcome.interrupted = True
        except SystemExit:
            self._save()
            raise
        if not outcome.points or outcome.points[-1].step < outcome.run.steps_spent:
            self._add_point(outcome.epsilon)
        outcome.seconds = time.perf_counter() - self.start
        outcome.model.eval()
        outcome.test = self._figures()
        if outcome.recipe.lipschitz.used and outcome.data.test is not None:
            outcome.certified = certified_curve(outcome.model, outcome.data.test)
        return outcome

    def _train(self, on_step: Watch) -> None:
        run, points, settings = self.outcome.run, self.outcome.points, self.outcome.recipe.training
        model, optimizer, averaged = run.bound.model, run.optimizer, self.setup.averaged
        views = self.outcome.recipe.augmentation.views
        at_once = max(1, settings.microbatch_size // views)
        examples = min(settings.batch_size, at_once) * views
        choose_threads(model, self.setup.loss, self.setup.inputs, self.setup.examples.tensors[1], examples)
        _set_learning_rate(run, settings)
        for batch in run.batches():
            for inputs, targets in batch.microbatches(at_once):
                run.accumulate(self.setup.losses, inputs, targets)
            optimizer.step()
            optimizer.zero_grad()
            _set_learning_rate(run, settings)
            if averaged:
                averaged.update(model, spent=run.steps_spent, steps=run.steps)
            if run.steps_spent in self.costs:
                self._add_point(self.costs[run.steps_spent])
                self._save()
            following = next(step for step in self.costs if step >= run.steps_spent)
            latest = points[-1] if points else Point(0, 0.0, None)
            self._show(on_step, replace(latest, step=run.steps_spent, epsilon=self.costs[following]))

    def _show(self, on_step: Watch, point: Point) -> None:
        """Call ``on_step``; where it asks one rank to stop, all stop after this step."""
        asked: KeyboardInterrupt | SystemExit | None = None
        try:
            on_step(self.outcome.run, point)
        except (KeyboardInterrupt, SystemExit) as stop:
            asked = stop
        kinds = {"Ctrl-C": isinstance(asked, KeyboardInterrupt), "SIGTERM": isinstance(asked, SystemExit)}
        on_any = self.ranks.largest("the end of a step", kinds)
        if on_any["SIGTERM"]:
            raise asked if isinstance(asked, SystemExit) else SystemExit()
        if on_any["Ctrl-C"]:
            raise KeyboardInterrupt

    def _add_point(self, epsilon: float) -> None:
        figures = self._figures()
        accuracy = figures.accuracy if isinstance(figures, ClassFigures) else None
        rmse = figures.rmse if isinstance(figures, NumberFigures) else None
        self.outcome.points.append(Point(self.outcome.run.steps_spent, epsilon, accuracy, rmse))

    def _figures(self) -> ClassFigures | NumberFigures | None:
        setup = self.setup
        if setup.test is None:
            return None
        inputs, targets = setup.test
        scores, right = outputs(setup.tested, inputs, at_once=setup.at_once), targets.cpu().numpy()
        return class_figures(scores, right) if setup.target is None else number_figures(scores, right, setup.target)

    def _save(self) -> None:
        if self.checkpoint is None:
            return
        outcome, setup = self.outcome, self.setup
        extras: dict[str, Any] = {
            "averaged": setup.averaged.state() if setup.averaged else None,
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


def _evenly_spaced(steps: int, places: int) -> list[int]:
    """This many of the steps, or all if there are fewer; the last step is one of them."""
    return sorted({max(1, round(steps * k / places)) for k in range(1, places + 1)})


def _set_learning_rate(run: PrivateRun, settings: TrainingSection) -> None:
    """Set the learning rate of the next step."""
    rate = learning_rate(settings, spent=run.steps_spent, steps=run.steps, sampling_rate=run.sampling_rate)
    for group in run.optimizer.param_groups:
        group["lr"] = rate


def scaled_down(recipe: Recipe, factor: int, size: int) -> Recipe:
    """The recipe of a run with 1 / ``factor`` of the computation that trains about as the given one does.

    Batch, passes and noise multiplier are divided by the factor, so that the number of steps, and the noise on the mean
    gradient of a batch, stay the same; only the sampling error of a batch grows. Use it to choose settings such as
    learning rate, clipping norm or model; then train by the recipe itself. The factor is a divisor of the batch size,
    and ``size`` the declared number of training records.

    The budget ``epsilon`` of the small recipe is what its run itself costs, which is **larger** than that of the large
    one, often by far: each record has less noise to hide in. A run by it charges and reports that epsilon.

    Guarantee: none is inherited. What is chosen by looking at small runs on private records costs the epsilon of each;
    choose on public records of the same kind where that is too much.
    Source: Sander, Stock & Sablayrolles 2023, "TAN without a burn: scaling laws of DP-SGD", section 4.

    Raises:
        ValueError: the factor does not divide the batch size, or the recipe has other batches than Poisson batches of
            records, a projection, clipping by layer, or is that of a small run already.
    """
    checks.count(factor=factor, size=size)
    training, privacy, problems = recipe.training, recipe.privacy, []
    if factor < 2 or training.batch_size % factor:
        problems.append(f"the factor must be 2 or more and divide batch_size={training.batch_size}, got {factor}")
    if training.simulates > 1:
        problems.append(f"the recipe simulates another one already, {training.simulates} times as large")
    if training.batches != "poisson" or recipe.data.users is not None:
        problems.append("only Poisson batches of records are simulated")
    if recipe.projection.components:
        problems.append("private principal components are not made smaller; leave the projection out")
    rule = CLIPPING_RULES[privacy.clipping].resolve()(1.0)
    if not recipe.lipschitz.used and len(list(rule.groups(["a.weight", "b.weight"]))) > 1:
        problems.append(f"clipping = {privacy.clipping!r} has several norms; use one")
    if problems:
        raise ValueError("this recipe cannot be simulated at a smaller scale:\n  " + "\n  ".join(problems))
    accountant = ACCOUNTANTS[privacy.accountant]
    sampling_rate, steps = schedule(training.batch_size, None, None, size, training.epochs)
    noise = privacy.noise_multiplier or noise_multiplier_for(
        epsilon=privacy.epsilon, delta=privacy.delta, sampling_rate=sampling_rate, steps=steps, accountant=accountant
    )
    price = epsilon_for(
        delta=privacy.delta,
        sampling_rate=sampling_rate / factor,
        noise_multiplier=noise / factor,
        steps=steps,
        accountant=accountant,
    )
    return replace(
        recipe,
        privacy=replace(privacy, epsilon=price * _ROOM, noise_multiplier=noise / factor),
        training=replace(
            training,
            batch_size=training.batch_size // factor,
            epochs=training.epochs / factor,
            lr_epochs=training.lr_epochs / factor,
            simulates=factor,
        ),
    )
