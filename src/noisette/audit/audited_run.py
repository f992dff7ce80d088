"""The audit of whole runs: canaries are scored over all steps, so that Poisson sampling is part of what is tested."""

from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple, Self

import numpy as np
import torch
from torch import nn

from noisette import errors as checks
from noisette.accounting import Ledger, PoissonGaussian, RepeatAndSelect
from noisette.accounting.events import Event, event_of, facts_of
from noisette.accounting.ledger import LEDGER_FILE
from noisette.audit import step_audit
from noisette.audit.certificate import Audit, CostAudit, audit_cost, certified_epsilon
from noisette.clipping.registry import CLIPPING_RULES
from noisette.clipping.rules import FlatClipping
from noisette.core.release import GradientBound
from noisette.data import DataSet
from noisette.data.dataset import random_records
from noisette.lipschitz.bound import LipschitzBound
from noisette.nn.lipschitz import TauCrossEntropy
from noisette.ranks import Alone
from noisette.run.per_example import PerExampleClip
from noisette.training.build import TrainingSetup, principal_components_of, sha256_of_first_weights
from noisette.training.loop import start_run
from noisette.training.recipe import Recipe
from noisette.training.run_folder import RUN_FILE, FinishedRun

__all__ = ["RunAudit", "audit_run"]

DELTAS = (1e-2, 1e-5)  # error rates prove most at a large delta
_FALSE_ALARM = 1e-6
_RECORDS = 256  # random ones, that are trained on

OnStep = Callable[[int, int], None]  # takes the number of steps done, and of all


class Point(NamedTuple):
    """The guaranteed upper bound on a run's epsilon at a delta, and the certified lower bound."""

    delta: float
    guaranteed: float
    certified: float


@dataclass(frozen=True)
class RunAudit(Audit):
    """What the scores of canaries ``inside`` and ``outside`` of the data set of a whole run prove."""

    inside: np.ndarray
    outside: np.ndarray
    points: tuple[Point, ...]

    @property
    def findings(self) -> tuple[str, ...]:
        return tuple(
            f"at delta={p.delta:g} the run costs epsilon={p.certified:.3g} or more; guaranteed is {p.guaranteed:.3g}"
            for p in self.points
            if p.certified > p.guaranteed
        )

    def facts(self) -> dict[str, Any]:
        scores = {"scores_in": self.inside.size, "scores_out": self.outside.size, "false_alarm": _FALSE_ALARM}
        return super().facts() | scores | {"points": [p._asdict() for p in self.points]}


def audit_run(
    bound_of: step_audit.BoundFactory,
    *,
    noise_multiplier: float,
    sampling_rate: float,
    steps: int,
    canary_model: step_audit.CanaryModel | None = None,
    deltas: Sequence[float] = DELTAS,
    on_step: OnStep = lambda done, of: None,
) -> RunAudit:
    """Score canaries over a whole run of :func:`noisette.privatize`, and test the epsilon that is guaranteed.

    Half of the canaries are records of the run. Each has an axis of its own, and its score is the logarithm of its
    likelihood ratio of in and out: no other is more powerful.

    Args:
        bound_of: makes the bound of a model.
        noise_multiplier, sampling_rate, steps: of the run.
        canary_model: model, records and losses; ``Rows(20_000)`` unless given.
        deltas: at which epsilon is tested.
        on_step: called after each step with the number of steps done, and of all.

    Guarantee: the scores are independent for the documented mechanism, so a guarantee that holds is refuted, at any of
    the deltas, with probability 1e-6 at most.

    Raises:
        ValueError, PrivacyError: a number outside its domain; the bound refuses the model or the losses.
    """
    checks.all_of(*(lambda delta=delta: checks.open_fraction(delta=delta) for delta in deltas))
    made = canary_model if canary_model is not None else step_audit.Rows(20_000)
    half = made.canaries // 2
    records = torch.cat([made.records[:half], made.records[made.canaries :]])
    total, guaranteed = np.zeros(made.canaries), list[float]()
    released = step_audit.released_scores(
        bound_of(made.model),
        made,
        noise_multiplier=noise_multiplier,
        expected_batch_size=max(1.0, sampling_rate * len(records)),
        records=records,
        microbatch_size=4096,
        sampling_rate=sampling_rate,
        steps=steps,
    )
    for step, (run, _, scores, shift) in enumerate(released, start=1):
        total += np.log1p(sampling_rate * np.expm1(scores * shift - shift**2 / 2))
        on_step(step, steps)
        guaranteed = [run.epsilon(delta=delta) for delta in deltas] if step == steps else []
    inside, outside = total[:half], total[half:]
    points = tuple(
        Point(delta, epsilon, certified_epsilon(inside, outside, delta=delta, alpha=_FALSE_ALARM / len(deltas)))
        for delta, epsilon in zip(deltas, guaranteed, strict=True)
    )
    return RunAudit(inside, outside, points)


@dataclass(frozen=True)
class AuditedRun:
    """A run, finished or described by a recipe: its guarantee, its gradient bound, and how to train it again.

    ``event`` is that of one step, ``released`` everything that costs ``epsilon``, and ``shapes`` a data set of which
    the shapes are used alone. ``unknown`` is what a run folder does not contain of the recipe.
    """

    recipe: Recipe
    event: Event
    steps: int
    released: Mapping[Event, int]
    epsilon: float
    shapes: DataSet
    unknown: str = ""

    @classmethod
    def of_recipe(cls, recipe: Recipe, data: DataSet) -> Self:
        """The run of this recipe, for Poisson batches of records. Nothing is trained."""
        if other := _other_batches(recipe):
            raise ValueError(f"this audit knows Poisson batches of records, not {other}; train, then audit the run")
        with Ledger() as ledger:
            run = start_run(recipe, _setup(recipe, data, ledger), data.declared_size, ledger, Alone(), _ONE_RUN)
            released = {**ledger.events, run.event: run.steps}
            run.close()
        return cls(recipe, run.event, run.steps, released, recipe.privacy.epsilon, data)

    @classmethod
    def of_run(cls, folder: Path, model: str | Path | None = None) -> Self:
        """The run in a folder; ``model`` as for :meth:`SavedModel.of_run`, without which its own code is not run."""
        run = FinishedRun.read(folder)
        if run.event is None:
            raise ValueError(f"{folder} is a run without privacy, a baseline: it has no guarantee to audit")
        try:
            event, released = event_of(run.event), {event_of(of_event): times for of_event, times in run.released}
        except (ArithmeticError, KeyError, TypeError, ValueError) as error:
            raise ValueError(f"{folder / RUN_FILE} is altered: it names no event ({error})") from error
        recorded, of_searches = Ledger.read(folder / LEDGER_FILE).events, Counter[Event]()
        for search in recorded:
            of_searches.update(dict(search.run) if isinstance(search, RepeatAndSelect) else {})
        for each, times in {**released, event: run.steps}.items():  # also in each run of a search
            if (found := max(recorded.get(each, 0), of_searches[each])) < times:
                contained = f"{folder / LEDGER_FILE} contains {found} of them"
                raise ValueError(f"{RUN_FILE} states {times} releases of {each!r}, but {contained}")
        recipe, known = run.told_recipe, model is not None or run.is_built_in
        recipe = run.recipe_with(model, folder) if known else recipe
        unknown = "" if known else f"its model {recipe.model.backbone or recipe.model.name!r}, which --model gives"
        if known and run.public_weights:  # of which a run folder has the name and the digest alone
            found = ""
            with suppress(OSError, ValueError):
                found = sha256_of_first_weights(recipe.model)
            if found != run.public_weights:
                unknown = "its public weights, and their file is not in the working folder"
        return cls(recipe, event, run.steps, released, run.epsilon, run.records(0), unknown)

    @property
    def other_batches(self) -> str:
        """What the audits with canaries do not know of the run, in words; "" for Poisson batches of records."""
        return _other_batches(self.recipe)

    @property
    def delta(self) -> float:
        return self.recipe.privacy.delta

    def bound_of(self, model: nn.Module) -> GradientBound:
        privacy, lipschitz = self.recipe.privacy, self.recipe.lipschitz
        if not lipschitz.used:
            return PerExampleClip(model, clipping=CLIPPING_RULES[privacy.clipping].resolve()(privacy.max_grad_norm))
        limit = FlatClipping(lipschitz.logit_clip) if lipschitz.logit_clip else None
        _, width = next(model.parameters()).shape  # of the canaries' linear layer
        return LipschitzBound(model, loss=TauCrossEntropy(1.0), input_shape=[width], logit_clipping=limit)

    def audit_cost(self) -> CostAudit:
        return audit_cost(self.released, epsilon=self.epsilon, delta=self.delta)

    def audit_step(self, *, steps: int) -> step_audit.StepAudit:
        kind = step_audit.BehindPublicNorm if self.recipe.model.batch_norm == "public" else step_audit.Axes
        made = step_audit.LipschitzAxes() if self.recipe.lipschitz.used else kind()
        noise = self.event.parameters()["noise_multiplier"]
        return step_audit.audit_bound(self.bound_of, noise_multiplier=noise, canary_model=made, steps=steps)

    def audit_neighbours(self, *, pairs: int) -> step_audit.NeighbourAudit:
        """On the run's own model, which must not be ``unknown``."""
        setup = _setup(self.recipe, self.shapes, Ledger())
        inputs, targets = (column.clone() for column in setup.examples.tensors)
        random = np.random.default_rng()

        def draw(n: int) -> step_audit.Records:
            chosen = torch.as_tensor(random.integers(0, len(inputs), n))
            return inputs[chosen], targets[chosen]

        return step_audit.audit_neighbours(setup.bound, draw, setup.losses, pairs=pairs)

    def audit_whole_run(self, *, on_step: OnStep) -> RunAudit:
        assert isinstance(self.event, PoissonGaussian), "of no other batches"
        return audit_run(
            self.bound_of,
            noise_multiplier=self.event.noise_multiplier,
            sampling_rate=self.event.sampling_rate,
            steps=self.steps,
            canary_model=step_audit.LipschitzAxes(4096) if self.recipe.lipschitz.used else None,
            on_step=on_step,
        )

    def facts(self) -> dict[str, Any]:
        return {
            "data": self.shapes.name,
            "epsilon": self.epsilon,
            "delta": self.delta,
            "event": facts_of(self.event),
            "steps": self.steps,
            "bound": "layers" if self.recipe.lipschitz.used else "clipping",
        }


_ONE_RUN = "the recipe"  # whose projection and steps are declared together


def _setup(recipe: Recipe, like: DataSet, ledger: Ledger) -> TrainingSetup:
    records = random_records(like, _RECORDS)
    public = random_records(like, recipe.public.examples, seed=1) if recipe.public.data else None
    components = partial(principal_components_of, recipe, records, ledger, Alone(), _ONE_RUN)
    return TrainingSetup(recipe, records, public, components)


def _other_batches(recipe: Recipe) -> str:
    if recipe.data.users is not None:
        return "a guarantee for users"
    return "" if recipe.training.batches == "poisson" else f"{recipe.training.batches} batches"
