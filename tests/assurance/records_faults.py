"""Faults of gaps between records, of collation, of loading ahead, and of records that each process holds."""

from __future__ import annotations

import os
from typing import Any

import numpy as np
import pytest

from noisette.core import batches as gaps
from noisette.run import collation, loading
from noisette.run import loading as fetching
from noisette.run.private import LedgerAccount
from planted import Mutant

_GAPS = "core/test_gaps.py"
_FETCHING = "run/test_fetching.py"
_OWN = "run/test_own_records.py"
_ALONE = "redteam/test_collation_alone.py"
_COLLATION = "run/test_collation.py"

_at_gaps = gaps.records_at_gaps


def more_often(patch: pytest.MonkeyPatch) -> None:
    """One gap in 2^16 thresholds falls a little short: the mark between two gaps is moved by a word."""
    certain = gaps._certain_gaps

    def rounded(words: np.ndarray, rate: float, size: int) -> np.ndarray:
        found = certain(words, rate, size)
        nearest = np.floor(np.log((words.astype(float) + 0.5) * 2.0**-64) / np.log1p(-rate)).clip(0, size) + 1
        return np.where(found == 0, np.maximum(1, nearest - 1), found).astype(np.int64)

    patch.setattr(gaps, "_certain_gaps", rounded)


def by_chunk(patch: pytest.MonkeyPatch) -> None:
    """Every chunk of words begins at the first word of the stream."""

    class FromTheFirst:
        def __init__(self, key: Any) -> None:
            self.key = key

        def fill(self, words: np.ndarray, *, start: int = 0, **stream: Any) -> None:
            self.key.fill(words, **stream)

    patch.setattr(
        "noisette.core.batches.records_at_gaps",
        lambda size, rate, key, **stream: _at_gaps(size, rate, FromTheFirst(key), **stream),  # pyright: ignore[reportArgumentType]
    )


def one_too_early(patch: pytest.MonkeyPatch) -> None:
    """Gaps of the largest whole number below: the first record is never left out by a gap of one."""
    certain = gaps._certain_gaps
    patch.setattr(gaps, "_certain_gaps", lambda words, rate, size: np.maximum(1, certain(words, rate, size) - 1))


def key_for_processes(patch: pytest.MonkeyPatch) -> None:
    """Processes get the bytes of a key, to draw for themselves."""
    make = fetching.WorkerRecords.__init__

    def init(self: Any, gather: Any) -> None:
        make(self, gather)
        self.secret = os.urandom(32)

    patch.setattr(fetching.WorkerRecords, "__init__", init)


def beyond_the_lease(patch: pytest.MonkeyPatch) -> None:
    whole = LedgerAccount.reserve

    def reserve(self: LedgerAccount, step: int, steps_left: int) -> None:
        whole(self, step, steps_left)
        self.reserved = steps_left

    patch.setattr(LedgerAccount, "reserve", reserve)


def all_held(patch: pytest.MonkeyPatch) -> None:
    """A process loads what others hold as well, at the places of its own records."""

    def held(self: loading.Records, indices: np.ndarray) -> np.ndarray:
        return indices if self.own is None else np.unique(indices % len(self.own))

    patch.setattr(loading.Records, "held", held)


def stale_plan(patch: pytest.MonkeyPatch) -> None:
    """What was loaded ahead is handed out whatever is asked for."""
    whole = fetching.Fetch.__call__

    def call(self: fetching.Fetch, part: np.ndarray, plan: Any) -> Any:
        return whole(self, self._planned[0] if self._planned else part, plan)

    patch.setattr(fetching.Fetch, "__call__", call)


def global_seeds(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(fetching, "generator_apart", lambda: None)


def collated_together(patch: pytest.MonkeyPatch) -> None:
    def gather(self: loading.EachAlone, at: np.ndarray) -> Any:
        records = [loading.record(self._dataset, index) for index in at.tolist()]
        return (self._collate or collation.collated)(records)

    patch.setattr(loading.EachAlone, "__call__", gather)


def fetched_together(patch: pytest.MonkeyPatch) -> None:
    def gather(self: loading.EachAlone, at: np.ndarray) -> Any:
        together = getattr(self._dataset, "__getitems__", lambda at: [self._dataset[index] for index in at])
        records = together(at.tolist())
        return (
            collation.collated(records)
            if self._collate is None
            else collation.joined([self._collate([record]) for record in records])
        )

    patch.setattr(loading.EachAlone, "__call__", gather)


def any_first_axis(patch: pytest.MonkeyPatch) -> None:
    """Rows are joined whatever they are: of two positions by two, the first examples get those of the first record."""
    patch.setattr(collation, "_check_row", lambda shape, name: None)


def forms_unchecked(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(collation, "check_one_form", lambda records, remedy: None)


MUTANTS = [
    Mutant(
        "records are collated together",
        "one record decides how others are padded, sorted and normalised",
        collated_together,
        (
            f"{_ALONE}::test_neighbours[sorting]",
            f"{_ALONE}::test_neighbours[normalising]",
            f"{_ALONE}::test_neighbours[mixing]",
            f"{_ALONE}::test_padding_to_the_longest_is_refused_and_buckets_are_the_remedy",
        ),
    ),
    Mutant(
        "records are fetched together",
        "a transform on batches sees all of them",
        fetched_together,
        (
            f"{_ALONE}::test_neighbours[transform]",
            f"{_ALONE}::test_neighbours[transform and subset]",
            "run/test_loading.py::test_rows_of_a_table_are_asked_for_one_at_a_time",
        ),
    ),
    Mutant(
        "what has not the record on its first axis is joined",
        "rows of one record count as those of another",
        any_first_axis,
        (f"{_COLLATION}::test_what_cannot_be_joined_is_refused", f"{_ALONE}::test_graphs_come_one_at_a_time"),
    ),
    Mutant(
        "records of several forms are collated",
        "the first record decides the fields and types of all others",
        forms_unchecked,
        (
            f"{_COLLATION}::test_records_of_two_forms_are_refused",
            f"{_COLLATION}::test_a_record_of_another_form_does_not_change_what_others_are_computed_with",
        ),
        (RuntimeError, KeyError, TypeError, ValueError),
    ),
    Mutant(
        "gaps are rounded where a word does not decide",
        "records come more often than is paid for, where no count shows it",
        more_often,
        (f"{_GAPS}::test_words_at_a_threshold_are_decided_by_further_bits",),
    ),
    Mutant(
        "gaps are one too short",
        "a rate far above the one that is priced",
        one_too_early,
        (f"{_GAPS}::test_every_record_and_every_pair", f"{_GAPS}::test_the_gap_is_that_of_the_formula"),
    ),
    Mutant(
        "gaps begin anew with every chunk",
        "records at equal places of two chunks enter together",
        by_chunk,
        (f"{_GAPS}::test_how_many_words_are_drawn_at_once_does_not_matter",),
    ),
    Mutant(
        "loading processes get a secret",
        "who reads their memory or their pipes knows batches and noise",
        key_for_processes,
        (f"{_FETCHING}::test_processes_get_no_key",),
    ),
    Mutant(
        "batches are drawn ahead beyond the lease",
        "a crash hides a batch that was drawn",
        beyond_the_lease,
        (f"{_FETCHING}::test_batches_are_drawn_ahead_within_the_ledger",),
    ),
    Mutant(
        "each process loads the records of the others as its own",
        "records enter more often than is paid for",
        all_held,
        (f"{_OWN}::test_parts_make_the_whole_batch[0.5]",),
    ),
    Mutant(
        "what was loaded ahead is handed out for something else",
        "records enter twice, or in a batch that did not draw them",
        stale_plan,
        (f"{_FETCHING}::test_another_plan_drops_what_was_ahead",),
    ),
    Mutant(
        "loading processes draw seeds from the global generator",
        "its state, which is saved, tells how many plans a batch took",
        global_seeds,
        (f"{_FETCHING}::test_the_global_generator_does_not_see_how_often_processes_begin_anew",),
    ),
]
