"""A private training run: the checks before it, its parts, its guarantee, and what it keeps on disk."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from contextlib import ExitStack
from functools import partial
from pathlib import Path
from types import MappingProxyType, TracebackType
from typing import TYPE_CHECKING, Any, Protocol, Self, runtime_checkable

import torch
from torch import nn
from torch.optim.optimizer import Optimizer

from noisette.accounting import Accountant, Ledger, PldAccountant
from noisette.accounting.budget import PrivacyBudget, RunParameters
from noisette.accounting.events import BandedGaussian, StepRelease, UserLevel
from noisette.accounting.ledger import LedgerAccount, as_html, as_text, declared
from noisette.capture.captured import Schedule, schedule_of
from noisette.core.batches import Batch
from noisette.core.loss import is_sharded
from noisette.core.noise import GaussianNoise, SecretKey, Source, never
from noisette.core.release import GaussianRelease, GradientBound, NoisySums, OwnNoise
from noisette.core.steps import DpSgd, Parts, RandomStates, check_free, differing_parameters, seed_torch
from noisette.errors import PrivacyError
from noisette.ranks import AnyRanks, ranks_of
from noisette.run.loading import Collate, JointBatch, MeasuredSize, fetch_of, memory_of, records_of, without_frames
from noisette.run.per_example import PerExampleClip
from noisette.run.sampling import Users, sampler_of, user_records

if TYPE_CHECKING:
    from noisette.clipping.engines import RecordedCall
    from noisette.run.agreement import Fingerprint
    from noisette.run.checkpoint import SavedRun


def batch_mixing_modules(model: nn.Module) -> list[str]:
    """One line for each module that is known to mix examples: its name, its class, and what to do instead.

    A module may state it in an attribute ``mixes_examples``.
    """
    named = [(name or "the model itself", module, _mixing(module)) for name, module in model.named_modules()]
    return [f"{name}  {type(module).__name__} {problem}" for name, module, problem in named if problem]


def _mixing(module: nn.Module) -> str:
    if isinstance(module, nn.modules.batchnorm._BatchNorm) and (module.training or module.running_mean is None):
        return (
            "mixes examples: put GroupNorm or PublicBatchNorm in its place, as noisette.nn.convert_batch_norm(model, "
            "to=torch.nn.GroupNorm) does (`noisette train` has --batch-norm group for it), or call .eval() on it"
        )
    is_instance_norm = isinstance(module, nn.modules.instancenorm._InstanceNorm)
    if is_instance_norm and module.training and module.running_mean is not None:
        return (
            "mixes examples in its running statistics: build it with track_running_stats=False, or call .eval() on it"
        )
    return getattr(module, "mixes_examples", "")


def check_no_batch_norm(model: nn.Module) -> None:
    """No module of the model normalises over the batch.

    Raises:
        PrivacyError: listing every module that does.
    """
    if problems := batch_mixing_modules(model):
        raise PrivacyError(f"modules of the model mix examples ({len(problems)} in all):\n  " + "\n  ".join(problems))


def check_optimizer(optimizer: Optimizer, bound: GradientBound) -> None:
    """Check that the optimizer can be used in a private run with this bound, and has its parameters.

    Raises:
        PrivacyError: it needs a closure or calls no hooks; or the parameters differ, which are listed.
    """
    if "_optimizer_step_pre_hooks" not in vars(optimizer) or not getattr(type(optimizer).step, "hooked", False):
        raise PrivacyError(
            f"step() of this {type(optimizer).__name__} calls no step hooks, so nothing would be released before it: "
            "give privatize the optimizer that it wraps, and step the wrapper; or let its class call "
            "torch.optim.Optimizer.__init__"
        )
    if isinstance(optimizer, torch.optim.LBFGS):
        raise PrivacyError("LBFGS needs a closure, which computes gradients that are not private; use SGD or Adam")
    if problems := differing_parameters(optimizer, bound):
        raise PrivacyError(
            "the optimizer and the bound have different parameters:\n  " + "\n  ".join(problems) + "\n"
            "Freeze the parameters that are not trained (requires_grad=False) before you create the bound, and give "
            "the optimizer all others."
        )


def ledger_on_ranks(
    given: Ledger | Path | str | None, ranks: AnyRanks, open_own: Callable[[Path], Ledger] = Ledger
) -> tuple[Ledger, Ledger | None]:
    """The ledger of a run, that of rank 0, of which the others keep a copy in memory; again if it was opened here.

    Raises:
        PrivacyError: another rank than 0 was given a file, or has recorded other releases.
    """
    own: Ledger | None = None
    with ranks.unanimous("the ledger"):
        if ranks.rank == 0:
            if isinstance(given, str | Path):
                given = own = open_own(Path(given))
            ledger = given if given is not None else Ledger()
        elif isinstance(given, Ledger) and given.path is not None:
            raise PrivacyError(
                f"rank {ranks.rank} has opened the ledger {given.path} itself; give privatize the path, "
                f"ledger={str(given.path)!r}, which rank 0 alone opens"
            )
        else:
            ledger = given if isinstance(given, Ledger) else Ledger()
    if ranks.size == 1:
        return ledger, own
    first = ranks.from_first(
        "the ledger", lambda: {"dataset": ledger.dataset, "totals": ledger.totals, "on disk": ledger.path is not None}
    )
    if ranks.rank and not isinstance(given, Ledger):
        ledger = Ledger.mirror(first["dataset"], first["totals"])
    with ranks.unanimous("the ledger"):
        if isinstance(given, str | Path) and not first["on disk"]:
            raise PrivacyError(f"rank {ranks.rank} was given the ledger {given}, and rank 0 none; give it to all ranks")
        if ledger.events != Ledger.mirror(first["dataset"], first["totals"]).events:
            raise PrivacyError(f"the ledger of rank {ranks.rank} has other releases than that of rank 0")
    return ledger, own


@runtime_checkable
class HoldsNoise(Protocol):
    """A hook before a module's forward pass that draws numbers for it: at ``hold``, for all passes until ``let_go``."""

    def hold(self, module: nn.Module) -> None: ...
    def let_go(self) -> None: ...


def held_noise(model: nn.Module) -> Callable[[Callable[[], int]], Callable[[], None]] | None:
    """What draws the numbers of a model's hooks once for a batch; ``None`` for a model without such hooks.

    With another draw for each microbatch, or on each rank, one record more would move all those behind it to others.
    The function that is returned takes what gives the seed of all ranks, draws, and returns what ends the batch.
    """
    hooks = [(part, each) for part in model.modules() for each in part._forward_pre_hooks.values()]
    found = [(part, each) for part, each in hooks if isinstance(each, HoldsNoise)]
    if not found:
        return None

    def let_go() -> None:
        for _, each in found:
            each.let_go()

    def hold(seed: Callable[[], int]) -> Callable[[], None]:
        before = RandomStates.now()
        seed_torch(seed())
        try:
            for part, each in found:
                each.hold(part)
        except BaseException:
            let_go()
            raise
        finally:
            before.restore()
        return let_go

    return hold


def _source_of(schedule: Schedule | None, devices: set[torch.device], still_to_come: Callable[[], float]) -> Source:
    """What computes noise more quickly than NumPy, where there is a GPU or compiling is allowed."""
    if (schedule is None or not schedule.compiles) and all(device.type == "cpu" for device in devices):
        return never
    from noisette.noise.device import CompiledNoise

    return CompiledNoise(schedule, still_to_come)


def _joint_noise(noise: GaussianNoise, event: StepRelease, steps: int, ranks: AnyRanks, together: bool) -> NoisySums:
    """How sums are added up and noised: by banded noise where it is declared, over ranks where there are several."""
    if not isinstance(event, BandedGaussian) and not together:
        return OwnNoise(noise)
    from noisette.noise.banded import BandedNoise, correlation_of, deviations_of
    from noisette.ranks.joint_sums import JointSums

    correlation = correlation_of(event, steps)
    if correlation == (1.0,):
        return JointSums(noise, ranks) if together else OwnNoise(noise)
    return JointSums(BandedNoise(noise, correlation), ranks, deviations_of(correlation))


class PrivateRun(DpSgd):
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
        users: Users | None = None,
        collate_fn: Collate | None = None,
        steps_taken: int = 0,
        steps_lost: int = 0,
        extras: Mapping[str, Any] = MappingProxyType({}),
        key: SecretKey,
        ranks: AnyRanks,
    ) -> None:
        event, batch_size, steps_spent = terms.event, terms.expected_batch_size, steps_taken + steps_lost
        dataset = without_frames(dataset)
        dtypes = {p.dtype for p in bound.parameters.values()}
        records = records_of(dataset, collate_fn, dtypes.pop() if len(dtypes) == 1 else None)
        by_user = user_records(event, users, dataset, records.size, key)
        if isinstance(event, UserLevel) and by_user is not None:
            records = by_user.of(records, event.records)
        self._spending = PrivacyBudget(terms, accountant, ledger)
        self._paid = LedgerAccount(
            ledger,
            event,
            terms.recorded,
            self._spending.check_budget,
            ranks,
            steps=terms.steps,
            steps_spent=steps_spent,
        )
        devices = {p.device for p in bound.parameters.values()}
        together = any(map(is_sharded, bound.parameters.values()))
        # The ranks of a sharded model take every microbatch together; others meet once a step.
        kind = partial(JointBatch, ranks=ranks) if together else Batch
        schedule = bound.schedule if isinstance(bound, PerExampleClip) else schedule_of("auto")
        noise = GaussianNoise(key, _source_of(schedule, devices, self._paid.still_to_come))
        joint = _joint_noise(noise, event, terms.steps - steps_spent, ranks, ranks.size > 1 or together)
        if isinstance(bound, PerExampleClip):
            bound.ranks = ranks
        super().__init__(
            bound,
            optimizer,
            Parts(
                sampler=sampler_of(event, records.size, key, first_step=steps_taken, users=by_user),
                records=records,
                new_batch=partial(kind, records=records, measured=MeasuredSize(memory_of(devices))),
                open_fetch=partial(fetch_of, records.gather),
                release=GaussianRelease(key, event.noise_multiplier, batch_size, joint),
                account=self._paid,
                ranks=ranks,
                key=key,
                hold_noise=held_noise(bound.model),
            ),
            sampling_rate=event.sampling_rate,
            expected_batch_size=batch_size,
            steps=terms.steps,
            steps_taken=steps_taken,
            steps_lost=steps_lost,
        )
        self.terms = terms
        self.accountant = accountant
        self.ledger = ledger
        self.extras = extras
        self._all_ranks = ranks
        self._dataset = dataset
        self._user_numbers = None if by_user is None else by_user.users
        self._fingerprint: Fingerprint | None = None
        self._saved_in: Path | None = None
        self._own_ledger: Ledger | None = None
        self._own_ranks = self._is_closed = False

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
        cls, make: Callable[..., Self], ranks: AnyRanks, *, own_ledger: Ledger | None, own_ranks: bool
    ) -> Self:
        """The run on all of its ranks, with one key, or on none.

        ``make`` gives the run of this rank, from key and ranks. ``own_ledger`` is closed with the run, and so are the
        ranks if they are its own.
        """
        key = ranks.key()
        run = None
        try:
            with ranks.unanimous("the start of the run"):
                run = make(key=key, ranks=ranks)
            if ranks.size > 1:
                from noisette.run.agreement import check_same_records, facts_of

                facts = {"number of records": run._records.size}
                ranks.check_equal("the start of the run", lambda: facts | facts_of(run.bound, run.optimizer))
                check_same_records(run._dataset, run._records, run._user_numbers, ranks)
                run._paid.lease = int(ranks.largest("the lease", {"steps": run._paid.lease})["steps"])
        except BaseException:
            if run is not None:
                run.end()
            raise
        run._own_ledger, run._own_ranks = own_ledger, own_ranks
        return run

    @property
    def event(self) -> StepRelease:
        """The release of one step."""
        return self.terms.event

    def epsilon(self, *, delta: float) -> float:
        """Epsilon spent at this delta by everything in the ledger, for adding or removing one record or user.

        With other declarations in the ledger it is that of an odometer, which holds however they were chosen by each
        other's results, or the run's budget if that holds and is less.

        Guarantee: an upper bound, up to 900.
        """
        return self._spending.epsilon(delta=delta)

    @property
    def is_beside_others(self) -> bool:
        """Whether the ledger holds other declarations, by whose results this run may have been chosen."""
        return len(declared([*self.ledger.paid.items(), (self.terms.recorded.series(self.event), 1)])) > 1

    def before_call(self) -> None:
        """Called before a loop calls the model itself with records of the batch: random numbers are secret then."""
        self._keep_seed_secret()

    def accumulate_recorded(self, calls: Sequence[RecordedCall], scale: float) -> None:
        """Lines 2 and 3 for a loop that computes losses by itself: a piece of the current microbatch.

        ``calls`` of the model have the same records as rows, and the gradients that arrived at their outputs, which are
        multiplied with ``scale``. A PrivacyError if more rows came than examples of the microbatch are left.
        """
        assert isinstance(self.bound, PerExampleClip)
        batch, count = self._batch, calls[0].count
        if batch is None or batch.current is None or count > batch.current:
            self._current_batch(count)
            return
        self.bound.accumulate_recorded(calls, scale)
        batch.bounded += count
        batch.current = batch.current - count or None

    def check_budget(self) -> None:
        """A PrivacyError if the remaining steps do not fit in the budget, with everything in the ledger."""
        self._paid.check_budget(self.steps_left)

    def save(self, folder: Path | str, extras: Mapping[str, Any] | None = None) -> None:
        """Write a checkpoint from which another process can resume this run; it replaces an older one.

        It holds the weights, the state of optimizer and bound, the run's parameters and the path of its ledger, no key
        of noise or sampling, and nothing private but a keyed fingerprint of the data set, whose file is deleted when
        the run is closed after its last step.

        Args:
            folder: created if it does not exist; its files are readable by their owner alone.
            extras: the value of ``extras`` after :meth:`resume`; its current value unless given. Tensors, numbers,
                text, and mappings and sequences of those, computed from released values only.

        Raises:
            ValueError: the ledger is in memory, so the privacy spent would be forgotten with the process.
            TypeError: something in the model, the optimizer or ``extras`` cannot be saved.
            OSError: the files cannot be written; the older checkpoint stays.
        """
        from noisette.run.agreement import Fingerprint, digests_of
        from noisette.run.checkpoint import capture_state, write

        folder = Path(folder)
        if isinstance(self.bound, PerExampleClip):
            self.bound.reshard()
        if self._all_ranks.size > 1:
            self._all_ranks.check_equal(f"run.save after step {self.steps_taken}", lambda: digests_of(self.bound.model))
        with self._all_ranks.unanimous(f"the checkpoint after step {self.steps_taken}"):
            learned = capture_state(self.bound.model, self.optimizer)
            if self._all_ranks.rank == 0:
                if self.ledger.path is None:
                    raise ValueError(
                        "a run whose ledger is in memory cannot be resumed, because what it spent is forgotten with "
                        "the process; give privatize a Ledger(path)"
                    )
                folder.mkdir(parents=True, exist_ok=True)
                if folder != self._saved_in:  # first, because a checkpoint without it could not be resumed
                    if self._fingerprint is None:
                        self._fingerprint = Fingerprint.of(self._dataset, self._user_numbers)
                    self._fingerprint.write(folder)
                write(folder, self.saved(folder, learned, self.extras if extras is None else extras).facts())
        self._saved_in = folder

    def saved(self, beside: Path, learned: Mapping[str, Any], extras: Mapping[str, Any]) -> SavedRun:
        """What a checkpoint in the folder ``beside`` says of the run, whose ledger is a file."""
        from noisette.run.checkpoint import SavedRun

        return SavedRun.of(
            self.bound, self.terms, self.steps_taken, self.ledger, beside=beside, learned=learned, extras=extras
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
        users: Users | None = None,
        collate_fn: Collate | None = None,
        ranks: AnyRanks | None = None,
        saved: SavedRun | None = None,
    ) -> Self:
        """Resume a run from its checkpoint, with the steps that remain and with fresh secret randomness.

        Steps in the ledger beyond the checkpoint are spent and lost, because the crashed process may have released
        them. So a run never makes more steps than planned, however often it crashes.

        Args:
            folder: where :meth:`save` wrote the checkpoint; all ranks read it, whose number may be another one.
            bound, optimizer: of a model like the saved one; they get the saved weights and state.
            dataset, users: the same records, and the same ids. Batches are drawn as before; a pass over the data that
                was under way is not continued, a new one begins.
            accountant, collate_fn, ranks: as for :func:`privatize`.
            ledger: the run's ledger; opened at its path, relative to the folder, unless given.
            saved: what the checkpoint says, where another file holds it; the folder has the fingerprint of the records.

        Guarantee: that of :func:`privatize`, for everything that all processes of the run released together.

        Raises:
            FileNotFoundError: the checkpoint or the ledger does not exist.
            ValueError: a file was cut or altered, or model, optimizer or data set are not those of the run; all are
                left as they were.
            PrivacyError: the ledger does not continue from the checkpoint, is in use, or leaves too little of the
                budget; and everything that :func:`privatize` refuses.
        """
        from noisette.run.agreement import digests_of
        from noisette.run.checkpoint import SavedRun

        folder = Path(folder)
        own_ranks, ranks = ranks is None, ranks_of(ranks)
        with ExitStack() as undone:
            if own_ranks:
                undone.callback(ranks.close)
            with ranks.unanimous("the checkpoint"):
                saved = SavedRun.read(folder) if saved is None else saved
                check_no_batch_norm(bound.model)
                check_optimizer(optimizer, bound)
                check_free(optimizer, bound)
                saved.check_fits(bound, optimizer)
            ranks.check_equal(
                "the checkpoint", lambda: {"checkpoint": [saved.terms.facts(), saved.steps_taken, saved.head]}
            )
            place = folder / saved.ledger if ledger is None else ledger
            ledger, own = ledger_on_ranks(place, ranks, saved.open_ledger)
            if own is not None:
                undone.callback(own.close)
            make = partial(
                cls,
                bound,
                optimizer,
                dataset,
                terms=saved.terms,
                accountant=accountant if accountant is not None else PldAccountant(),
                ledger=ledger,
                users=users,
                collate_fn=collate_fn,
                steps_taken=saved.steps_taken,
                steps_lost=ranks.from_first("the steps lost", lambda: saved.steps_lost(ledger)),
                extras=saved.extras,
            )
            run = cls.on_ranks(make, ranks, own_ledger=own, own_ranks=own_ranks)
            undone.callback(run.end)
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
        from noisette.run.agreement import Fingerprint

        self._fingerprint = Fingerprint.read(folder)
        if not self._fingerprint.fits(self._dataset, self._user_numbers):
            raise ValueError(
                "the data set is not the one that the run began with; resume it with the same records of the same users"
            )

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        if isinstance(error, RuntimeError) and "maybe_level.has_value()" in str(
            error
        ):  # torch's word for such a tensor
            error.add_note(
                "A tensor that the loss kept was read after the loss had returned: the loss of private records keeps "
                "nothing between its calls. To log a loss, compute one of public records after optimizer.step()"
            )
        super().__exit__(kind, error, traceback)

    def close(self) -> None:
        """Remove every hook from model and optimizer, and return the reserved steps that were not used."""
        super().close()
        if self._is_closed:
            return
        self._is_closed = True
        try:
            if self._all_ranks.all_close():  # no rank can still release a step
                self._paid.give_back()
        finally:
            if self._own_ranks:
                self._all_ranks.close()
            if self._own_ledger is not None:
                self._own_ledger.close()
        if self._saved_in is not None and not self.steps_left and self._all_ranks.rank == 0:
            from noisette.run.agreement import Fingerprint

            Fingerprint.remove(self._saved_in)
