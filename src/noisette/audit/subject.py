"""What is audited on the command line: a run folder or a recipe, in the numbers that it claims."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Self

import numpy as np
from torch import nn

from noisette.accounting import Ledger, PoissonGaussian
from noisette.accounting.ledger.ledger import LEDGER_FILE
from noisette.audit.canary_models import Axes, BehindPublicNorm, CanaryModel, LipschitzAxes
from noisette.clipping.clipping_rules import ClippingRule, FlatClipping
from noisette.clipping.per_example import PerExampleClip
from noisette.clipping.registry import CLIPPING_RULES
from noisette.data import DataSet, Split, names
from noisette.lipschitz.bound import LipschitzBound
from noisette.mechanisms.bounded_sum import GradientBound
from noisette.nn.lipschitz import TauCrossEntropy
from noisette.run.private import privatize
from noisette.training.build import TrainingSetup, principal_components_of
from noisette.training.cost import length
from noisette.training.recipe import ACCOUNTANTS, Recipe

RUN_FILE = "run.json"
_STAND_INS = 256


@dataclass(frozen=True)
class Shapes:
    """What is public about the records of a data set."""

    data: str
    inputs: tuple[int, ...]
    words: tuple[int, ...]  # of a text: how many vectors there are and how long each is; () otherwise
    classes: int
    declared_size: int

    @classmethod
    def of(cls, data: DataSet) -> Self:
        """Those of a data set."""
        words = () if data.vectors is None else data.vectors.shape
        return cls(data.name, data.train.inputs.shape[1:], words, data.classes, data.declared_size)

    def stand_in(self, seed: int, examples: int = _STAND_INS) -> DataSet:
        """Random records in the place of the private ones."""
        random = np.random.default_rng(seed)
        size = (examples, *self.inputs)
        inputs = random.integers(0, self.words[0], size) if self.words else random.random(size, dtype=np.float32)
        vectors = random.normal(size=self.words).astype(np.float32) if self.words else None
        train = Split(inputs, random.integers(0, self.classes, examples))
        return DataSet(self.data, train, None, self.classes, self.declared_size, "", vectors)


@dataclass(frozen=True)
class Subject:
    """A run or a recipe: what it claims, how it bounds one record, and what it takes to train it again.

    ``recipe`` is ``None`` where the run folder does not tell all of it, and ``unknown`` says what it lacks.
    """

    claim: PoissonGaussian
    steps: int
    epsilon: float
    delta: float
    clipping: ClippingRule | None  # of all that is trained; of the gradient at the scores, if any, where layers bound
    lipschitz: bool
    public_norm: bool
    shapes: Shapes
    recipe: Recipe | None
    unknown: str

    @classmethod
    def of_recipe(cls, recipe: Recipe, data: DataSet) -> Self:
        """What a run of this recipe will claim. Nothing is trained, and of the records only shapes are looked at.

        Raises:
            ValueError: the recipe does not fit the data.
            PrivacyError: the budget does not pay for the run.
        """
        shapes, privacy = Shapes.of(data), recipe.privacy
        with Ledger() as ledger:
            learner = _learner(recipe, shapes, ledger)
            sampling_rate, steps = length(recipe, shapes.declared_size, learner.noise_multiplier, ledger)
            run = privatize(
                learner.bound,
                learner.optimizer,
                learner.examples,
                expected_batch_size=recipe.training.batch_size,
                sampling_rate=sampling_rate,
                steps=steps,
                epsilon=privacy.epsilon,
                noise_multiplier=learner.noise_multiplier,
                delta=privacy.delta,
                accountant=ACCOUNTANTS[privacy.accountant],
                allow_large_delta=privacy.allow_large_delta,
                ledger=ledger,
            )
            run.close()
        lipschitz, clip = recipe.lipschitz.used, recipe.lipschitz.logit_clip
        rule = CLIPPING_RULES[privacy.clipping].resolve()(privacy.max_grad_norm)
        return cls(
            run.event,
            steps,
            privacy.epsilon,
            privacy.delta,
            (FlatClipping(clip) if clip else None) if lipschitz else rule,
            lipschitz,
            recipe.model.batch_norm == "public",
            shapes,
            recipe,
            "",
        )

    @classmethod
    def of_run(cls, folder: Path) -> Self:
        """What the run in this folder claims.

        Raises:
            ValueError: it is no run, or its ledger tells of another one.
        """
        facts = _facts(folder)
        try:
            return cls._of_facts(facts, folder)
        except (KeyError, TypeError) as error:
            raise ValueError(f"{folder / RUN_FILE} lacks {error}; it is not that of a run") from error

    @classmethod
    def _of_facts(cls, facts: Mapping[str, Any], folder: Path) -> Self:
        event, ledger = PoissonGaussian(facts["sampling_rate"], facts["noise_multiplier"]), folder / LEDGER_FILE
        _check_ledger(event, facts["steps"], ledger)
        settings = facts["recipe"]
        clip = settings["lipschitz"]["logit_clip"] if facts["lipschitz"] else facts["max_grad_norm"]
        rule = CLIPPING_RULES["flat" if facts["lipschitz"] else settings["privacy"]["clipping"]].resolve()
        recipe, unknown = _recipe(facts)
        return cls(
            event,
            facts["steps"],
            facts["epsilon"],
            settings["privacy"]["delta"],
            rule(clip) if clip else None,
            bool(facts["lipschitz"]),
            settings["model"]["batch_norm"] == "public",
            Shapes(
                facts["data"],
                tuple(facts["input_shape"]),
                tuple(facts["word_vectors"]),
                facts["classes"],
                facts["declared_size"],
            ),
            recipe,
            unknown,
        )

    def canary_model(self) -> CanaryModel:
        """Canaries that fit the way in which one record is bounded."""
        if self.lipschitz:
            return LipschitzAxes()
        return BehindPublicNorm() if self.public_norm else Axes()

    def bound_of(self, model: nn.Module) -> GradientBound:
        """The bound of the run, on the model of an arena."""
        if not self.lipschitz:
            return PerExampleClip(model, clipping=self.clipping)
        shape = LipschitzAxes().input_shape
        return LipschitzBound(model, loss=TauCrossEntropy(1.0), input_shape=shape, logit_clipping=self.clipping)

    def learner(self) -> TrainingSetup:
        """The run's own model and bound, always with the same weights, on random records.

        Raises:
            ValueError: the recipe is not known.
        """
        return _learner(self.known_recipe, self.shapes, Ledger())

    def model_in(self, folder: Path) -> nn.Module:
        """The model that the run published, with its weights.

        Raises:
            ValueError: the recipe is not known, or the file holds the weights of another model.
        """
        from safetensors import SafetensorError
        from safetensors.torch import load_file

        model, path = self.learner().published, folder / "model.safetensors"
        try:
            model.load_state_dict(load_file(path))
        except (RuntimeError, SafetensorError) as error:
            raise ValueError(f"{path} does not hold the weights of the run's model: {error}") from error
        return model.eval()

    def facts(self) -> dict[str, Any]:
        """What is claimed, as plain values."""
        return {
            "data": self.shapes.data,
            "epsilon": self.epsilon,
            "delta": self.delta,
            "sampling_rate": self.claim.sampling_rate,
            "noise_multiplier": self.claim.noise_multiplier,
            "steps": self.steps,
            "bound": "layers" if self.lipschitz else "clipping",
        }

    @property
    def known_recipe(self) -> Recipe:
        """The recipe.

        Raises:
            ValueError: it is not known.
        """
        if self.recipe is None:
            raise ValueError(f"the run folder does not hold {self.unknown}; audit the recipe of the run instead")
        return self.recipe


def _learner(recipe: Recipe, shapes: Shapes, ledger: Ledger) -> TrainingSetup:
    records, examples = shapes.stand_in(0), recipe.public.examples
    public = shapes.stand_in(1, examples) if recipe.public.data else None
    return TrainingSetup(recipe, records, public, lambda: principal_components_of(recipe, records, ledger))


def _facts(folder: Path) -> dict[str, Any]:
    path = folder / RUN_FILE
    try:
        facts = json.loads(path.read_bytes())
    except FileNotFoundError as error:
        raise ValueError(f"{folder} holds no {RUN_FILE}, so it is no finished run; name one, or a recipe") from error
    except ValueError as error:
        raise ValueError(f"{path} was cut or altered: {error}") from error
    if not isinstance(facts, dict):
        raise ValueError(f"{path} was cut or altered: it is no table of facts")
    return facts


def _check_ledger(event: PoissonGaussian, steps: int, path: Path) -> None:
    """The ledger tells of the same releases, at least so many."""
    paid = {
        (known.sampling_rate, known.noise_multiplier): times
        for known, times in Ledger.read(path).events.items()
        if isinstance(known, PoissonGaussian)
    }
    found = paid.get((event.sampling_rate, event.noise_multiplier), 0)
    if found < steps:
        raise ValueError(
            f"the run claims {steps} steps of rate {event.sampling_rate:.4g} and noise multiplier "
            f"{event.noise_multiplier:.4g}, but {path} has {found} of them"
        )


def _recipe(facts: Mapping[str, Any]) -> tuple[Recipe | None, str]:
    """The recipe of a run, or what its facts lack of it."""
    public = facts["recipe"]["public"]["data"]
    lacking = [
        what
        for what, lacks in (
            ("the file of its public weights", facts["public_weights"]),
            ("the declaration of its data", facts["data"] not in names()),
            ("its public data", public and public not in names()),
        )
        if lacks
    ]
    if lacking:
        return None, " and ".join(lacking)
    return Recipe.of(facts["recipe"], RUN_FILE), ""
