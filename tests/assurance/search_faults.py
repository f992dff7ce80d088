"""Faults of searches and of the closed form."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from random import Random
from typing import Any

import pytest
import torch
from scipy.special import ndtr
from torch import nn

from noisette.accounting import Ledger, RepeatAndSelect
from noisette.accounting.closed_forms import GdpCurve
from noisette.accounting.ledger import RecordedRun
from noisette.accounting.repeated_runs import NumberOfRuns, SearchPlan
from noisette.core.noise import SecretKey
from noisette.data import Split
from noisette.nn.batch_norm import in_evaluation
from noisette.run.private import PrivateRun
from noisette.training import search
from noisette.training import search_space as space
from noisette.training.evaluation import Outcome, Point
from noisette.training.recipe import Recipe
from noisette.training.search import Found, HeldOutScore, Search
from planted import Mutant

_SEARCH = "run/test_repeat_and_select.py"
_COMMAND = "cli/test_search_command.py"
_OF_RECIPES = "training/test_search.py"
_SCORES = "training/test_search_scores.py"
_SPACE = "training/test_search_space.py"


def charged_afterwards(patch: pytest.MonkeyPatch) -> None:
    """The search is written down only once its number of runs is known."""
    whole = Ledger.charge

    def charge(self: Ledger, event: RepeatAndSelect, times: int = 1, *, run: RecordedRun | None = None) -> None:
        if isinstance(event, RepeatAndSelect):
            NumberOfRuns.of(event).draw(SecretKey())
        whole(self, event, times, run=run)

    patch.setattr(Ledger, "charge", charge)


def scored_together(patch: pytest.MonkeyPatch) -> None:
    """The records held out are one batch of the model."""

    def right_answers(model: nn.Module, examples: Split, *, classes: bool) -> float:
        with torch.no_grad(), in_evaluation(model):
            outputs = model(torch.as_tensor(examples.inputs))
        return float((outputs.argmax(1) == torch.as_tensor(examples.targets)).sum())

    patch.setattr(search, "right_answers", right_answers)
    patch.setattr("test_search_scores.right_answers", right_answers)


def uncharged(patch: pytest.MonkeyPatch) -> None:
    """The score is charged to a ledger that nobody keeps."""
    whole = HeldOutScore.of

    def of(self: HeldOutScore, outcome: Outcome, held: Split | None, ledger: Ledger) -> float:
        return whole(self, outcome, held, Ledger())

    patch.setattr(HeldOutScore, "of", of)


def cut_short(patch: pytest.MonkeyPatch) -> None:
    """A run that Ctrl-C ended has failed like others, and the next one begins."""

    whole = Search._train

    def train(self: Search, recipe: Recipe, ledger: Ledger, on_step: Callable[[PrivateRun, Point], None]) -> Found:
        try:
            return whole(self, recipe, ledger, on_step)
        except KeyboardInterrupt as stop:
            raise RuntimeError("stopped") from stop

    patch.setattr(Search, "_train", train)


def priced_as_one_run(patch: pytest.MonkeyPatch) -> None:
    """The noise of a single run that keeps the budget."""
    whole = search.least_noise_search

    def least_noise_search(**numbers: Any) -> SearchPlan:
        alone = whole(**numbers | {"mean": 1.0, "shape": 1.0})
        return replace(alone, event=replace(alone.event, mean=numbers["mean"]))

    patch.setattr(search, "least_noise_search", least_noise_search)


def log_of_the_search(patch: pytest.MonkeyPatch) -> None:
    """Each run leaves a line with its settings in the folder of the search."""
    whole = Search._train

    def train(self: Search, recipe: Recipe, ledger: Ledger, on_step: Callable[[PrivateRun, Point], None]) -> Found:
        for folder in Path().glob("*.unfinished-1"):
            with (folder / "runs.txt").open("a") as lines:
                lines.write(f"{recipe}\n")
        return whole(self, recipe, ledger, on_step)

    patch.setattr(Search, "_train", train)


def cancelling(patch: pytest.MonkeyPatch) -> None:
    """The difference of two nearly equal numbers, without an allowance for its rounding."""

    def log_delta(self: GdpCurve, epsilon: float) -> float:
        first, second = ndtr(self.mu / 2 - epsilon / self.mu), ndtr(-self.mu / 2 - epsilon / self.mu)
        return math.log(max(first - math.exp(min(epsilon, 700.0)) * second, 1e-320))

    patch.setattr(GdpCurve, "_log_delta", log_delta)


MUTANTS = [
    Mutant(
        "a search is charged after its number of runs is drawn",
        "a process that is killed in between can draw again for more runs",
        charged_afterwards,
        (f"{_SEARCH}::test_the_search_is_on_disk_before_the_number_is_drawn",),
    ),
    Mutant(
        "the number of runs of a search is fixed",
        "the best of a known number of runs costs far more than the best of a random one",
        lambda patch: patch.setattr(NumberOfRuns, "draw", lambda self, key: round(self.mean)),
        (
            f"{_SEARCH}::test_numbers_of_runs_differ_between_searches",
            "accounting/test_number_of_runs.py::test_draws_have_the_distribution",
        ),
    ),
    Mutant(
        "records held out are scored as one batch",
        "a model that mixes its batch lets one record change the answers on all others, beyond the noise",
        scored_together,
        (f"{_SCORES}::test_one_record_moves_the_count_by_one_at_most",),
    ),
    Mutant(
        "a wrong number counts as much as it is wrong",
        "one record moves the score of a regression by any amount",
        lambda patch: patch.setattr(
            search, "_worth", lambda output, target, classes: 1 - abs(float(output[0]) - float(target))
        ),
        (
            f"{_SCORES}::test_one_record_moves_the_worth_of_numbers_by_one_at_most",
            f"{_SCORES}::test_answers_that_are_no_numbers_are_worth_nothing",
        ),
    ),
    Mutant(
        "the score on records has no noise",
        "the best run is chosen by, and published with, an exact count of records",
        lambda patch: patch.setattr(search, "_noised", lambda total, noise_multiplier: total),
        (f"{_SCORES}::test_noise_has_the_charged_standard_deviation_and_is_fresh",),
    ),
    Mutant(
        "the score on records is not charged",
        "each run costs more than the search has paid for",
        uncharged,
        (
            f"{_SCORES}::test_noise_has_the_charged_standard_deviation_and_is_fresh",
            f"{_OF_RECIPES}::test_each_run_releases_its_steps_and_its_score_and_no_more",
        ),
    ),
    Mutant(
        "the score reads records that are trained on",
        "what is reported as held out is not",
        lambda patch: patch.setattr(HeldOutScore, "split", lambda self, data: (data, data.train)),
        (f"{_SCORES}::test_records_held_out_are_not_trained_on_and_their_number_is_not_used",),
    ),
    Mutant(
        "Ctrl-C ends one run of a search",
        "whoever stops runs that look bad chooses among more runs than are paid for",
        cut_short,
        (f"{_OF_RECIPES}::test_an_interrupt_ends_the_search_and_not_the_run_alone",),
    ),
    Mutant(
        "a search is rehearsed on records",
        "steps on records are released before anything is charged",
        lambda patch: patch.setattr(search, "_made_up", lambda data: data),
        (f"{_OF_RECIPES}::test_the_rehearsal_reads_no_record",),
    ),
    Mutant(
        "a search has the noise of one run",
        "the whole search costs more than its budget",
        priced_as_one_run,
        (f"{_OF_RECIPES}::test_the_whole_search_keeps_the_budget_by_an_accountant_of_its_own",),
    ),
    Mutant(
        "the settings of a search are drawn from a seed",
        "the place of the winner among the draws tells about the number of runs",
        lambda patch: patch.setattr(search.secrets, "SystemRandom", lambda: Random(0)),
        (f"{_OF_RECIPES}::test_settings_are_not_drawn_from_seeds",),
    ),
    Mutant(
        "each run of a search leaves a line in the folder",
        "the settings of the others, and how many they were, are published with the best",
        log_of_the_search,
        (f"{_COMMAND}::test_the_folder_does_not_tell_how_long_the_search_took",),
    ),
    Mutant(
        "the ledger of a search keeps the time of its beginning",
        "the times of the files in the folder tell how long the search took, and so how many runs it had",
        lambda patch: patch.setattr(Path, "touch", lambda self: None),
        (f"{_COMMAND}::test_the_folder_does_not_tell_how_long_the_search_took",),
    ),
    Mutant(
        "a search may draw the batch size",
        "runs of different prices are paid for as if they had one",
        lambda patch: patch.setattr(space, "_REFUSED", {}),
        (f"{_SPACE}::test_what_changes_the_price_or_nothing_is_refused_with_the_way_out",),
    ),
    Mutant(
        "the closed form loses its digits",
        "delta is stated too small",
        cancelling,
        ("accounting/test_gdp.py::test_delta_of_thousands_of_curves",),
    ),
]
