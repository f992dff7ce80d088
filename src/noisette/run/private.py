"""A private training run: DP-SGD with a ledger, a budget and checkpoints."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from contextlib import ExitStack
from pathlib import Path
from types import MappingProxyType
from typing import Any, Literal, Self

from torch.optim.optimizer import Optimizer

from noisette._internal.shown_facts import as_html, as_text
from noisette.accounting import Accountant, Event, Ledger, PldAccountant
from noisette.accounting.budget import PrivacyBudget
from noisette.accounting.events import StepRelease, in_whole_rounds
from noisette.accounting.ledger.recorded_run import RecordedRun
from noisette.accounting.run_parameters import RunParameters
from noisette.clipping.per_example import PerExampleClip
from noisette.core.keys import SecretKey
from noisette.core.release import GradientBound
from noisette.ranks import AnyRanks, ranks_of
from noisette.run.checkpoint import SavedRun
from noisette.run.dataset_fingerprint import Fingerprint
from noisette.run.dp_sgd import DpSgdRun
from noisette.run.first_call import ValidateOnFirstCall
from noisette.run.model_state import capture_state
from noisette.run.ranks_agree import (
    check_own_records,
    check_same_records,
    digests_of,
    facts_of,
    ledger_on_ranks,
    settings_of,
)
from noisette.sampling.loading import Collate
from noisette.sampling.users import Users
from noisette.validation import check_no_batch_norm
from noisette.validation.optimizer import check_optimizer

# Steps reserved at once in a ledger on disk: one fsync for so many steps; after a crash as many may count too much. It
# depends on the planned number of steps alone, which is public, as the duration of a step is not.
_MOST_AT_ONCE, _FEWEST_LEASES = 64, 20


class PrivateRun(DpSgdRun):
    """A training run with a privacy guarantee: the ledger records each step before its batch is drawn.

    Made by :func:`privatize`, or by :meth:`resume` from a checkpoint of :meth:`save`. The ``steps_lost`` in a crash
    count like the others; ``extras`` is what :meth:`save` was given.
    """

    def __init__(
        self,
        bound: GradientBound,
        optimizer: Optimizer,
        dataset: Any,
        *,
        terms: RunParameters,
        accountant: Accountant,
        ledger: Ledger,
        separability: Literal["asserted"] | None = None,
        example: object = None,
        users: Users | None = None,
        collate_fn: Collate | None = None,
        steps_taken: int = 0,
        steps_lost: int = 0,
        extras: Mapping[str, Any] = MappingProxyType({}),
        key: SecretKey,
        ranks: AnyRanks,
    ) -> None:
        self._spending = PrivacyBudget(terms, accountant, ledger)
        super().__init__(
            bound,
            optimizer,
            dataset,
            key=key,
            event=terms.event,
            expected_batch_size=terms.expected_batch_size,
            steps=terms.steps,
            separability=separability,
            users=users,
            collate_fn=collate_fn,
            steps_taken=steps_taken,
            steps_lost=steps_lost,
            ranks=ranks,
        )
        self.terms = terms
        self.accountant = accountant
        self.ledger = ledger
        self.extras = extras
        self._dataset = dataset
        self._recorded = RecordedRun(terms.run)
        lease = max(1, min(_MOST_AT_ONCE, terms.steps // _FEWEST_LEASES)) if ledger.path else 1
        self._lease = in_whole_rounds(terms.event, lease)
        self._reserved = self._own_entries = 0
        self._other_entries = ledger.entries  # lines in the ledger that this object did not write
        self._known_of_first = -1.0  # the other lines of rank 0 that this rank knows of
        self._checked = self._other_releases()  # what the budget was computed with
        self._fingerprint: Fingerprint | None = None
        self._saved_in: Path | None = None
        self._own_ledger: Ledger | None = None
        self._own_ranks = self._is_closed = False
        if separability == "asserted":
            hook = ValidateOnFirstCall(bound, example)
            self._hooks.append(bound.model.register_forward_pre_hook(hook, prepend=True, with_kwargs=True))

    def __repr__(self) -> str:
        return as_text("PrivateRun", self._shown())

    def _repr_html_(self) -> str:
        return as_html("PrivateRun", self._shown())

    def _shown(self) -> dict[str, object]:
        """What was declared and how far the run is; nothing that was drawn."""
        terms = self.terms
        lost = f", {self.steps_lost} lost in a crash" if self.steps_lost else ""
        facts: dict[str, object] = {"steps": f"{self.steps_taken} of {self.steps}{lost}", "release": repr(terms.event)}
        facts["expected batch size"] = f"{terms.expected_batch_size:g}"
        if terms.epsilon is not None:
            facts["budget of epsilon"] = terms.epsilon
        if terms.delta is not None:
            facts["delta"] = terms.delta
        return facts | {"data set": self.ledger.dataset}

    @classmethod
    def on_ranks(
        cls,
        ranks: AnyRanks,
        bound: GradientBound,
        optimizer: Optimizer,
        dataset: Any,
        *,
        terms: RunParameters,
        accountant: Accountant,
        ledger: Ledger,
        own_ledger: Ledger | None,
        own_ranks: bool,
        separability: Literal["asserted"] | None,
        example: object,
        users: Users | None,
        collate_fn: Collate | None = None,
        saved: SavedRun | None = None,
    ) -> Self:
        """The run on all of its ranks, with one key, or on none; a new one, or one that goes on from a checkpoint.

        Raises:
            PrivacyError: a rank refuses, or the ranks differ.
        """
        key = ranks.key()
        taken, lost = 0, 0
        if saved is not None:
            taken, lost = saved.steps_taken, ranks.from_first("the steps lost", lambda: saved.steps_lost(ledger))
        run = None
        try:
            with ranks.unanimous("the start of the run"):
                run = cls(
                    bound,
                    optimizer,
                    dataset,
                    terms=terms,
                    accountant=accountant,
                    ledger=ledger,
                    separability=separability,
                    example=example,
                    users=users,
                    collate_fn=collate_fn,
                    steps_taken=taken,
                    steps_lost=lost,
                    extras={} if saved is None else saved.extras,
                    key=key,
                    ranks=ranks,
                )
            ranks.check_equal("the start of the run", run._facts)
            check_own_records(run._records, ranks)
            check_same_records(dataset, run._user_numbers, ranks)
            run._lease = int(ranks.largest("the lease", {"steps": run._lease})["steps"])
        except BaseException:
            if run is not None:
                run._remove_hooks()
            raise
        run._own_ledger, run._own_ranks = own_ledger, own_ranks
        return run

    def _facts(self) -> dict[str, object]:
        """What must be equal on all ranks."""
        settings = {"number of records": self._records.size, "separability": self.separability}
        return facts_of(self.bound.model, self.optimizer, settings | settings_of(self.bound))

    @property
    def event(self) -> StepRelease:
        """The release of one step."""
        return self.terms.event

    def epsilon(self, *, delta: float) -> float:
        """Epsilon spent at this delta by everything in the ledger, for adding or removing one record or user.

        Guarantee: an upper bound, up to 900.
        """
        return self._spending.epsilon(delta=delta)

    def save(self, folder: Path | str, extras: Mapping[str, Any] | None = None) -> None:
        """Write a checkpoint from which another process can resume this run; it replaces an older one.

        It holds the weights, the state of optimizer and bound, the run's parameters, the path of its ledger, and a
        keyed fingerprint of the data set. No key of noise or sampling is written, and nothing private but the
        fingerprint, whose file is deleted when the run is closed after its last step.

        Args:
            folder: created if it does not exist; its files are readable by their owner alone.
            extras: the value of ``extras`` after :meth:`resume`; its current value unless given. Tensors, numbers,
                text, and mappings and sequences of those, computed from released values only.

        Raises:
            ValueError: the ledger is in memory, so the privacy spent would be forgotten with the process.
            TypeError: something in the model, the optimizer or ``extras`` cannot be saved.
            OSError: the files cannot be written; the older checkpoint stays.
        """
        folder = Path(folder)
        if isinstance(self.bound, PerExampleClip):
            self.bound.reshard()
        if self._ranks.size > 1:
            self._ranks.check_equal(f"run.save after step {self.steps_taken}", lambda: digests_of(self.bound.model))
        with self._ranks.unanimous(f"the checkpoint after step {self.steps_taken}"):
            self._seal.before_saving()
            learned = capture_state(self.bound.model, self.optimizer)
            if self._ranks.rank == 0:
                self._write(folder, learned, self.extras if extras is None else extras)
        self._saved_in = folder

    def _write(self, folder: Path, learned: Mapping[str, Any], extras: Mapping[str, Any]) -> None:
        if self.ledger.path is None:
            raise ValueError(
                "a run whose ledger is in memory cannot be resumed, because what it spent is forgotten with the "
                "process; give privatize a Ledger(path)"
            )
        folder.mkdir(parents=True, exist_ok=True)
        if folder != self._saved_in:  # first, because a checkpoint without it could not be resumed
            if self._fingerprint is None:
                self._fingerprint = Fingerprint.of(self._dataset, self._user_numbers)
            self._fingerprint.write(folder)
        SavedRun.write(
            folder,
            self.bound,
            terms=self.terms,
            steps_taken=self.steps_taken,
            ledger=self.ledger,
            learned=learned,
            extras=extras,
        )

    @classmethod
    def resume(
        cls,
        folder: Path | str,
        bound: GradientBound,
        optimizer: Optimizer,
        dataset: Any,
        *,
        accountant: Accountant | None = None,
        ledger: Ledger | Path | str | None = None,
        separability: Literal["asserted"] | None = None,
        example: object = None,
        users: Users | None = None,
        collate_fn: Collate | None = None,
        ranks: AnyRanks | None = None,
    ) -> Self:
        """Resume a run from its checkpoint, with the steps that remain and with fresh secret randomness.

        Steps in the ledger beyond the checkpoint are spent and lost, because the crashed process may have released
        them. So a run never makes more steps than planned, however often it crashes.

        Args:
            folder: where :meth:`save` wrote the checkpoint.
            bound: of a model like the saved one, which gets the saved weights.
            optimizer: like the saved one, which gets the saved state.
            dataset: the same records.
            accountant: computes epsilon; ``PldAccountant()`` unless given.
            ledger: the run's ledger; opened at its path, relative to the folder, unless given.
            separability: as for :func:`privatize`.
            example: as for :func:`privatize`.
            ranks: as for :func:`privatize`; their number may be another one than before. Each reads the folder, so it
                lies on a file system that all share.
            users: as for :func:`privatize`, with the same ids. How batches are drawn is that of the checkpoint; a pass
                over the data that was under way is not continued, a new one begins.
            collate_fn: as for :func:`privatize`.

        Guarantee: that of :func:`privatize`, for everything that all processes of the run released together.

        Raises:
            FileNotFoundError: the checkpoint or the ledger does not exist.
            ValueError: a file was truncated or altered, or model, optimizer or data set are not those of the run; all
                are left as they were.
            PrivacyError: the ledger does not continue from the checkpoint, is in use, or has recorded so much else that
                the rest of the run would exceed its budget; and everything that :func:`privatize` refuses.
        """
        folder = Path(folder)
        own_ranks, ranks = ranks is None, ranks_of(ranks)
        with ExitStack() as undone:
            if own_ranks:
                undone.callback(ranks.close)
            with ranks.unanimous("the checkpoint"):
                saved = SavedRun.read(folder)
                check_no_batch_norm(bound.model)
                check_optimizer(optimizer, bound)
                saved.check_fits(bound, optimizer)
            ranks.check_equal(
                "the checkpoint", lambda: {"checkpoint": [saved.terms.facts(), saved.steps_taken, saved.head]}
            )
            place = folder / saved.ledger if ledger is None else ledger
            ledger, own = ledger_on_ranks(place, ranks, lambda path: saved.open_ledger(path))
            if own is not None:
                undone.callback(own.close)
            run = cls.on_ranks(
                ranks,
                bound,
                optimizer,
                dataset,
                terms=saved.terms,
                accountant=accountant if accountant is not None else PldAccountant(),
                ledger=ledger,
                own_ledger=own,
                own_ranks=own_ranks,
                separability=separability,
                example=example,
                users=users,
                collate_fn=collate_fn,
                saved=saved,
            )
            undone.callback(run._remove_hooks)
            with ranks.unanimous("the end of the checkpoint"):
                if run.steps_left:
                    run._check_data(folder)
                    run.check_budget()
                saved.restore_state(bound, optimizer)
            if ranks.size > 1:
                ranks.check_equal("the end of the checkpoint", lambda: digests_of(bound.model))
            undone.pop_all()
        run._saved_in = folder
        return run

    def _check_data(self, folder: Path) -> None:
        """Check that the records are those that the run began with."""
        self._fingerprint = Fingerprint.read(folder)
        if not self._fingerprint.fits(self._dataset, self._user_numbers):
            raise ValueError(
                "the data set is not the one that the run began with; resume it with the same records of the same users"
            )

    def check_budget(self) -> None:
        """Check that the remaining steps fit in the budget, together with everything in the ledger.

        Raises:
            PrivacyError: they do not.
        """
        with self.ledger.lock:
            self._spending.check_budget(self.steps_left)
            self._checked = self._other_releases()

    def _other_releases(self) -> Mapping[Event, int]:
        """What the ledger holds beside the steps of this object; a copy of the run may have made some of it."""
        others = Counter(self.ledger.events)
        others[self.terms.event] -= self.steps_spent + self._reserved
        return others

    def _reserve_step(self) -> None:
        """Write the step to the ledger before its batch is drawn, so that no crash can hide what was spent."""
        if self._reserved == 0:
            with (
                self._ranks.unanimous(f"the reservation of step {self.steps_taken}"),
                self.ledger.lock,  # nothing else is reserved between the check and the reservation
            ):
                others = self.ledger.entries - self._own_entries
                if others != self._other_entries and self._other_releases() != self._checked:
                    self.check_budget()  # something else was released meanwhile
                self._other_entries = others
                lease = in_whole_rounds(self.terms.event, min(self._lease, self.steps_left))
                self.ledger.reserve(self.terms.event, lease, run=self._recorded)
            self._reserved = lease
            self._own_entries += 1
            self._follow_ledger(others)

    def _steps_reserved(self) -> int:
        return min(self._reserved, self.steps_left)

    def _follow_ledger(self, others: int) -> None:
        """Where something else was released on rank 0, the other ranks learn of it."""
        if self._ranks.size == 1:
            return
        told = self._ranks.of_all("the ledger", {"others": others, "known": self._known_of_first})
        if told[0]["others"] != self._known_of_first:
            totals = self._ranks.from_first("the ledger", lambda: self.ledger.totals)
            self._known_of_first = told[0]["others"]
            if self._ranks.rank:
                self.ledger.follow(totals)

    def _commit_step(self) -> None:
        self.ledger.commit(self.terms.event, run=self._recorded)
        self._own_entries += 1
        self._reserved -= 1

    def close(self) -> None:
        """Remove every hook from model and optimizer, and return the reserved steps that were not used."""
        self._remove_hooks()
        self.bound.close()
        if self._is_closed:
            return
        self._is_closed = True
        try:
            if self._ranks.all_close():  # no rank can still release a step
                self.ledger.release(run=self._recorded)
        finally:
            if self._own_ranks:
                self._ranks.close()
            if self._own_ledger is not None:
                self._own_ledger.close()
        if self._saved_in is not None and not self.steps_left and self._ranks.rank == 0:
            Fingerprint.remove(self._saved_in)
