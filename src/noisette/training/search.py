"""A search over settings: draw them, run, score, and select the best run by repeat-and-select."""

import math
import secrets
import warnings
from collections.abc import Callable, Iterable
from dataclasses import dataclass, replace
from typing import Any, Self, TypeAlias

import torch
from torch import Tensor, nn

from noisette import errors as checks
from noisette.accounting import Event, Gaussian, Ledger, PldAccountant, PoissonGaussian, RepeatAndSelect
from noisette.accounting.budget import check_delta
from noisette.accounting.calibrate import SEE_PLAN, noise_multiplier_for, schedule
from noisette.accounting.events import Sampled
from noisette.accounting.events import facts_of as event_facts
from noisette.accounting.repeated_runs import NumberOfRuns, SearchPlan, least_noise_search
from noisette.core.noise import SecretKey
from noisette.core.release import noised
from noisette.data import DataSet, Split
from noisette.data.dataset import hold_out, random_records
from noisette.nn.batch_norm import in_evaluation
from noisette.ranks.launch import refuse_several_processes
from noisette.run.private import PrivateRun
from noisette.run.repeat_and_select import repeat_and_select
from noisette.training.build import TrainingSetup
from noisette.training.loop import Outcome, Watch, train
from noisette.training.recipe import Recipe
from noisette.training.report.facts import ClassFigures, Facts, SearchFacts, facts_of, power_of_ten, upward
from noisette.training.report.statement import advice
from noisette.training.search_space import ACCOUNTANT, OUTSIDE_THE_GRAPH, SearchSpace, check_recipe

PART = "right answers"  # name of the release of a noisy score in the ledger
_RECORDS = 64  # made up for the rehearsal
_REHEARSAL_NOISE = 100.0  # any will do: what a run releases depends on its noise in no other way


class PublicScore:
    """The accuracy on test examples that are stated to be public, or the test error with a minus."""

    def split(self, data: DataSet) -> tuple[DataSet, Split | None]:
        """The data set to train on, which is the whole one; a ``ValueError`` where it has no test examples."""
        if data.test is None:
            raise ValueError(
                f"{data.name} has no test examples, on which --score-on public-set compares the runs; name a public "
                "file as data.test in the recipe, or hold out records with --score-on held-out"
            )
        return data, None

    def of(self, outcome: Outcome, held: Split | None, ledger: Ledger) -> float:
        found = outcome.test
        assert found is not None, "split found test examples"
        return found.accuracy if isinstance(found, ClassFigures) else -found.rmse


@dataclass(frozen=True)
class HeldOutScore:
    """The number of right answers on records held out from training, with Gaussian noise, over a public number.

    Of a predicted number, each record counts 1 less the absolute error on the scale from -1 to 1, and at least 0.

    Guarantee: the score of a run is one Gaussian mechanism of this noise multiplier: the answer on a record depends on
    the model and that record alone, because it has a call of the model of its own, and counts from 0 to 1.
    """

    share: float
    noise_multiplier: float

    def __post_init__(self) -> None:
        checks.open_fraction(hold_out=self.share)
        checks.positive(score_noise=self.noise_multiplier)

    @classmethod
    def for_budget(cls, share: float, *, epsilon: float, delta: float) -> Self:
        """The score whose noise alone costs a tenth of this epsilon."""
        return cls(share, noise_multiplier_for(epsilon=0.1 * epsilon, delta=delta, sampling_rate=1.0, steps=1))

    def expected_records(self, trained: int) -> float:
        """How many are held out on average, from the public number of those that are trained on."""
        return max(1.0, trained * self.share / (1 - self.share))

    def split(self, data: DataSet) -> tuple[DataSet, Split | None]:
        """The data set without the records held out, and these, drawn by a key that is then forgotten."""
        parts = hold_out(replace(data, test=None), self.share, secrets.token_bytes(32))
        return replace(parts, test=data.test), parts.test

    def of(self, outcome: Outcome, held: Split | None, ledger: Ledger) -> float:
        """The score of a run, larger for a better one; what it releases is charged to the ledger first."""
        assert held is not None, "split held records out"
        total = right_answers(outcome.model, held, classes=outcome.data.target is None)
        ledger.charge(Gaussian(self.noise_multiplier, parts=((PART, 1.0),)))
        number = torch.tensor([total], dtype=torch.float64)  # one record moves it by at most one
        released = float(noised(number, self.noise_multiplier, SecretKey(), PART))
        return released / self.expected_records(outcome.data.declared_size)


Score: TypeAlias = PublicScore | HeldOutScore  # how the runs of a search are compared


@torch.no_grad()
def right_answers(model: nn.Module, examples: Split, *, classes: bool) -> float:
    """The sum over the examples of what each answer is worth, from 0 to 1: of a class, whether it is right."""
    device = next(model.parameters()).device
    with in_evaluation(model):
        return math.fsum(  # of a call each, so that an answer is the same to the last bit whatever the others are
            _worth(model(torch.as_tensor(one[None]).to(device))[0].cpu(), right, classes=classes)
            for one, right in zip(examples.inputs, examples.targets, strict=True)
        )


def _worth(output: Tensor, target: float, *, classes: bool) -> float:
    if classes:
        return float(output.argmax() == target)
    worth = 1 - abs(float(output[0]) - float(target))
    return min(max(worth, 0.0), 1.0) if math.isfinite(worth) else 0.0


@dataclass(frozen=True)
class Rehearsed:
    """What every run of a search releases."""

    step: Event
    others: dict[Event, int]  # beside its steps
    model_bytes: int  # of the largest model

    def __str__(self) -> str:
        names = [name for name, _ in getattr(self.step, "parts", ())] or ["a gradient"]
        return " and ".join([f"{' and '.join(names)} in each step", *map(repr, self.others)])


def rehearse(
    recipes: Iterable[Recipe], data: DataSet, public: DataSet | None, score: Score, noise_multiplier: float
) -> Rehearsed:
    """Take one step by each of the recipes on made-up records in the place of those of ``data``.

    A search discards what its runs raise, and is paid for even if all of them fail: mistakes have to show before.
    """
    records = random_records(data, _RECORDS)
    made_up, held = score.split(replace(records, test=records.train))
    found: list[Rehearsed] = []
    for recipe in recipes:
        ledger, rate = Ledger(dataset=data.name), recipe.training.batch_size / made_up.declared_size
        one_step = replace(recipe, training=replace(recipe.training, epochs=rate))
        noise: dict[str, Any] = {"noise_multiplier": noise_multiplier, "points": 1}
        outcome = train(one_step, made_up, public=public, ledger=ledger, on_step=lambda *_: None, **noise)
        score.of(outcome, held, ledger)
        others = {event: times for event, times in ledger.events.items() if event != outcome.run.event}
        size = sum(value.nbytes for value in outcome.model.state_dict().values())
        found.append(Rehearsed(outcome.run.event, others, size))
    first = found[0]
    for other in found:
        if (other.step, other.others) != (first.step, first.others):
            raise ValueError(
                f"the settings of --over change what a run releases, from {first} to {other}, and a search has one "
                "price for all its runs; leave out what changes that, such as privacy.clipping"
            )
    return replace(first, model_bytes=max(each.model_bytes for each in found))


@dataclass(frozen=True)
class Found:
    """The best run of a search; its score has the noise if there is any."""

    outcome: Outcome
    score: float


class Search:
    """A search over settings of a recipe, planned and rehearsed, but neither charged nor run.

    Args:
        recipe: whose budget is that of the whole search, and whose other settings all runs have.
        mean: expected number of runs, at least 1.
        shape: of the distribution of their number, as in :class:`RepeatAndSelect`. Unless given, the one with the least
            noise: the Poisson distribution, which may draw no run, only where that has a chance below 1 in 1000.

    Guarantee: up to :meth:`run` no record has entered anything but a split by a secret key and fixed features.

    Raises:
        ValueError, TypeError: the recipe cannot be searched, a number is out of its domain, or no noise is enough.
        PrivacyError: a run would be refused, or several processes are to make the search.
    """

    def __init__(
        self,
        recipe: Recipe,
        space: SearchSpace,
        score: Score,
        data: DataSet,
        *,
        public: DataSet | None = None,
        mean: float,
        shape: float | None = None,
    ) -> None:
        refuse_several_processes("a search")
        checks.all_of(
            lambda: check_recipe(recipe, public=isinstance(score, PublicScore)),
            lambda: RepeatAndSelect(((Gaussian(1.0), 1),), mean, 0.0 if shape is None else shape),
        )
        # A graph of a step with settings of a run in it would be kept in the folder of compiled graphs.
        compiled = {"compile": "no"} if space.dimensions.keys() - OUTSIDE_THE_GRAPH else {}
        # What is held out is the matter of the score.
        own = {"data": {"holdout": None}, "privacy": {"accountant": ACCOUNTANT}, "training": compiled}
        self.recipe = recipe.changed(own, "the recipe")
        self.space, self.score, self.data_name, self._public = space, score, data.name, public
        extremes = list(space.extremes(self.recipe))
        rehearsed = rehearse(extremes, data, public, score, _REHEARSAL_NOISE)
        self._data, self._held = score.split(data)
        self.declared_size = self._data.declared_size
        plan = _plan(self.recipe, self._data, rehearsed, mean, shape)
        self.event, self.epsilon, self.noise_multiplier = plan.event, plan.epsilon, plan.noise_multiplier
        self._compared = max(1, round(mean))
        all_of_them: dict[Event, int] = {event: times * self._compared for event, times in plan.event.run}
        self._epsilon_of_all = PldAccountant().compose(all_of_them).epsilon(delta=plan.delta)
        self.model_bytes = rehearsed.model_bytes
        if public is not None:
            TrainingSetup(extremes[0], self._data, public)  # refuses public examples that are records

    def run(self, ledger: Ledger, on_step: Callable[[int, PrivateRun], None]) -> Found | None:
        """Charge the search, repeat its run, and return the best one; ``None`` if no run was drawn, or all have failed.

        Settings are drawn from random bits of the operating system, which are kept nowhere. ``on_step`` gets the number
        of the run, from 1 on, and the run. They tell about the number of runs: show them to nobody from whom the
        records are to be protected, write them nowhere.

        Guarantee: that of :func:`noisette.run.repeat_and_select.repeat_and_select`. Nothing is written to disk but the
        line of the ledger.

        Raises ``KeyboardInterrupt`` where Ctrl-C was pressed, and what ``repeat_and_select`` raises.
        """
        random, number = secrets.SystemRandom(), 0

        def train_once(of_run: Ledger) -> Found | None:
            nonlocal number
            number += 1
            return self._train(self.space.draw(self.recipe, random), of_run, lambda run, _: on_step(number, run))

        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # the rehearsal has shown them; repeated, they would count the runs
            return repeat_and_select(
                ledger, self.event, train_once, score=lambda found: found.score if found else math.nan, fallback=None
            )

    def _train(self, recipe: Recipe, ledger: Ledger, on_step: Watch) -> Found:
        noise: dict[str, Any] = {"noise_multiplier": self.noise_multiplier, "points": 1}
        outcome = train(recipe, self._data, public=self._public, ledger=ledger, on_step=on_step, **noise)
        return Found(outcome, self.score.of(outcome, self._held, ledger))

    def facts(self, found: Found | None = None) -> SearchFacts:
        """The search in public numbers, before or after it was made."""
        number, score = NumberOfRuns.of(self.event), self.score
        held_out = deviation = None
        if isinstance(score, HeldOutScore):
            held_out, deviation = score.share, score.noise_multiplier / score.expected_records(self.declared_size)
        return SearchFacts(
            over={name: str(dimension) for name, dimension in self.space.dimensions.items()},
            settings=self.space.settings_of(found.outcome.recipe) if found else {},
            mean=self.event.mean,
            shape=f"{self.event.shape:g}",
            median=number.quantile(0.5),
            at_most=number.quantile(0.9),
            none=number.probability(0),
            compared=self._compared,
            epsilon_of_all=self._epsilon_of_all,
            score=found.score if found and held_out else None,
            held_out=held_out,
            score_deviation=deviation,
        )

    @property
    def announcement(self) -> list[str]:
        facts, delta = self.facts(), power_of_ten(self.recipe.privacy.delta)
        (_, steps), *_ = self.event.run
        lines = [
            f"A search over {self.space}",
            f"It costs epsilon {upward(self.epsilon)} at delta {delta}, also if it is stopped.",
            f"Its runs have {steps:,} steps with noise multiplier {self.noise_multiplier:.4g}.",
            f"Their number is {facts.runs}.",
            advice(facts, self.epsilon),
        ]
        return [line for line in lines if line]


def facts_of_search(search: Search, found: Found, ledger: Ledger) -> Facts:
    """What may be published about the best run of a search, which was charged to this ledger."""
    return replace(
        facts_of(found.outcome),
        epsilon=search.epsilon,
        released=tuple((event_facts(event), times) for event, times in ledger.events.items()),
        declarations=len(ledger.declarations),
        ledger_head=ledger.head,
        points=(),  # each of which cost the whole search too
        seconds=None,  # a first run takes longer than others
        search=search.facts(found),
    )


def _plan(recipe: Recipe, data: DataSet, rehearsed: Rehearsed, mean: float, shape: float | None) -> SearchPlan:
    """The search that keeps the budget with the least noise; a ``ValueError`` where there is none."""
    privacy, training = recipe.privacy, recipe.training
    rate, steps = schedule(training.batch_size, None, None, data.declared_size, training.epochs)
    check_delta(privacy.delta, 1 / data.declared_size, privacy.allow_large_delta)
    try:
        plan = least_noise_search(
            epsilon=privacy.epsilon,
            delta=privacy.delta,
            sampling_rate=rate,
            steps=steps,
            mean=mean,
            shape=shape,
            in_each_run=rehearsed.others,
        )
    except ValueError as error:  # no noise is enough
        what = f" and {', '.join(map(repr, rehearsed.others))}" if rehearsed.others else ""
        raise ValueError(
            f"whatever the noise, a search of {mean:g} runs on average, each of {steps} steps of rate {rate:.4g}{what} "
            f"costs more than epsilon={privacy.epsilon:g} at delta={privacy.delta:g}; choose a larger epsilon"
            f"{', more --score-noise' if rehearsed.others else ''} or fewer --runs, or a shorter run: {SEE_PLAN}"
        ) from error
    step = rehearsed.step
    assert isinstance(step, PoissonGaussian), "batches are Poisson"
    assert step.sampling_rate == rate, "a run has the rate of its recipe"
    of_a_run = {replace(step, noise_multiplier=plan.noise_multiplier): steps, **rehearsed.others}
    sampled = tuple((event, times) for event, times in of_a_run.items() if isinstance(event, Sampled))
    return replace(plan, event=replace(plan.event, run=sampled))
