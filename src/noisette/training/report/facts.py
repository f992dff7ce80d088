"""What may be published about a search beside its best run: the space and the price, never the other runs."""

from __future__ import annotations

import json
import math
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from importlib.metadata import version
from pathlib import Path
from typing import TYPE_CHECKING, Any

import noisette
from noisette.accounting import RdpAccountant
from noisette.accounting.events import UserLevel, event_of
from noisette.accounting.events import facts_of as event_facts
from noisette.nn.models.factory import is_folder_of_model
from noisette.training.report.numbers import percent, upward

if TYPE_CHECKING:
    from noisette.run.private import PrivateRun
    from noisette.training.evaluation import ClassFigures, NumberFigures, Outcome, Point
    from noisette.training.recipe import Recipe


@dataclass(frozen=True)
class SearchFacts:
    """A search in public numbers: declared, or about the run that was chosen.

    ``over`` has the distribution of each searched setting in words, ``settings`` its values in the chosen run.
    ``mean`` and ``shape`` are those of the distribution of the number of runs, whose median and ninth decile are
    ``median`` and ``at_most``; ``none`` is the chance of no run. ``epsilon_of_all`` is what it would cost to release
    all of ``compared`` runs with the same noise.
    ``score`` is that of the chosen run, with noise of the standard deviation ``score_deviation``, where it was computed
    on ``held_out``, the share of the records that were not trained on; all are ``None`` where the test figures decided.

    Guarantee: no field depends on a run that was not chosen, nor on the number of runs that was drawn.
    """

    over: Mapping[str, str]
    settings: Mapping[str, float | int | bool | str | None]
    mean: float
    shape: str
    median: int
    at_most: int
    none: float
    compared: int
    epsilon_of_all: float
    score: float | None
    held_out: float | None
    score_deviation: float | None

    @property
    def runs(self) -> str:
        """The distribution of the number of runs, in words."""
        never = f", none with probability {self.none:.2g}" if self.none else ""
        return (
            f"a secret random number: {self.mean:g} on average, half of the time at most {self.median}, "
            f"9 times in 10 at most {self.at_most}{never} (shape {self.shape})"
        )


def shown(value: float | int | bool | str | None) -> str:
    """A setting as the command line takes it.

    >>> shown(0.5), shown(True), shown(None)
    ('0.5', 'true', 'none')
    """
    if value is None or isinstance(value, bool):
        return str(value).lower()
    return f"{value:g}" if isinstance(value, float) else str(value)


def rows_of_search(search: SearchFacts) -> list[tuple[str, str]]:
    """Name and value of each fact, for tables: first the settings that were found."""
    return [
        *((name, f"{shown(value)}, from {search.over[name]}") for name, value in search.settings.items()),
        ("runs", search.runs),
        ("score", score_of(search)),
        ("to release all", f"{search.compared} runs would cost epsilon {upward(search.epsilon_of_all)}"),
    ]


def score_of(search: SearchFacts) -> str:
    """The score of the chosen run, and on what it was computed."""
    if search.held_out is None:
        return "on public test examples"
    assert search.score is not None, "a run was chosen"
    assert search.score_deviation is not None, "the score has noise"
    over = ", which is above 100 % where there are more records than declared" if search.score > 1 else ""
    return (
        f"{percent(search.score)} of the declared number held out{over}. This is {percent(search.held_out)} of the "
        f"records, which were not trained on; the noise has the standard deviation {percent(search.score_deviation)}"
    )


def advice(search: SearchFacts, epsilon: float) -> str:
    """That releasing all runs would be cheaper, "" where it would not be."""
    if search.epsilon_of_all > epsilon:
        return ""
    return (
        f"Releasing all of {search.compared} runs with the same noise would cost epsilon "
        f"{upward(search.epsilon_of_all)}, no more than this search of {search.mean:g} runs on average, "
        f"{upward(epsilon)}: rather train that many times with noisette train, and choose afterwards as you like."
    )


def paragraph(search: SearchFacts, unit: str) -> str:
    """What the guarantee covers of a search."""
    return (
        "Search: this run is the best of a search, and epsilon is the price of the whole search. The other runs were "
        f"discarded: their weights, settings and scores left no file. The number of runs is {search.runs}. It was "
        "drawn from a key that was never written down. The guarantee does not hold against somebody who learns how "
        "long the search took, or saw it at work: that tells about the number of runs, and so about the "
        f"{unit} in question."
    )


def how_chosen(search: SearchFacts) -> str:
    """By what the run was chosen, and what that says about its figures."""
    drawn = ", ".join(f"{name} from {text}" for name, text in search.over.items())
    said = f"Settings: drawn for each run anew, independently of all records: {drawn}. The run was chosen by "
    if search.held_out is None:
        return (
            f"{said}its result on the test examples, which are taken to be public and have no guarantee. So the test "
            "figures of this run are those of the best of several, and better than on new examples."
        )
    return (
        f"{said}the number of its right answers on records that were held out with probability {search.held_out:g} and "
        "not trained on, each answer from 0 to 1, with Gaussian noise, over a public number. Its release is part of "
        "each run in the ledger, and these records have the same guarantee as the others."
    )


def _computed_by(accountant: str, own: str) -> str:
    """The package that computes the privacy cost, with its version: the divergences are those of a library."""
    return f"dp-accounting {version('dp-accounting')}" if accountant == RdpAccountant.name else f"noisette {own}"


_PATHS = (("data", "name"), ("data", "test"), ("model", "weights"), ("public", "data"))


@dataclass(frozen=True)
class LayerBounds:
    """How the layers of a Lipschitz network bounded one record, by parameter, under the weights of the last step.

    ``sensitivities`` are the most that one record moves the sum of a parameter's gradients, ``deviations`` the standard
    deviations of the noise on each of its elements.
    """

    sensitivities: Mapping[str, float]
    deviations: Mapping[str, float]


@dataclass(frozen=True)
class ReleasedPart:
    """One of several sums that every step releases together: its sensitivity, and its share of the noise budget."""

    name: str
    sensitivity: float
    share: float


@dataclass(frozen=True)
class Facts:
    """A run in public numbers: declared, noised, or about the public test examples.

    ``epsilon`` is the cost of the ``steps`` that the ledger has
    reserved, at the recipe's delta.
    ``word_vectors`` is the shape of the table of public word vectors, () where inputs are not words;
    ``public_weights`` is the SHA-256 of the file of the first weights, "" if they were random;
    ``max_grad_norm`` is the clipping norm of all ``groups`` of parameters together, as of the last release; it is
    ``None`` where the layers bound the gradients, as ``lipschitz`` has it; ``parts`` are what a step releases, () for
    the gradient alone.
    ``event`` is the release of one step, as the ledger has it; ``released`` is everything that the ledger counts, each
    release with how often it happened, which is what epsilon is the cost of.
    ``test_accuracy`` is that of the saved model, ``None`` if it was not measured; ``steps_lost`` are covered by epsilon
    and were lost when a process crashed; ``resumed`` counts how often the run was continued in another process;
    ``test`` is how well the saved model predicts the test examples, ``None`` if there are none;
    ``features`` are the names of the columns that are inputs, which the header of a CSV makes public;
    ``words`` is how many numbers of words there are in texts without word vectors;
    ``certified`` are radii, each with the share of the test examples whose class is right and stays so within it;
    ``search`` is there if the run was chosen by a search: epsilon and ``released`` are then those of the search, and
    ``seconds`` and ``seconds_per_step`` are ``None``: a first run takes longer than later ones, so they would tell of
    the number of runs;
    ``declarations`` is how many groups of releases the ledger holds that were each fixed before its first release.

    Guarantee: no field depends on the training records except through the noise. Those about test examples are exact,
    also where these are records that were held out: these have no guarantee. There is no loss, gradient norm, batch
    size or number of records here, and a run publishes this class, the weights and the ledger only.
    """

    version: str
    recipe: Recipe
    data: str
    note: str
    declared_size: int
    input_shape: tuple[int, ...]
    word_vectors: tuple[int, ...]
    classes: int
    parameters: int
    public_weights: str
    epsilon: float
    neighbouring: str
    accountant_version: str
    event: Mapping[str, Any]
    released: tuple[tuple[Mapping[str, Any], int], ...]
    sampling: str
    sampling_rate: float
    noise_multiplier: float
    max_grad_norm: float | None
    groups: int
    parts: tuple[ReleasedPart, ...]
    lipschitz: LayerBounds | None
    steps: int
    steps_planned: int
    steps_taken: int
    steps_lost: int
    resumed: int
    completed: bool
    ledger_head: str
    test_accuracy: float | None
    seconds: float | None
    seconds_per_step: float | None
    device: str
    points: tuple[Point, ...]
    certified: tuple[tuple[float, float], ...] = ()
    test: ClassFigures | NumberFigures | None = None
    features: tuple[str, ...] = ()
    words: int = 0
    search: SearchFacts | None = None
    declarations: int = 1

    @property
    def unit(self) -> str:
        """Whom the guarantee protects: "user" or "record"."""
        return "user" if isinstance(event_of(self.event), UserLevel) else "record"

    @property
    def model_name(self) -> str:
        """The name of the model; of a folder without those above it, which are the user's own."""
        name = self.recipe.model.name
        return Path(name).name if is_folder_of_model(name) else name

    @property
    def progress(self) -> str:
        """How many of the planned steps were taken, and how many a resumed run has lost."""
        lost = f" (resumed, {self.steps_lost:,} lost)" if self.resumed else ""
        return f"{self.steps_taken:,} of {self.steps_planned:,}{lost}"

    def as_json(self) -> str:
        """The text of ``run.json``. It has file names in the place of paths: the user's folders are not published."""
        content = asdict(self)
        for section, key in _PATHS:
            if path := content["recipe"][section][key]:
                content["recipe"][section][key] = Path(path).name
        content["recipe"]["model"]["name"] = self.model_name
        return json.dumps(content, indent=2) + "\n"


def facts_of(outcome: Outcome) -> Facts:
    """What may be published about this run."""
    recipe, run, data = outcome.recipe, outcome.run, outcome.data
    last = outcome.points[-1] if outcome.points else None
    by_layers = recipe.lipschitz.used
    gradients = [part.bound for part in run.bound.pop_sums() if part.name == "gradient"]
    return Facts(
        version=noisette.__version__,
        recipe=recipe,
        data=data.name,
        note=data.note,
        declared_size=data.declared_size,
        input_shape=tuple(data.train.inputs.shape[1:]),
        word_vectors=() if data.vectors is None else data.vectors.shape,
        classes=data.classes,
        parameters=outcome.parameters,
        public_weights=outcome.public_weights,
        epsilon=outcome.epsilon,
        neighbouring=run.event.neighbouring.value,
        accountant_version=_computed_by(recipe.privacy.accountant, noisette.__version__),
        event=event_facts(run.event),
        released=tuple((event_facts(event), times) for event, times in run.ledger.events.items() if times),
        sampling=run.event.sampling,
        sampling_rate=run.sampling_rate,
        noise_multiplier=run.noise_multiplier,
        max_grad_norm=None if by_layers else math.hypot(*gradients),
        groups=1 if by_layers else len(gradients),
        parts=_parts(run),
        lipschitz=_layer_bounds(run) if by_layers else None,
        steps=run.terms.spent(run.ledger),
        steps_planned=run.steps,
        steps_taken=run.steps_taken,
        steps_lost=run.steps_lost,
        resumed=outcome.resumed,
        completed=not outcome.interrupted,
        ledger_head=run.ledger.head,
        test_accuracy=last.test_accuracy if last and last.step == run.steps_spent else None,
        seconds=outcome.seconds,
        seconds_per_step=outcome.seconds / max(1, run.steps_taken),
        device=next(outcome.model.parameters()).device.type,
        points=tuple(outcome.points),
        certified=tuple(outcome.certified),
        test=outcome.test,
        features=data.features,
        words=data.words,
        declarations=len(run.ledger.declarations),
    )


def _parts(run: PrivateRun) -> tuple[ReleasedPart, ...]:
    """The parts of the release that the ledger names, each with its sensitivity."""
    sums = run.bound.pop_sums()
    return tuple(
        ReleasedPart(name, math.hypot(*(part.bound for part in sums if part.name == name)), share)
        for name, share in run.event.parts
    )


def _layer_bounds(run: PrivateRun) -> LayerBounds:
    from noisette.lipschitz.bound import LipschitzBound

    bound = run.bound
    assert isinstance(bound, LipschitzBound), "a recipe with tau has no other"
    sensitivities = bound.sensitivities()
    return LayerBounds(
        sensitivities,
        {
            name: run.noise_multiplier * part.bound / math.sqrt(part.share)
            for part in bound.allocation.parts(sensitivities, bound.parameters)
            for name in part.names
        },
    )
