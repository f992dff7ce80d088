"""Faults of batches for users, truncated batches and balls-in-bins batches."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from noisette.core.batches import PoissonSampler
from noisette.run import sampling as schemes
from noisette.run.agreement import Fingerprint
from noisette.run.sampling import (
    BallsInBinsSampler,
    KeptRecordsSampler,
    TruncatedPoissonSampler,
    UserRecords,
    UserSampler,
)
from planted import Mutant, Patch

_USERS = "run/test_users.py"
_TRUNCATED = "run/test_truncated.py"
_BINS = "run/test_balls_in_bins.py"
_RUNS = "run/test_kinds_of_batches.py"
_AUDIT = "audit/test_attacked_runs.py::test_the_guarantee_holds_for_users_and_is_nearly_reached"


def replaced(owner: Any, name: str, value: Any) -> Patch:
    return lambda patch: patch.setattr(owner, name, value)


def uncapped(patch: pytest.MonkeyPatch) -> None:
    make = UserRecords.__init__
    patch.setattr(UserRecords, "__init__", lambda self, users, most, key: make(self, users, 10**6, key))
    patch.setattr(UserRecords, "of", lambda self, records, most: records)


class _Zeros:
    """A key whose words are all equal."""

    def fill(self, words: np.ndarray, **stream: Any) -> None:
        words[:] = 0


def first_ones(patch: pytest.MonkeyPatch) -> None:
    make = UserRecords.__init__
    patch.setattr(UserRecords, "__init__", lambda self, users, most, key: make(self, users, most, _Zeros()))


def every_record_of_a_user(self: UserSampler, *, step: int) -> np.ndarray:
    users = PoissonSampler(len(self.records.counts), self.sampling_rate, self.key).indices(step=step)
    return np.flatnonzero(np.isin(self.records.users, users) & self.records.kept)


def together(self: KeptRecordsSampler, *, step: int) -> np.ndarray:
    """The kept records of a user enter together."""
    return every_record_of_a_user(UserSampler(self.records, self.sampling_rate, self.key), step=step)


def by_identity(patch: pytest.MonkeyPatch) -> None:
    patch.setattr("noisette.run.sampling._by_value", lambda index, value: value)


def cut(self: TruncatedPoissonSampler, *, step: int) -> np.ndarray:
    """The last records in the order of the data set are left out."""
    return PoissonSampler(self.size, self.sampling_rate, self.key).indices(step=step)[: self.largest_batch]


def not_cut(self: TruncatedPoissonSampler, *, step: int) -> np.ndarray:
    return PoissonSampler(self.size, self.sampling_rate, self.key).indices(step=step)


_in_bins = BallsInBinsSampler.indices


def same_in_each_pass(self: BallsInBinsSampler, *, step: int) -> np.ndarray:
    return _in_bins(self, step=self.first_step + (step - self.first_step) % self.bins)


def not_from_the_first_step(patch: pytest.MonkeyPatch) -> None:
    """A resumed run goes on in the middle of a pass."""
    patch.setattr(
        schemes, "BallsInBinsSampler", lambda size, bins, key, first_step: BallsInBinsSampler(size, bins, key)
    )


def drawn_in_each_step(self: BallsInBinsSampler, *, step: int) -> np.ndarray:
    return PoissonSampler(self.size, 1 / self.bins, self.key).indices(step=step)


def users_not_recognised(patch: pytest.MonkeyPatch) -> None:
    fits = Fingerprint.fits
    make = Fingerprint.of.__func__  # pyright: ignore[reportFunctionMemberAccess]
    patch.setattr(Fingerprint, "of", classmethod(lambda cls, dataset, users=None: make(cls, dataset)))
    patch.setattr(Fingerprint, "fits", lambda self, dataset, users=None: fits(self, dataset))


def missing_is_a_user(patch: pytest.MonkeyPatch) -> None:
    patch.setattr("noisette.run.sampling._is_missing", lambda value: False)


def another_cap(patch: pytest.MonkeyPatch) -> None:
    """A resumed run takes as many records of a user as it is told, whatever it pays for."""

    def user_records(event: Any, users: Any, dataset: Any, size: int, key: Any) -> UserRecords | None:
        return None if users is None else UserRecords(users.numbers(dataset, size), users.most_records, key)

    patch.setattr("noisette.run.private.user_records", user_records)


MUTANTS = [
    Mutant(
        "users keep all their records",
        "a user with many records weighs as many times more than is paid for",
        uncapped,
        (f"{_USERS}::test_each_user_keeps_at_most_the_declared_number", _AUDIT),
    ),
    Mutant(
        "a user's first records are kept",
        "who orders the data set decides whose records are used",
        first_ones,
        (f"{_USERS}::test_every_set_of_records_of_a_user_is_kept_equally_often",),
    ),
    Mutant(
        "users enter with all their records",
        "the guarantee is that of one record",
        replaced(UserSampler, "indices", every_record_of_a_user),
        (
            f"{_USERS}::test_a_user_enters_with_one_record_whatever_it_has",
            "audit/test_attacked_runs.py::test_the_guarantee_holds_where_users_are_sampled",
        ),
    ),
    Mutant(
        "the records of a user enter together",
        "several records are in one batch far more often than is paid for",
        replaced(KeptRecordsSampler, "indices", together),
        (f"{_USERS}::test_records_of_a_user_enter_independently", _AUDIT),
    ),
    Mutant(
        "ids are compared by identity",
        "each record counts as another user, and none is left out",
        by_identity,
        (f"{_USERS}::test_ids_of_all_kinds", f"{_USERS}::test_ids_that_are_refused"),
        (TypeError,),
    ),
    Mutant(
        "records without an id are one user",
        "a person among them may displace the records of others",
        missing_is_a_user,
        (f"{_USERS}::test_ids_that_are_refused",),
    ),
    Mutant(
        "batches of other records are loaded",
        "a loop of the user's own passes all records of a user",
        lambda patch: patch.setattr(UserRecords, "of", lambda self, records, most: records),
        (
            f"{_USERS}::test_batches_that_were_not_drawn_are_refused",
            f"{_RUNS}::test_a_batch_that_was_changed_is_refused",
        ),
    ),
    Mutant(
        "a resumed run takes other users",
        "records of one user are those of several from then on",
        users_not_recognised,
        (f"{_RUNS}::test_other_users_are_refused",),
    ),
    Mutant(
        "a resumed run takes more records of a user",
        "the ledger goes on with the price of fewer",
        another_cap,
        (f"{_RUNS}::test_other_users_are_refused",),
        (AttributeError,),
    ),
    Mutant(
        "truncated batches keep the first records",
        "the last records in the data set are hardly used, and the others tell how many there are",
        replaced(TruncatedPoissonSampler, "indices", cut),
        (f"{_TRUNCATED}::test_exact_distribution", f"{_TRUNCATED}::test_number_of_subsets"),
    ),
    Mutant(
        "truncated batches are not truncated",
        "the shapes of tensors and the time of a step tell the size of a batch",
        replaced(TruncatedPoissonSampler, "indices", not_cut),
        (f"{_TRUNCATED}::test_exact_distribution", f"{_RUNS}::test_the_ledger_records_how_batches_are_drawn"),
    ),
    Mutant(
        "more records than were declared are truncated",
        "batches are cut more often than is paid for",
        replaced(TruncatedPoissonSampler, "__post_init__", lambda self: None),
        (f"{_TRUNCATED}::test_more_records_than_declared_are_refused", f"{_RUNS}::test_declarations_that_are_refused"),
    ),
    Mutant(
        "every pass has the same batches",
        "what a pass released tells where a record is in the next one",
        replaced(BallsInBinsSampler, "indices", same_in_each_pass),
        (f"{_BINS}::test_law", f"{_BINS}::test_every_assignment_is_equally_likely"),
    ),
    Mutant(
        "a resumed run goes on in the middle of a pass",
        "a pass has a part of the bins only",
        not_from_the_first_step,
        (f"{_RUNS}::test_a_resumed_run_goes_on_with_the_same_kind",),
    ),
    Mutant(
        "bins are drawn in each step",
        "records are in several batches of a pass, or in none",
        replaced(BallsInBinsSampler, "indices", drawn_in_each_step),
        (f"{_BINS}::test_each_pass_has_each_record_once",),
    ),
]
