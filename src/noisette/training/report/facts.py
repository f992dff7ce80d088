"""What may be published about a run: the keys of ``run.json``, in their order, and nothing else."""

from __future__ import annotations

import hashlib
import json
import math
from collections.abc import Mapping
from dataclasses import asdict, dataclass, fields, replace
from importlib.metadata import version
from pathlib import Path
from typing import TYPE_CHECKING, Any

import noisette
from noisette.accounting import PoissonGaussian

if TYPE_CHECKING:
    from noisette.run.dp_sgd import DpSgdRun
    from noisette.run.private import PrivateRun
    from noisette.training.outcome import Outcome, Point
    from noisette.training.recipe import LipschitzSection, PrivacySection

_LIBRARY = "dp-accounting"  # prices the run
_COUPLED = (
    'with batch_norm = "mixture" the statistics are those of all examples of a batch together, so one record moves the '
    "gradients of all others, and clipping each of them does not bound by how much"
)


@dataclass(frozen=True)
class Claim:
    """What a run promises, and what that rests on; ``steps`` are those that ``epsilon`` pays for."""

    epsilon: float
    delta: float
    budget: float
    accountant: str
    accountant_version: str
    neighbouring: str
    tail_delta: float
    allow_large_delta: bool
    steps: int
    ledger_head: str


@dataclass(frozen=True)
class LayerBounds:
    """How the layers of a Lipschitz network bounded one record, by parameter, under the weights of the last step.

    ``sensitivities`` are the most that one record moves the sum of a parameter's gradients, ``deviations`` those of the
    noise on each of its numbers. The loss is the cross-entropy of the scores times ``tau``, divided by it;
    ``logit_clip`` is the bound on a record's gradient at the scores, 0 for that of the loss.
    """

    tau: float
    logit_clip: float
    allocation: str
    sensitivities: Mapping[str, float]
    deviations: Mapping[str, float]


@dataclass(frozen=True)
class Facts:
    """A run in public numbers: declared, noised, or about the public test examples.

    ``claim`` is ``None`` where nothing is promised, and ``no_claim_because`` says why, else "". In ``run.json`` the
    claim is true or false, and its numbers stand beside it, all null where there is none.
    ``max_grad_norm`` is the bound of all ``layers`` together, each of which is clipped to an equal part of it; ``None``
    where gradients are bounded by the layers they go through, of which ``lipschitz`` tells;
    ``word_vectors`` are how many public ones there are and how many numbers each has, () where inputs are no words;
    ``components`` counts the private principal components that the records were projected on, 0 for none;
    ``public_weights`` is the SHA-256 of the file whose weights the model began with, "" if it began with random ones;
    ``batch_norm`` is what stands for it, "" if nothing does, ``standardised`` whether fixed features were, and
    ``public_examples`` how many examples of ``public_data``, chosen by ``public_seed``, gave statistics.
    ``test_accuracy`` is that of the saved model, ``None`` if nobody measured it; ``steps_lost`` are those paid for that
    went down with a process that died; ``resumed`` counts how often the run went on in another process; ``learning``
    holds the settings that only shape what becomes of the noised gradients; ``certified`` are distances with the part
    of the test examples whose class is right and stays so, wherever they are moved within that distance.

    Guarantee: where there is a claim, no field depends on the training records but through the noise. There is no loss,
    gradient norm, batch size or number of records here, and the only ways out of a run are this class, the weights and
    the ledger.
    """

    version: str
    claim: Claim | None
    no_claim_because: str
    data: str
    note: str
    declared_size: int
    input_shape: tuple[int, ...]
    word_vectors: tuple[int, ...]
    classes: int
    model: str
    public_weights: str
    standardised: bool
    batch_norm: str
    public_data: str
    public_examples: int
    public_seed: int
    parameters: int
    sampling: str
    sampling_rate: float
    noise_multiplier: float
    max_grad_norm: float | None
    lipschitz: LayerBounds | None
    layers: int
    components: int
    components_noise_multiplier: float
    steps_planned: int
    steps_taken: int
    steps_lost: int
    resumed: int
    completed: bool
    expected_batch_size: int
    epochs: float
    seed: int
    learning: Mapping[str, Any]
    test_accuracy: float | None
    seconds: float
    seconds_per_step: float
    device: str
    points: tuple[Point, ...]
    certified: tuple[tuple[float, float], ...] = ()

    @property
    def progress(self) -> str:
        """How many steps were taken of those that were planned, and how many a run that was resumed has lost."""
        lost = f" (resumed, {self.steps_lost:,} lost)" if self.resumed else ""
        return f"{self.steps_taken:,} of {self.steps_planned:,}{lost}"

    def as_json(self) -> str:
        """The text of ``run.json``."""
        claim = asdict(self.claim) if self.claim else dict.fromkeys(part.name for part in fields(Claim))
        points = [asdict(point) for point in self.points]
        content = asdict(replace(self, points=())) | {"claim": self.claim is not None} | claim | {"points": points}
        return json.dumps(content, indent=2) + "\n"


def facts_of(outcome: Outcome) -> Facts:
    """What may be published about this run."""
    from noisette.run.private import PrivateRun  # brings torch

    recipe, run, data = outcome.recipe, outcome.run, outcome.data
    learning = asdict(recipe.training)
    last = outcome.points[-1] if outcome.points else None
    public = recipe.public
    return Facts(
        version=noisette.__version__,
        claim=_claim(run, recipe.privacy) if isinstance(run, PrivateRun) else None,
        no_claim_because="" if isinstance(run, PrivateRun) else _COUPLED,
        data=data.name,
        note=data.note,
        declared_size=data.declared_size,
        input_shape=tuple(data.train.inputs.shape[1:]),
        word_vectors=() if data.vectors is None else data.vectors.shape,
        classes=data.classes,
        model=recipe.model.name,
        public_weights=_sha256(recipe.model.weights),
        standardised=recipe.model.standardised,
        batch_norm=recipe.model.batch_norm or "",
        public_data=Path(public.data).name if public.data else "",
        public_examples=public.examples if public.data else 0,
        public_seed=public.seed,
        parameters=outcome.parameters,
        sampling=PoissonGaussian.sampling,
        sampling_rate=run.sampling_rate,
        noise_multiplier=run.noise_multiplier,
        max_grad_norm=None if recipe.lipschitz.used else math.hypot(*(part.bound for part in run.bound.pop_sums())),
        lipschitz=_layer_bounds(run, recipe.lipschitz) if recipe.lipschitz.used else None,
        layers=outcome.layers,
        components=recipe.projection.components,
        components_noise_multiplier=recipe.projection.noise_multiplier,
        steps_planned=run.steps,
        steps_taken=run.steps_taken,
        steps_lost=run.steps_lost,
        resumed=outcome.resumed,
        completed=not outcome.interrupted,
        expected_batch_size=learning.pop("batch_size"),
        epochs=learning.pop("epochs"),
        seed=learning.pop("seed"),
        learning=learning,
        test_accuracy=last.test_accuracy if last and last.step == run.steps_spent else None,
        seconds=outcome.seconds,
        seconds_per_step=outcome.seconds / max(1, run.steps_taken),
        device=next(outcome.model.parameters()).device.type,
        points=tuple(outcome.points),
        certified=tuple(outcome.certified),
    )


def _claim(run: PrivateRun, privacy: PrivacySection) -> Claim:
    return Claim(
        epsilon=run.epsilon(delta=privacy.delta),
        delta=privacy.delta,
        budget=privacy.budget,
        accountant=run.accountant.name,
        accountant_version=f"{_LIBRARY} {version(_LIBRARY)}",
        neighbouring=run.event.neighbouring.value,
        tail_delta=privacy.delta - run.delta_for_noise(privacy.delta),
        allow_large_delta=privacy.allow_large_delta,
        steps=run.ledger.events.get(run.event, 0),
        ledger_head=run.ledger.head,
    )


def _layer_bounds(run: DpSgdRun, settings: LipschitzSection) -> LayerBounds:
    from noisette.lipschitz.bound import LipschitzBound

    bound = run.bound
    assert isinstance(bound, LipschitzBound), "a recipe with tau has no other"
    sensitivities = bound.sensitivities()
    assert settings.tau is not None, "it was read from a recipe with tau"
    return LayerBounds(
        tau=settings.tau,
        logit_clip=settings.logit_clip,
        allocation=settings.allocation,
        sensitivities=sensitivities,
        deviations={
            name: run.noise_multiplier * part.bound / math.sqrt(part.share)
            for part in bound.allocation.parts(sensitivities, bound.parameters)
            for name in part.names
        },
    )


def _sha256(path: str | None) -> str:
    return "" if path is None else hashlib.sha256(Path(path).read_bytes()).hexdigest()
