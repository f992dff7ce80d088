"""The audit of whole runs: canaries are scored over all steps, so that Poisson sampling is part of what is tested.

Half of the canaries are records of the run, the other half are not. Each has an axis of its own, so one run gives as
many scores as there are canaries.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, Self

import numpy as np
import torch
from torch import nn

from noisette import errors as checks
from noisette.accounting import Accountant, Ledger, PoissonGaussian, RepeatAndSelect
from noisette.accounting.ledger import LEDGER_FILE
from noisette.audit.certificate import Verdict, certified_epsilon
from noisette.audit.step_audit import (
    Axes,
    BehindPublicNorm,
    BoundFactory,
    CanaryModel,
    LipschitzAxes,
    NeighbourAudit,
    Records,
    Rows,
    StepAudit,
    audit_bound,
    audit_neighbours,
    canary_scores,
    released_steps,
)
from noisette.clipping.per_example import PerExampleClip
from noisette.clipping.registry import CLIPPING_RULES
from noisette.clipping.rules import FlatClipping
from noisette.core.release import GradientBound
from noisette.data import DataSet, Split, names
from noisette.data.dataset import Target
from noisette.lipschitz.bound import LipschitzBound
from noisette.nn.lipschitz import TauCrossEntropy
from noisette.ranks import Alone
from noisette.training.build import TrainingSetup, principal_components_of, sha256_of_first_weights
from noisette.training.loop import start_run
from noisette.training.recipe import Recipe

_CANARIES = 20_000  # of a whole run
DELTAS = (1e-2, 1e-5)  # error rates prove most at a large delta

OnStep = Callable[[int, int], None]  # takes the number of steps done, and of all


def likelihood_ratio(scores: np.ndarray, shift: float, sampling_rate: float) -> np.ndarray:
    """The log-likelihood ratio of in and out for one step, (canaries,).

    No score is more powerful if no other record is on a canary's axis.
    """
    return np.log1p(sampling_rate * np.expm1(scores * shift - shift**2 / 2))


@dataclass(frozen=True)
class Point:
    """The guaranteed upper bound on a run's epsilon at a delta, and the certified lower bound."""

    delta: float
    guaranteed: float
    certified: float


@dataclass(frozen=True)
class RunAudit:
    """What the scores of canaries ``inside`` and ``outside`` of the data set of whole runs prove."""

    inside: np.ndarray
    outside: np.ndarray
    points: tuple[Point, ...]
    false_alarm: float

    @property
    def findings(self) -> tuple[str, ...]:
        """What is wrong, in words; empty if the guarantee is not refuted."""
        return tuple(
            f"at delta={p.delta:g} the run costs epsilon={p.certified:.3g} or more; at most {p.guaranteed:.3g} is "
            "guaranteed"
            for p in self.points
            if p.certified > p.guaranteed
        )

    @property
    def verdict(self) -> Verdict:
        return Verdict.VIOLATION if self.findings else Verdict.CONSISTENT

    def facts(self) -> dict[str, Any]:
        return {
            "verdict": self.verdict.value,
            "scores_in": self.inside.size,
            "scores_out": self.outside.size,
            "false_alarm": self.false_alarm,
            "points": [asdict(p) for p in self.points],
            "findings": list(self.findings),
        }


def audit_run(
    bound_of: BoundFactory,
    *,
    noise_multiplier: float,
    sampling_rate: float,
    steps: int,
    canary_model: Callable[[], CanaryModel] = lambda: Rows(_CANARIES),
    score: Callable[[np.ndarray, float, float], np.ndarray] = likelihood_ratio,
    join: Callable[[np.ndarray, np.ndarray], np.ndarray] = np.add,
    runs: int = 1,
    deltas: Sequence[float] = DELTAS,
    false_alarm: float = 1e-6,
    accountant: Accountant | None = None,
    on_step: OnStep = lambda done, of: None,
) -> RunAudit:
    """Score canaries over whole runs of :func:`noisette.privatize`, and test the epsilon that is guaranteed.

    Args:
        bound_of: makes the bound of a model.
        noise_multiplier, sampling_rate, steps: of each run.
        canary_model: makes model, records and losses.
        score: of the canaries in one step; takes their components of the release in units of the noise, their shift if
            they are in the batch, and the sampling rate.
        join: combines the scores of earlier steps with those of the next.
        runs: number of runs, each with all canaries.
        deltas: at which epsilon is tested.
        false_alarm: probability that a correct mechanism is called a violation, at any of the deltas.
        accountant: of the runs; that of ``privatize`` unless given.
        on_step: called after each step with the number of steps done, and of all.

    Guarantee: the scores are independent for the documented mechanism, so a guarantee that holds is refuted with
    probability ``false_alarm`` at most.

    Raises:
        ValueError, PrivacyError: a number outside its domain; the bound refuses the model or the losses.
    """
    checks.all_of(
        lambda: checks.count(runs=runs),
        lambda: checks.open_fraction(false_alarm=false_alarm),
        *(lambda delta=delta: checks.open_fraction(delta=delta) for delta in deltas),
    )
    inside: list[np.ndarray] = []
    outside: list[np.ndarray] = []
    guaranteed: list[float] = []
    for k in range(runs):
        made = canary_model()
        half = made.canaries // 2
        records = torch.cat([made.records[:half], made.records[made.canaries :]])
        bound = bound_of(made.model)
        expected = max(1.0, sampling_rate * len(records))
        total = None
        trained = released_steps(
            bound,
            (records,),
            made.loss,
            noise_multiplier=noise_multiplier,
            sampling_rate=sampling_rate,
            steps=steps,
            expected_batch_size=expected,
            microbatch_size=4096,
            accountant=accountant,
        )
        for step, (run, _, sums) in enumerate(trained, 1):
            scores, shift = canary_scores(sums, bound.parameters, made.canaries, expected)
            of_step = score(scores / noise_multiplier, shift / noise_multiplier, sampling_rate)
            total = of_step if total is None else join(total, of_step)
            on_step(k * steps + step, runs * steps)
            if k == 0 and step == steps:
                guaranteed = [run.epsilon(delta=delta) for delta in deltas]
        assert total is not None, "at least one step"
        inside.append(total[:half])
        outside.append(total[half:])
    both, alpha = (np.concatenate(inside), np.concatenate(outside)), false_alarm / len(deltas)
    points = tuple(
        Point(delta, epsilon, certified_epsilon(*both, delta=delta, alpha=alpha))
        for delta, epsilon in zip(deltas, guaranteed, strict=True)
    )
    return RunAudit(*both, points, false_alarm)


RUN_FILE = "run.json"
_RANDOM_RECORDS = 256


@dataclass(frozen=True)
class Shapes:
    """The public facts about the records of a data set."""

    data: str
    inputs: tuple[int, ...]
    words: tuple[int, ...]  # for texts: number of word vectors and their length; () otherwise
    classes: int
    declared_size: int
    numbered: int = 0  # for texts without word vectors: how many numbers of words there are
    target: Target | None = None  # of a regression

    @classmethod
    def of(cls, data: DataSet) -> Self:
        words, shape = () if data.vectors is None else data.vectors.shape, data.train.inputs.shape[1:]
        return cls(data.name, shape, words, data.classes, data.declared_size, data.words, data.target)

    def random_data(self, seed: int, examples: int = _RANDOM_RECORDS) -> DataSet:
        random = np.random.default_rng(seed)
        size = (examples, *self.inputs)
        numbers = self.words[0] if self.words else self.numbered
        inputs = random.integers(0, numbers, size) if numbers else random.random(size, dtype=np.float32)
        vectors = random.normal(size=self.words).astype(np.float32) if self.words else None
        classes = random.integers(0, self.classes, examples)
        train = Split(inputs, classes if self.target is None else random.uniform(-1, 1, examples).astype(np.float32))
        return DataSet(
            self.data, train, None, self.classes, self.declared_size, "", vectors, self.numbered, self.target
        )


@dataclass(frozen=True)
class AuditedRun:
    """A run, finished or described by a recipe: its guarantee, its gradient bound, and how to train it again.

    ``event`` is that of one step, and ``unknown`` what a run folder does not contain of the recipe; "" if it has
    everything.
    """

    recipe: Recipe
    event: PoissonGaussian
    steps: int
    epsilon: float
    shapes: Shapes
    unknown: str = ""

    @classmethod
    def of_recipe(cls, recipe: Recipe, data: DataSet) -> Self:
        """The run of this recipe. Nothing is trained, and of the records only shapes are used."""
        _check_kind(recipe)
        shapes = Shapes.of(data)
        with Ledger() as ledger:
            run = start_run(recipe, _setup(recipe, shapes, ledger), shapes.declared_size, ledger, Alone(), _ONE_RUN)
            event = run.event
            run.close()
        assert isinstance(event, PoissonGaussian)
        return cls(recipe, event, run.steps, recipe.privacy.epsilon, shapes)

    @classmethod
    def of_run(cls, folder: Path) -> Self:
        """The run in this folder.

        Raises:
            ValueError: there is no finished run, or its ledger is that of another run.
        """
        facts = _facts(folder)
        try:
            event = PoissonGaussian(facts["sampling_rate"], facts["noise_multiplier"])
            recipe = Recipe.of(facts["recipe"], RUN_FILE)
            _check_kind(recipe)
            _check_ledger(event, facts["steps"], folder / LEDGER_FILE)
            bounds = recipe.data.target
            shapes = Shapes(
                facts["data"],
                tuple(facts["input_shape"]),
                tuple(facts["word_vectors"]),
                facts["classes"],
                facts["declared_size"],
                facts.get("words", 0),
                Target(*bounds) if bounds else None,
            )
            unknown = _unknown(recipe, facts["data"], facts["public_weights"])
            return cls(recipe, event, facts["steps"], facts["epsilon"], shapes, unknown)
        except (KeyError, TypeError) as error:
            raise ValueError(f"{folder / RUN_FILE} lacks {error}, so it does not describe a run") from error

    @property
    def delta(self) -> float:
        return self.recipe.privacy.delta

    def bound_of(self, model: nn.Module) -> GradientBound:
        privacy, lipschitz = self.recipe.privacy, self.recipe.lipschitz
        if not lipschitz.used:
            return PerExampleClip(model, clipping=CLIPPING_RULES[privacy.clipping].resolve()(privacy.max_grad_norm))
        limit = FlatClipping(lipschitz.logit_clip) if lipschitz.logit_clip else None
        shape = LipschitzAxes().input_shape
        return LipschitzBound(model, loss=TauCrossEntropy(1.0), input_shape=shape, logit_clipping=limit)

    def audit_step(self, *, steps: int) -> StepAudit:
        if self.recipe.lipschitz.used:
            canary_model = LipschitzAxes()
        else:
            canary_model = BehindPublicNorm() if self.recipe.model.batch_norm == "public" else Axes()
        noise = self.event.noise_multiplier
        return audit_bound(self.bound_of, noise_multiplier=noise, canary_model=canary_model, steps=steps)

    def audit_neighbours(self, *, pairs: int) -> NeighbourAudit:
        """Compare batches that differ by one record, on the run's own model and random records."""

        def setup() -> TrainingSetup:  # with the same weights each time
            return _setup(self.known_recipe, self.shapes, Ledger())

        first = setup()
        inputs, targets = (column.clone() for column in first.examples.tensors)
        first.bound.close()
        random = np.random.default_rng()

        def draw(n: int) -> Records:
            chosen = torch.as_tensor(random.integers(0, len(inputs), n))
            return inputs[chosen], targets[chosen]

        return audit_neighbours(
            lambda: setup().bound,
            draw,
            first.losses,
            noise_multiplier=self.event.noise_multiplier,
            pairs=pairs,
            steps=20,
        )

    def audit_whole_run(self, *, on_step: OnStep) -> RunAudit:
        return audit_run(
            self.bound_of,
            noise_multiplier=self.event.noise_multiplier,
            sampling_rate=self.event.sampling_rate,
            steps=self.steps,
            canary_model=lambda: LipschitzAxes(4096) if self.recipe.lipschitz.used else Rows(_CANARIES),
            on_step=on_step,
        )

    def facts(self) -> dict[str, Any]:
        return {
            "data": self.shapes.data,
            "epsilon": self.epsilon,
            "delta": self.delta,
            "sampling_rate": self.event.sampling_rate,
            "noise_multiplier": self.event.noise_multiplier,
            "steps": self.steps,
            "bound": "layers" if self.recipe.lipschitz.used else "clipping",
        }

    @property
    def known_recipe(self) -> Recipe:
        """The recipe; a ValueError if not all of it is known."""
        if self.unknown:
            raise ValueError(f"the run folder does not contain {self.unknown}; audit the recipe of the run instead")
        return self.recipe


_ONE_RUN = "the recipe"  # whose projection and steps are declared together


def _setup(recipe: Recipe, shapes: Shapes, ledger: Ledger) -> TrainingSetup:
    """The model, bound and optimizer of a recipe on random records."""
    records = shapes.random_data(0)
    public = shapes.random_data(1, recipe.public.examples) if recipe.public.data else None
    return TrainingSetup(
        recipe, records, public, lambda: principal_components_of(recipe, records, ledger, Alone(), _ONE_RUN)
    )


def _check_kind(recipe: Recipe) -> None:
    users, batches = recipe.data.users, recipe.training.batches
    if users is not None or batches != "poisson":
        raise ValueError(
            "the audit of a run knows Poisson batches of records, not "
            + (f"{batches} batches" if users is None else "a guarantee for users")
        )


def _facts(folder: Path) -> dict[str, Any]:
    path = folder / RUN_FILE
    try:
        facts = json.loads(path.read_bytes())
    except FileNotFoundError as error:
        raise ValueError(f"{folder} contains no {RUN_FILE}; give the folder of a finished run, or a recipe") from error
    except ValueError as error:
        raise ValueError(f"{path} is truncated or altered: {error}") from error
    if not isinstance(facts, dict):
        raise ValueError(f"{path} is truncated or altered: expected a JSON object")
    return facts


def _check_ledger(event: PoissonGaussian, steps: int, path: Path) -> None:
    """Check that the ledger contains at least this many releases of the event, also in each run of a search."""
    recorded = {
        (known.sampling_rate, known.noise_multiplier): times
        for charged, number in Ledger.read(path).events.items()
        for known, times in (charged.run if isinstance(charged, RepeatAndSelect) else ((charged, number),))
        if isinstance(known, PoissonGaussian)
    }
    found = recorded.get((event.sampling_rate, event.noise_multiplier), 0)
    if found < steps:
        raise ValueError(
            f"{RUN_FILE} states {steps} steps at sampling rate {event.sampling_rate:.4g} and noise multiplier "
            f"{event.noise_multiplier:.4g}, but {path} contains {found} of them"
        )


def _unknown(recipe: Recipe, data: str, public_weights: str) -> str:
    """The parts of a recipe that a run folder does not contain, in words.

    Of the path of the weights that a run began with, it contains the name alone.
    """
    try:
        weights_known = not public_weights or sha256_of_first_weights(recipe.model) == public_weights
    except (OSError, ValueError):
        weights_known = False
    lacking = {
        "its public weights, and their file is not in the working folder": not weights_known,
        "the declaration of its data": data not in names(),
        "its public data": recipe.public.data and recipe.public.data not in names(),
    }
    return " and ".join(what for what, lacks in lacking.items() if lacks)
