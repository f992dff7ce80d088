"""Faults of the ledger, the price, and of runs that go on in another process."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from noisette.accounting import Ledger, RdpAccountant
from noisette.accounting.budget import PrivacyBudget
from noisette.accounting.calibrate import least_noisy
from noisette.accounting.events import StepRelease
from noisette.accounting.ledger import Tally
from noisette.accounting.ledger_file import End, Entry, Kind, LedgerFile, sealed_entries
from noisette.core.steps import DpSgd
from noisette.run.agreement import Fingerprint
from noisette.run.checkpoint import SavedRun
from noisette.run.private import LedgerAccount, PrivateRun
from planted import Mutant


def ledger_afterwards(patch: pytest.MonkeyPatch) -> None:
    """A step is written down when it is released, not before its batch is drawn."""
    reserve, commit = LedgerAccount.reserve, LedgerAccount.commit
    patch.setattr(LedgerAccount, "reserve", lambda self, step, steps_left: None)

    def before_release(self: LedgerAccount) -> None:
        reserve(self, 0, 1)
        commit(self)

    patch.setattr(LedgerAccount, "commit", before_release)


def not_synced(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(LedgerFile, "_sync", lambda self, *, new: None)


def committed_afterwards(patch: pytest.MonkeyPatch) -> None:
    """A release that breaks off half-way is given back."""
    whole = DpSgd._before_step

    def before_step(self: PrivateRun, *args: Any) -> None:
        commit = LedgerAccount.commit
        with pytest.MonkeyPatch.context() as later:
            later.setattr(LedgerAccount, "commit", lambda self: None)
            whole(self, *args)
        commit(self._paid)

    patch.setattr(DpSgd, "_before_step", before_step)


def commits_alone(patch: pytest.MonkeyPatch) -> None:
    """What counts is what is known to have happened."""
    patch.setattr(Tally, "paid", property(lambda self: self.committed + self.charged))


def leases_of_the_dead_given_back(patch: pytest.MonkeyPatch) -> None:
    whole = Ledger.__init__

    def init(self: Ledger, *args: Any, **kwargs: Any) -> None:
        whole(self, *args, **kwargs)
        for series, tally in self._tallies.items():
            self._unused[self._unnamed][series.event] += tally.reserved - tally.committed - tally.given_back
        self._unnamed.id = next((series.run for series in self._tallies), self._unnamed.id)

    patch.setattr(Ledger, "__init__", init)


def given_back_again(patch: pytest.MonkeyPatch) -> None:
    """What could not be given back is tried again, though nobody knows what reached the disk."""

    def release(self: Ledger) -> None:
        for event, steps in list(self._unused[self._unnamed].items()):
            if steps:
                self._append(Kind.RELEASE, event, steps, self._unnamed, durable=True)
                del self._unused[self._unnamed][event]

    patch.setattr(Ledger, "release", release)


def unlocked(patch: pytest.MonkeyPatch) -> None:
    patch.setattr("noisette.accounting.ledger_file._lock", lambda descriptor: None)


def digests_unread(patch: pytest.MonkeyPatch) -> None:
    """Lines are read whatever their digests say."""

    def entry_after(end: End, content: bytes) -> tuple[Entry, End] | None:
        line = content[end.size : content.find(b"\n", end.size) + 1]
        try:
            entry = Entry.parse(line)
        except (ArithmeticError, KeyError, RecursionError, TypeError, ValueError):
            return None
        return entry, End(end.lines + 1, end.size + len(line), entry.line(end)[1].head)

    patch.setattr("noisette.accounting.ledger_file._entry_after", entry_after)


def any_ledger(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(Ledger, "holds", lambda self, head: True)


def lost_steps_forgotten(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(SavedRun, "steps_lost", lambda self, ledger: 0)


def any_records(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(Fingerprint, "fits", lambda *_: True)


def key_kept(patch: pytest.MonkeyPatch) -> None:
    """The key of the noise is saved with the run."""
    whole = PrivateRun.save

    def save(self: PrivateRun, folder: Path, extras: Any = None) -> None:
        whole(self, folder, {**(extras or {}), "key": self._sampler.key._secret.hex()})

    patch.setattr(PrivateRun, "save", save)


def other_releases_forgotten(patch: pytest.MonkeyPatch) -> None:
    """The budget is looked upon as that of one run alone."""

    def alone(*possible: Any, prior_events: Any, **numbers: Any) -> StepRelease:
        return least_noisy(*possible, **numbers)

    patch.setattr("noisette.run.privatize.least_noisy", alone)
    patch.setattr(PrivacyBudget, "check_budget", lambda self, steps: None)


def tail_forgotten(patch: pytest.MonkeyPatch) -> None:
    patch.setattr("noisette.accounting.budget.NOISE_TAIL", 0.0)


def too_little_noise(patch: pytest.MonkeyPatch) -> None:
    """The search for the noise ends on the wrong side of the budget."""

    def beyond(*possible: Any, epsilon: float, **numbers: Any) -> StepRelease:
        return least_noisy(*possible, epsilon=1.03 * epsilon, **numbers)

    patch.setattr("noisette.run.privatize.least_noisy", beyond)


def budget_kept_roughly(patch: pytest.MonkeyPatch) -> None:
    whole = PrivacyBudget.check_budget

    def check_budget(self: PrivacyBudget, steps: int) -> None:
        if self._terms.epsilon is not None:
            self._terms = replace(self._terms, epsilon=1.01 * self._terms.epsilon)
        whole(self, steps)

    patch.setattr(PrivacyBudget, "check_budget", check_budget)


def budget_unchecked(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(PrivacyBudget, "check_budget", lambda self, steps: None)


def amplified_twice(patch: pytest.MonkeyPatch) -> None:
    """The price is that of half the sampling rate."""
    whole = RdpAccountant.compose

    def price(self: RdpAccountant, events: Any) -> Any:
        halved = {
            replace(event, sampling_rate=event.sampling_rate / 2) if hasattr(event, "sampling_rate") else event: times
            for event, times in events.items()
        }
        return whole(self, halved)

    patch.setattr(RdpAccountant, "compose", price)


def repaired_by_dropping(patch: pytest.MonkeyPatch) -> None:
    """Mending drops every line from the first bad one on, also reservations that were used."""

    def repaired(content: bytes, path: Path) -> bytes:
        lines = content.splitlines(keepends=True)
        while lines:
            try:
                for _ in sealed_entries(b"".join(lines), path):
                    pass
                break
            except ValueError:
                lines.pop()
        return b"".join(lines)

    patch.setattr("noisette.accounting.ledger_file.repaired", repaired)


MUTANTS = [
    Mutant(
        "ledger after instead of before",
        "a crash hides the step that it interrupts",
        ledger_afterwards,
        ("run/test_private_run.py::test_step_is_reserved_before_its_batch_is_drawn",),
    ),
    Mutant(
        "ledger not synced",
        "a crash of the machine hides steps",
        not_synced,
        (
            "accounting/test_ledger.py::test_the_reservation_is_on_disk_before_reserve_returns",
            "accounting/test_ledger_kills.py::test_a_ledger_whose_sync_failed_is_written_no_more",
        ),
    ),
    Mutant(
        "step committed after its release",
        "a release that breaks off is given back, and its noise drawn again",
        committed_afterwards,
        ("run/test_resume.py::test_a_release_that_breaks_off_is_paid_for_and_never_repeated",),
    ),
    Mutant(
        "commits alone are counted",
        "a crash hides up to one lease of steps",
        commits_alone,
        ("accounting/test_ledger.py::test_what_counts_is_what_is_reserved",),
    ),
    Mutant(
        "leases of dead processes given back",
        "a crash hides up to one lease of steps",
        leases_of_the_dead_given_back,
        ("accounting/test_ledger.py::test_a_crash_keeps_the_reservation",),
    ),
    Mutant(
        "steps given back twice",
        "a full disk makes the price too small",
        given_back_again,
        ("accounting/test_ledger.py::test_steps_whose_release_failed_are_not_given_back_later",),
    ),
    Mutant(
        "ledger not locked",
        "two runs each price their own steps alone",
        unlocked,
        (
            "accounting/test_ledger_lock.py::test_a_second_object_is_refused_until_the_first_is_closed",
            "run/test_resume.py::test_two_runs_at_once_are_refused",
        ),
    ),
    Mutant(
        "digests of the ledger not read",
        "an altered ledger has a price",
        digests_unread,
        ("accounting/test_ledger.py::test_a_missing_line_and_swapped_lines_are_refused",),
    ),
    Mutant(
        "mending drops whole lines",
        "reservations that were used are forgotten",
        repaired_by_dropping,
        ("accounting/test_ledger.py::test_repair_refuses_what_no_crash_leaves",),
    ),
    Mutant(
        "any ledger accepted on resume",
        "an older copy makes steps free",
        any_ledger,
        ("run/test_resume.py::test_a_ledger_that_was_put_back_is_refused",),
    ),
    Mutant(
        "steps lost in a crash forgotten",
        "a run makes more steps than were planned",
        lost_steps_forgotten,
        ("run/test_resume.py::test_steps_that_were_taken_after_the_run_was_saved_are_lost",),
    ),
    Mutant(
        "other records accepted on resume",
        "the price is that of other records",
        any_records,
        ("run/test_resume.py::test_other_records_are_refused",),
    ),
    Mutant(
        "key saved with the run",
        "who reads the checkpoint can take the noise off",
        key_kept,
        (
            "run/test_resume.py::test_no_secret_and_no_record_is_written",
            "assurance/test_security.py::test_no_key_is_written_or_printed",
        ),
    ),
    Mutant(
        "other releases forgotten",
        "two runs each spend the whole budget",
        other_releases_forgotten,
        ("run/test_resume.py::test_a_budget_is_that_of_everything_in_the_ledger",),
    ),
    Mutant(
        "budget not checked",
        "given noise may cost any epsilon",
        budget_unchecked,
        (
            "run/test_private_run.py::test_given_noise_must_keep_a_given_budget",
            "run/test_private_run.py::test_what_others_spend_meanwhile_ends_a_run_with_a_budget",
        ),
    ),
    Mutant(
        "budget kept roughly",
        "a run costs a hundredth more than it may",
        budget_kept_roughly,
        ("assurance/test_edges.py::test_a_budget_is_kept_to_its_last_digits",),
    ),
    Mutant(
        "tail of the noise forgotten",
        "delta is larger than stated",
        tail_forgotten,
        ("run/test_private_run.py::test_epsilon_where_delta_is_below_the_tail",),
    ),
    Mutant(
        "too little noise found",
        "epsilon is above the budget",
        too_little_noise,
        ("run/test_private_run.py::test_calibrated_run_stays_within_its_budget",),
    ),
    Mutant(
        "half the sampling rate priced",
        "epsilon is about half of what it is",
        amplified_twice,
        ("accounting/test_prices.py::test_oracle_table",),
    ),
]
