"""Faults of a ledger with several names, several runs, and readers beside its writer."""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping
from itertools import count
from pathlib import Path
from types import ModuleType

import pytest

from noisette.accounting import Event, Ledger, PldAccountant
from noisette.accounting import ledger_file as lines
from noisette.accounting.budget import PrivacyBudget, RunParameters
from noisette.accounting.filters import RenyiFilter
from noisette.accounting.ledger import RecordedRun, Tally
from noisette.accounting.ledger_file import LedgerFile
from noisette.run.private import LedgerAccount
from planted import Mutant


def link_replaced(patch: pytest.MonkeyPatch) -> None:
    """The path is used as it was given, so that a shorter file takes the place of a link to the ledger."""

    class System(ModuleType):
        O_NOFOLLOW, lstat, path = 0, staticmethod(os.stat), ModuleType("path")

        def __getattr__(self, name: str) -> object:
            return getattr(os, name)

    vars(System.path).update(vars(os.path), realpath=os.path.abspath)
    patch.setattr("noisette.accounting.ledger_file.os", System("os"))


def second_name_replaced(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(LedgerFile, "_is_replaceable", LedgerFile._is_at_its_path)


def renamed_file_written(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(LedgerFile, "_is_in_its_folder", lambda self, status: True)


def old_file_locked(patch: pytest.MonkeyPatch) -> None:
    """What is locked is written, whether or not the path still names it."""
    whole = LedgerFile._open

    def opened(self: LedgerFile) -> bool:
        with pytest.MonkeyPatch.context() as within:
            within.setattr(LedgerFile, "_is_at_its_path", lambda self: True)
            return whole(self)

    patch.setattr(LedgerFile, "_open", opened)


def one_run_for_all(patch: pytest.MonkeyPatch) -> None:
    """Steps are reserved for the ledger and not for a run, as if runs were distinguished by their events."""
    whole = Ledger.release

    def release(self: Ledger, *, run: RecordedRun | None = None) -> None:
        for each in list(self._unused):
            whole(self, run=each)

    patch.setattr(Ledger, "release", release)


def equal_steps_are_ones_own(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(RunParameters, "spent", lambda self, ledger: ledger.events.get(self.event, 0))

    def others(self: LedgerAccount) -> Mapping[Event, int]:
        return {event: times for event, times in self.ledger.events.items() if event != self._event}

    patch.setattr(LedgerAccount, "_other_releases", others)


def returns_checked_by_event(patch: pytest.MonkeyPatch) -> None:
    """A run may give back what another one reserved."""

    def count(self: Ledger, entry: lines.Entry, end: lines.End) -> None:
        self.entries += 1
        series = lines.Series(entry.series.event)
        self._tallies[series] = self._tallies.get(series, Tally()).after(entry.kind, entry.steps)
        if end.head:
            self._tail.add(entry, end)
        self._end = end

    patch.setattr(Ledger, "_count", count)


def checked_before_the_first_step_alone(patch: pytest.MonkeyPatch) -> None:
    """What others spend while the run goes on is not looked at."""
    whole = LedgerAccount.reserve

    def reserve(self: LedgerAccount, step: int, steps_left: int) -> None:
        self._other_lines = self.ledger.entries - self._own_lines
        whole(self, step, steps_left)

    patch.setattr(LedgerAccount, "reserve", reserve)


def cuts_hidden(patch: pytest.MonkeyPatch) -> None:
    """A reader leaves out what follows the last newline, whether or not anybody writes."""

    def contents(path: Path) -> Iterator[bytes]:
        content = path.read_bytes()
        yield content[: content.rfind(b"\n") + 1]

    patch.setattr("noisette.accounting.ledger.contents", contents)


def zeros_anywhere_dropped(patch: pytest.MonkeyPatch) -> None:
    patch.setattr("noisette.accounting.ledger_file._written", lambda content, path: content.rstrip(b"\0"))


def run_renamed_on_resume(patch: pytest.MonkeyPatch) -> None:
    """A resumed run does not find the lines of its earlier process, so that their steps are made again."""
    whole, names = RunParameters.of.__func__, count()

    def of(cls: type[RunParameters], facts: Mapping[str, object]) -> RunParameters:
        return whole(cls, {**facts, "run": f"another {next(names)}"})

    patch.setattr(RunParameters, "of", classmethod(of))


def more_steps_ignored(patch: pytest.MonkeyPatch) -> None:
    """The budget is compared with what was spent, and not with what the run still needs."""
    whole = PrivacyBudget._excess
    patch.setattr(PrivacyBudget, "_excess", lambda self, steps: whole(self, 0))


def second_run_composed(patch: pytest.MonkeyPatch) -> None:
    """A run that may have been chosen by the results of another has the noise of one declared together with it."""
    patch.setattr("noisette.run.privatize.accountant_beside", lambda earlier, accountant, **budget: accountant)


def filter_composed(patch: pytest.MonkeyPatch) -> None:
    """Declarations that were chosen by each other's results are composed."""
    patch.setattr(RenyiFilter, "compose", lambda self, events: PldAccountant().compose(events))


def plans_left_out(patch: pytest.MonkeyPatch) -> None:
    """After a look at half a run one may choose between its rest and what the filter leaves."""
    patch.setattr(RenyiFilter, "problem_of_plans", lambda self, declarations: "")


def orders_for_free(patch: pytest.MonkeyPatch) -> None:
    """Each order has the whole of delta."""
    patch.setattr("noisette.accounting.filters._SHARES", (1.0, 1.0, 1.0))


def long_leases(patch: pytest.MonkeyPatch) -> None:
    patch.setattr("noisette.accounting.ledger._FEWEST_LEASES", 1)


def unlocked_threads(patch: pytest.MonkeyPatch) -> None:
    """Two threads take the same line number."""
    import threading
    import time

    whole = lines.Entry.line

    def slowly(self: lines.Entry, after: lines.End) -> tuple[bytes, lines.End]:
        time.sleep(0.0005)
        return whole(self, after)

    class Open:
        def __enter__(self) -> None: ...
        def __exit__(self, *_: object) -> None: ...

    patch.setattr(lines.Entry, "line", slowly)
    patch.setattr(threading, "RLock", Open)


_LINKS, _READERS = "accounting/test_ledger_links.py::", "accounting/test_ledger_readers.py::"
_FILTERS = "accounting/test_filters.py::"
_RUNS, _SHARED = "accounting/test_ledger_runs.py::", "run/test_shared_ledger.py::"

MUTANTS = [
    Mutant(
        "link to the ledger replaced",
        "a later run on the file itself misses steps",
        link_replaced,
        (_LINKS + "test_every_name_shows_every_step_also_after_shortening",),
    ),
    Mutant(
        "ledger with two names replaced",
        "a later run by the other name misses steps",
        second_name_replaced,
        (
            _LINKS + "test_every_name_shows_every_step_also_after_shortening",
            _LINKS + "test_a_hard_link_that_is_made_while_the_ledger_is_open_shows_every_step",
            _LINKS + "test_a_hard_link_that_is_made_while_the_shorter_file_is_written_keeps_the_long_one",
        ),
    ),
    Mutant(
        "replaced file locked",
        "steps are written where nobody finds them",
        old_file_locked,
        (_LINKS + "test_what_is_written_is_what_the_path_names",),
    ),
    Mutant(
        "closing one run gives back the steps of another",
        "used steps of the other run are free",
        one_run_for_all,
        (
            _RUNS + "test_closing_one_run_gives_back_its_own_steps_alone",
            _SHARED + "test_closing_one_run_keeps_the_lease_of_another",
        ),
    ),
    Mutant(
        "equal steps of another run taken for one's own",
        "two runs each spend the whole budget",
        equal_steps_are_ones_own,
        (_SHARED + "test_two_runs_of_equal_terms_keep_the_budget_in_every_order",),
    ),
    Mutant(
        "returned steps checked by event alone",
        "a line of one run makes the steps of another free",
        returns_checked_by_event,
        (_RUNS + "test_a_run_that_gives_back_the_steps_of_another_is_refused",),
    ),
    Mutant(
        "other runs not looked at after the first step",
        "runs that take turns exceed the budget of each",
        checked_before_the_first_step_alone,
        (_SHARED + "test_two_runs_of_equal_terms_keep_the_budget_in_every_order",),
    ),
    Mutant(
        "needed steps left out of the check",
        "runs that take turns exceed the budget of each",
        more_steps_ignored,
        (_SHARED + "test_two_runs_of_equal_terms_keep_the_budget_in_every_order",),
    ),
    Mutant(
        "second run composed with the first",
        "a second run that is chosen by the result of the first exceeds delta",
        second_run_composed,
        (_SHARED + "test_a_second_run_has_the_noise_of_the_filter_and_costs_the_budget",),
    ),
    Mutant(
        "declarations chosen by each other's results composed",
        "a second run that is chosen by the result of the first exceeds delta",
        filter_composed,
        (
            _FILTERS + "test_a_second_run_chosen_by_the_first_stays_within_delta_by_the_filter",
            _FILTERS + "test_a_budget_beside_a_charge_is_kept_by_the_filter",
        ),
    ),
    Mutant(
        "plan of a stopped run left out",
        "one who looks at half a run chooses between two budgets",
        plans_left_out,
        (
            _FILTERS + "test_nothing_follows_a_run_that_was_stopped_before_it_spent_the_whole_budget",
            _SHARED + "test_after_a_run_with_the_whole_budget_there_is_no_other_even_if_it_was_stopped",
        ),
    ),
    Mutant(
        "each order of the filter has the whole delta",
        "delta is up to three times the stated one",
        orders_for_free,
        (_FILTERS + "test_conversion_of_one_order_is_that_of_the_library",),
    ),
    Mutant(
        "cut line hidden from readers",
        "a damaged ledger has a price",
        cuts_hidden,
        (_READERS + "test_a_line_that_was_cut_is_damage_where_nobody_writes",),
    ),
    Mutant(
        "file of zeros repaired to an empty one",
        "a ledger that was lost costs nothing",
        zeros_anywhere_dropped,
        (_READERS + "test_a_file_of_zeros_is_one_line_that_was_never_written_or_many_that_were_lost",),
    ),
    Mutant(
        "run renamed on resume",
        "steps lost in a crash are made again",
        run_renamed_on_resume,
        ("run/test_resume.py::test_what_a_dead_process_reserved_is_lost",),
    ),
    Mutant(
        "all steps of a short run in one lease",
        "a crash ends the run",
        long_leases,
        (_SHARED + "test_a_short_run_that_crashes_goes_on_for_the_steps_that_are_left",),
    ),
    Mutant(
        "threads not kept apart",
        "lines of two threads take one place, and the ledger is damaged",
        unlocked_threads,
        (_RUNS + "test_threads_may_share_a_ledger",),
    ),
    Mutant(
        "renamed file written",
        "a run and the one that takes its ledger's name count their steps apart",
        renamed_file_written,
        ("accounting/test_ledger_links.py::test_a_renamed_ledger_takes_no_more_steps",),
    ),
]
