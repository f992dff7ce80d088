"""A random search: what it costs, the noise of its runs, and the runs, of which only the best leaves."""

from __future__ import annotations

import math
import secrets
import warnings
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace

from noisette import errors as checks
from noisette.accounting import Event, Gaussian, Ledger, PoissonGaussian, RepeatAndSelect
from noisette.accounting.budget_search import SEE_PLAN
from noisette.accounting.events import Sampled
from noisette.accounting.sampling_plan import check_delta, schedule
from noisette.accounting.search_plan import SHAPES, SearchComparison, SearchPlan, compare_search, least_noise_search
from noisette.data import DataSet
from noisette.ranks.choice import refuse_several_processes
from noisette.run.private import PrivateRun
from noisette.run.repeat_and_select import repeat_and_select
from noisette.training.build import TrainingSetup
from noisette.training.loop import train
from noisette.training.outcome import Outcome, Point
from noisette.training.recipe import Recipe
from noisette.training.search.rehearsal import Rehearsed, rehearse
from noisette.training.search.scores import PublicScore, Score
from noisette.training.search.space import SearchSpace

OnStep = Callable[[int, PrivateRun], None]
"""Called after each step with the number of the run, from 1 on, and the run."""

_REHEARSAL_NOISE = 100.0  # any will do: what a run releases depends on its noise in no other way
_MOST_WITHOUT_A_RUN = 1e-3
_ACCOUNTANT = "rdp"  # searches have a bound on their Rényi divergences alone


@dataclass(frozen=True)
class Found:
    """The best run of a search.

    Args:
        recipe: its settings.
        outcome: its model.
        score: by which it was the best; with its noise, if there is any.
    """

    recipe: Recipe
    outcome: Outcome
    score: float


class Search:
    """A search over settings of a recipe, planned and rehearsed, but neither charged nor run.

    Args:
        recipe: whose budget is that of the whole search, and whose other settings all runs have.
        space: the settings that are drawn for each run, and from what.
        score: how the runs are compared.
        data: the records.
        public: the data set of the recipe's public examples, if it has any.
        mean: expected number of runs, at least 1.
        shape: of the distribution of their number, as in :class:`RepeatAndSelect`. Unless given, the one with the least
            noise: the Poisson distribution, which may draw no run, only where that has a chance below 1 in 1000.

    Attributes:
        recipe: the one of the runs, before settings are drawn: its accountant is ``rdp``, the only one for searches.
        data_name: that of the records, for the ledger.
        declared_size: of the records that are trained on.
        event: what the search costs, for the ledger.
        epsilon: by that accountant, at the delta of the recipe.
        comparison: what it would cost to release as many runs, all of them.
        model_bytes: the size of the largest model.

    Guarantee: up to :meth:`run` no record has entered anything but a split by a secret key and fixed features.

    Raises:
        ValueError, TypeError: the recipe cannot be searched, a number is outside its domain, or no noise keeps the
            budget; several problems of a kind are listed together.
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
        compiled = "no" if space.changes_the_graph else recipe.training.compile
        self.recipe = replace(
            recipe,
            data=replace(recipe.data, holdout=None),  # what is held out is the matter of the score
            privacy=replace(recipe.privacy, accountant=_ACCOUNTANT),
            training=replace(recipe.training, compile=compiled),
        )
        self.space, self.score, self.data_name = space, score, data.name
        self._public = public
        extremes = list(space.extremes(self.recipe))
        rehearsed = rehearse(extremes, data, public, score, _REHEARSAL_NOISE)
        self._data, self._held = score.split(data)
        self.declared_size = self._data.declared_size
        plan = _plan(self.recipe, self._data, rehearsed, mean, shape)
        self.event, self.epsilon = plan.event, plan.epsilon
        self.noise_multiplier = plan.noise_multiplier
        self.comparison = _compared(plan)
        self.model_bytes = rehearsed.model_bytes
        if public is not None:
            TrainingSetup(extremes[0], self._data, public)  # refuses public examples that are records

    def run(self, ledger: Ledger, on_step: OnStep) -> Found | None:
        """Charge the search, repeat its run, and return the best one; ``None`` if no run was drawn, or all have failed.

        Settings are drawn from random bits of the operating system, which are kept nowhere.

        Args:
            ledger: of the data set.
            on_step: called after each step. What it shows tells about the number of runs: show it to nobody from whom
                the records are to be protected, and write it nowhere.

        Guarantee: that of :func:`noisette.run.repeat_and_select.repeat_and_select`. Nothing is written to disk but the
        line of the ledger.

        Raises:
            KeyboardInterrupt: Ctrl-C was pressed; the search is spent.
            PrivacyError, OSError: the ledger cannot record the search, or a run released more than was paid for.
        """
        random, number = secrets.SystemRandom(), 0

        def train_once(of_run: Ledger) -> Found | None:
            nonlocal number
            number += 1
            return self._train(self.space.draw(self.recipe, random), of_run, lambda run, _: on_step(number, run))

        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # the rehearsal has shown them; repeated, they would count the runs
            return repeat_and_select(
                ledger,
                self.event,
                train_once,
                score=lambda found: found.score if found else math.nan,
                fallback=None,
            )

    def _train(self, recipe: Recipe, ledger: Ledger, on_step: Callable[[PrivateRun, Point], None]) -> Found:
        """One run, whose releases go into this ledger."""
        outcome = train(
            recipe,
            self._data,
            public=self._public,
            ledger_path=None,
            on_step=on_step,
            points=1,
            ledger=ledger,
            noise_multiplier=self.noise_multiplier,
        )
        if outcome.interrupted:
            raise KeyboardInterrupt  # ends the search, and not the run alone
        return Found(recipe, outcome, self.score.of(outcome, self._held, ledger))


def check_recipe(recipe: Recipe, *, public: bool) -> None:
    """Check that a recipe can be searched.

    Args:
        recipe: the settings.
        public: whether runs are compared on the test examples of the recipe.

    Raises:
        ValueError: it cannot; all problems are listed.
    """
    checks.all_of(
        lambda: _check_noise(recipe),
        lambda: _check_batches(recipe),
        lambda: _check_held_out(recipe, public=public),
    )


def _check_noise(recipe: Recipe) -> None:
    privacy = recipe.privacy
    if privacy.noise_multiplier is not None:
        raise ValueError(
            f"privacy.noise_multiplier = {privacy.noise_multiplier:g} fixes the noise, which a search computes from "
            "its budget and --runs; leave it out of the recipe"
        )
    if privacy.accountant not in (_ACCOUNTANT, "pld"):
        raise ValueError(
            f'accountant = "{privacy.accountant}" has no bound for searches, which are priced by {_ACCOUNTANT}; leave '
            "it out of the recipe"
        )


def _check_batches(recipe: Recipe) -> None:
    if recipe.data.users is not None:
        raise ValueError(
            "a search has a guarantee for records, not for users; leave users out of the recipe, or train once with "
            "noisette train"
        )
    if recipe.training.batches != "poisson":
        raise ValueError(f'the batches of a search are Poisson; leave batches = "{recipe.training.batches}" out')


def _check_held_out(recipe: Recipe, *, public: bool) -> None:
    if recipe.data.holdout is not None and public:
        raise ValueError(
            f"holdout = {recipe.data.holdout:g} makes the test examples private records, whose exact figures must not "
            "choose among runs; give --score-on held-out, which adds noise"
        )


def _plan(recipe: Recipe, data: DataSet, rehearsed: Rehearsed, mean: float, shape: float | None) -> SearchPlan:
    """The search that keeps the budget with the least noise.

    Raises:
        ValueError: there is none.
    """
    privacy, training = recipe.privacy, recipe.training
    rate, steps = schedule(training.batch_size, None, None, data.declared_size, training.epochs)
    check_delta(privacy.delta, 1 / data.declared_size, privacy.allow_large_delta)
    plans: list[SearchPlan] = []
    for chosen in _shapes(mean) if shape is None else [shape]:
        try:
            plan = least_noise_search(
                epsilon=privacy.epsilon,
                delta=privacy.delta,
                sampling_rate=rate,
                steps=steps,
                mean=mean,
                shape=chosen,
                in_each_run=rehearsed.others,
            )
        except ValueError:
            continue  # no noise is enough
        plans.append(plan)
    if not plans:
        what = f" and {', '.join(map(repr, rehearsed.others))}" if rehearsed.others else ""
        raise ValueError(
            f"whatever the noise, a search of {mean:g} runs on average, each of {steps} steps of rate {rate:.4g}{what} "
            f"costs more than epsilon={privacy.epsilon:g} at delta={privacy.delta:g}; choose a larger epsilon"
            f"{', more --score-noise' if rehearsed.others else ''} or fewer --runs, or a shorter run: {SEE_PLAN}"
        )
    plan = min(plans, key=lambda each: each.noise_multiplier)
    step = rehearsed.step
    assert isinstance(step, PoissonGaussian), "batches are Poisson"
    assert step.sampling_rate == rate, "a run has the rate of its recipe"
    exact = replace(step, noise_multiplier=plan.noise_multiplier)
    event = replace(plan.event, run=_in_order({exact: steps, **rehearsed.others}))
    return replace(plan, event=event)


def _shapes(mean: float) -> list[float]:
    """The shapes to choose from: the Poisson distribution is one of them if it hardly ever draws no run."""
    return [shape for shape in SHAPES if shape < math.inf or math.exp(-mean) < _MOST_WITHOUT_A_RUN]


def _in_order(releases: Mapping[Event, int]) -> tuple[tuple[Sampled, int], ...]:
    return tuple((event, times) for event, times in releases.items() if isinstance(event, Sampled))


def _compared(plan: SearchPlan) -> SearchComparison:
    return compare_search(dict(plan.event.run), runs=max(1, round(plan.event.mean)), delta=plan.delta)
