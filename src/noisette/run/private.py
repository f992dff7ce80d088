"""Private training of a model and an optimizer of one's own: what is checked, the parts of a run, and what it keeps."""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping, Sequence
from contextlib import ExitStack
from functools import partial
from pathlib import Path
from types import MappingProxyType
from typing import TYPE_CHECKING, Any, Self

import torch
from torch import nn
from torch.nn.modules.batchnorm import _BatchNorm
from torch.nn.modules.instancenorm import _InstanceNorm
from torch.optim.optimizer import Optimizer

from noisette.accounting import Accountant, Ledger, PldAccountant, atomic_files
from noisette.accounting.budget import PrivacyBudget, RunParameters, check_delta, check_numbers
from noisette.accounting.calibrate import cheapest, least_noisy, schedule, with_releases
from noisette.accounting.events import BandedGaussian, StepRelease, UserLevel, check_events
from noisette.accounting.filters import accountant_beside
from noisette.accounting.ledger import Displayed, LedgerAccount
from noisette.capture.captured import schedule_of
from noisette.core.batches import Batch
from noisette.core.loss import is_sharded
from noisette.core.noise import GaussianNoise, SecretKey, Source
from noisette.core.release import GaussianRelease, GradientBound, NoisySums, OwnNoise, parts_of
from noisette.core.steps import DpSgd, Parts, RandomStates, differing_parameters, seed_torch, unfinished_runs
from noisette.errors import PrivacyError, all_of, offers, plain
from noisette.ranks import AnyRanks, ranks_of
from noisette.run.loading import Collate, JointBatch, MeasuredSize, fetch_of, memory_of, records_of, without_frames
from noisette.run.per_example import PerExampleClip
from noisette.run.sampling import Poisson, Sampling, Users, releases, sampler_of, user_records

if TYPE_CHECKING:
    from noisette.clipping.engines import RecordedCall
    from noisette.run.checkpoint import Fingerprint, SavedRun


def batch_mixing_modules(model: nn.Module) -> list[str]:
    """For each module that mixes examples, also by its attribute ``mixes_examples``: name, class, and a remedy."""

    def problem(module: nn.Module) -> str:
        if isinstance(module, _BatchNorm) and (module.training or module.running_mean is None):
            return (
                "mixes examples: call .eval() on it, or put GroupNorm or PublicBatchNorm in its place, as by "
                "noisette.nn.convert_batch_norm(model, to=torch.nn.GroupNorm) or `noisette train --batch-norm group`"
            )
        if isinstance(module, _InstanceNorm) and module.training and module.running_mean is not None:
            return "mixes examples in its running statistics: build it with track_running_stats=False, or call .eval()"
        return getattr(module, "mixes_examples", "")

    return said_of_modules(model, problem)


def said_of_modules(model: nn.Module, about: Callable[[nn.Module], object]) -> list[str]:
    """For each module of which there is a text to say: its name, its class, and the text."""
    said = [(name or "the model itself", type(part).__name__, about(part)) for name, part in model.named_modules()]
    return [f"{name}  {kind} {text}" for name, kind, text in said if text and isinstance(text, str)]


def check_no_batch_norm(model: nn.Module) -> None:
    """Check that no module of the model normalises over the batch; a PrivacyError lists every one that does."""
    if problems := batch_mixing_modules(model):
        raise PrivacyError(f"modules of the model mix examples ({len(problems)} in all):\n  " + "\n  ".join(problems))


def check_optimizer(optimizer: Optimizer, bound: GradientBound) -> None:
    """Check that the optimizer needs no closure, calls hooks, has the parameters of the bound, and has no other run."""
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
    for run in (*unfinished_runs(optimizer), *unfinished_runs(bound.model)):
        raise PrivacyError(
            f"another run still trains these parameters: it has taken {run.steps_taken} of its {run.steps} steps. End "
            "it by run.close(), or where its handle is lost by noisette.close_run(model); the model keeps its weights"
        )


def ledger_on_ranks(
    given: Ledger | Path | str | None, ranks: AnyRanks, owned: ExitStack, open_own: Callable[[Path], Ledger] = Ledger
) -> Ledger:
    """The ledger of a run, that of rank 0, of which the others keep a copy in memory; one opened here is ``owned``."""
    with ranks.unanimous("the ledger"):
        if not isinstance(given, Ledger | Path | str | None):  # releases would be in no ledger that anyone reads
            raise TypeError(f"expected ledger as a noisette.Ledger or the path of its file, got {given!r}")
        if ranks.rank == 0 and isinstance(given, str | Path):
            given = open_own(Path(given))
            owned.callback(given.close)
        if ranks.rank and isinstance(given, Ledger) and given.path is not None:
            raise PrivacyError(
                f"rank {ranks.rank} has opened the ledger {given.path} itself; give privatize the path, "
                f"ledger={str(given.path)!r}, which rank 0 alone opens"
            )
        ledger = given if isinstance(given, Ledger) else Ledger()
    if ranks.size == 1:
        return ledger
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
    return ledger


def held_noise(model: nn.Module) -> Callable[[Callable[[], int]], Callable[[], None]] | None:
    """What draws the numbers of a model's hooks once for a batch; ``None`` for a model without such hooks.

    A hook draws at ``hold(module)``, for all passes until ``let_go()``. With another draw for each microbatch, or on
    each rank, one record more would move all those behind it to others. The function that is returned takes what gives
    the seed of all ranks, draws, and returns what ends the batch.
    """
    hooks: list[tuple[nn.Module, Any]] = [(m, each) for m in model.modules() for each in m._forward_pre_hooks.values()]
    found = [(part, each) for part, each in hooks if hasattr(each, "hold") and hasattr(each, "let_go")]

    def hold(seed: Callable[[], int]) -> Callable[[], None]:
        before = RandomStates.now()
        seed_torch(seed())
        try:
            with ExitStack() as held:
                for part, each in found:
                    held.callback(each.let_go)
                    each.hold(part)
                return held.pop_all().close
        finally:
            before.restore()

    return hold if found else None


def _joint_noise(noise: GaussianNoise, event: StepRelease, steps: int, ranks: AnyRanks, together: bool) -> NoisySums:
    """How sums are added up and noised: by banded noise where it is declared, over ranks where there are several."""
    bands = event.bands if isinstance(event, BandedGaussian) else 1
    if bands == 1 and not together:
        return OwnNoise(noise)
    from noisette.ranks.joint_sums import JointSums

    if bands == 1:
        return JointSums(noise.add_, ranks)
    from noisette.noise.banded import BandedNoise, banded_coefficients, deviations_of

    correlation = banded_coefficients(bands, max(1, steps))
    return JointSums(BandedNoise(noise, correlation).add_, ranks, deviations_of(correlation))


class PrivateRun(Displayed, DpSgd):
    """A training run with a privacy guarantee: the ledger records each step before its batch is drawn.

    Made by :func:`privatize`, or by :meth:`resume` from a checkpoint of :meth:`save`. ``event`` is the release of one
    step. The ``steps_lost`` in a crash count like the others; ``extras`` is what :meth:`save` was given.
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
        event, batch_size, spent = terms.event, terms.expected_batch_size, steps_taken + steps_lost
        dataset = without_frames(dataset)
        dtypes = {p.dtype for p in bound.parameters.values()}
        records = records_of(dataset, collate_fn, dtypes.pop() if len(dtypes) == 1 else None)
        by_user = user_records(event, users, dataset, records.size, key)
        if isinstance(event, UserLevel) and by_user is not None:
            records = by_user.of(records, event.records)
        self.spending = PrivacyBudget(terms, accountant, ledger)
        self._paid = LedgerAccount(
            ledger, event, terms.recorded, self.spending.check_budget, ranks, steps=terms.steps, steps_spent=spent
        )
        devices = {p.device for p in bound.parameters.values()}
        together = any(map(is_sharded, bound.parameters.values()))
        # The ranks of a sharded model take every microbatch together; others meet once a step.
        kind = partial(JointBatch, ranks=ranks) if together else Batch
        captured = bound.schedule if isinstance(bound, PerExampleClip) else schedule_of("auto")
        source: Source | None = None
        if (captured is not None and captured.compiles) or any(device.type != "cpu" for device in devices):
            from noisette.noise.device import CompiledNoise

            source = CompiledNoise(captured, self._paid.still_to_come)  # quicker than NumPy
        noise = GaussianNoise(key, source)
        joint = _joint_noise(noise, event, terms.steps - spent, ranks, ranks.size > 1 or together)
        if isinstance(bound, PerExampleClip):
            bound.ranks = ranks
        parts = Parts(
            sampler=sampler_of(event, records.size, key, first_step=steps_taken, users=by_user),
            records=records,
            new_batch=partial(kind, records=records, measured=MeasuredSize(memory_of(devices))),
            open_fetch=partial(fetch_of, records.gather, expected=batch_size),
            release=GaussianRelease(key, event.noise_multiplier, batch_size, joint),
            account=self._paid,
            ranks=ranks,
            key=key,
            hold_noise=held_noise(bound.model),
        )
        super().__init__(
            bound,
            optimizer,
            parts,
            sampling_rate=event.sampling_rate,
            expected_batch_size=batch_size,
            steps=terms.steps,
            steps_taken=steps_taken,
            steps_lost=steps_lost,
        )
        self.terms, self.event, self.accountant, self.ledger, self.extras = terms, event, accountant, ledger, extras
        self._all_ranks, self._dataset, self.users = ranks, dataset, users
        self._user_numbers = None if by_user is None else by_user.users
        self._fingerprint: Fingerprint | None = None
        self._saved_in: Path | None = None
        self._owned = ExitStack()  # closed with the run
        self._is_closed = False

    def _shown(self) -> dict[str, object]:
        """What was declared and how far the run is; nothing that was drawn."""
        terms = self.terms
        lost = f", {self.steps_lost} lost in a crash" if self.steps_lost else ""
        facts = {
            "steps": f"{self.steps_taken} of {self.steps}{lost}",
            "release": repr(terms.event),
            "expected batch size": f"{terms.expected_batch_size:g}",
            "budget of epsilon": terms.epsilon,
            "delta": terms.delta,
            "data set": self.ledger.dataset,
        }
        return {name: value for name, value in facts.items() if value is not None}

    @classmethod
    def on_ranks(cls, make: Callable[..., Self], ranks: AnyRanks, owned: ExitStack) -> Self:
        """The run that ``make`` gives, from key and ranks, on all of its ranks with one key, or on none.

        What is ``owned``, such as a ledger that was opened for it, is closed with the run.
        """
        key = ranks.key()
        run = None
        try:
            with ranks.unanimous("the start of the run"):
                run = make(key=key, ranks=ranks)
            if ranks.size > 1:
                from noisette.run.checkpoint import check_same_records, facts_of

                size = run._records.size
                ranks.check_equal("the start of the run", lambda: facts_of(run.bound, run.optimizer, size))
                run._fingerprint = check_same_records(run._dataset, run._records, run._user_numbers, ranks)
                run._paid.lease = int(ranks.largest("the lease", {"steps": run._paid.lease})["steps"])
        except BaseException:
            if run is not None:
                run.end()
            raise
        run._owned = owned.pop_all()
        return run

    def epsilon(self, *, delta: float) -> float:
        """Epsilon spent at this delta by everything in the ledger, for adding or removing one record or user.

        It counts the steps that were taken. In its file the ledger has reserved up to 64 more, which count after a
        crash, and in :meth:`statement` until the run is closed.

        Guarantee: an upper bound, up to 900; with other declarations in the ledger also where they were chosen by each
        other's results.
        """
        return self.spending.epsilon(self.ledger.made, delta=delta)

    def statement(self, delta: float) -> str:
        """The privacy statement of the run so far, as ``noisette train`` writes it; a notebook shows it too.

        It leaves out what a loop of one's own may break: nothing is said of seeds, of test figures, of what was printed
        or by what the settings were chosen. Needs ``pip install 'noisette[cli]'``, as does :meth:`report`.

        Raises:
            TypeError: the bound is neither a ``PerExampleClip`` nor a ``LipschitzBound``.
        """
        from noisette.training.report.facts import facts_of_run
        from noisette.training.report.statement import Statement, as_text, statement

        facts = facts_of_run(self, delta)
        return Statement(as_text(statement(facts), title=f"Privacy statement of a run on {facts.data}"))

    def report(self, path: Path | str, *, delta: float) -> None:
        """Write one HTML page: settings, epsilon against steps, bounds on attacks, and the :meth:`statement`."""
        from noisette.training.report.page import own_page

        atomic_files.write(Path(path), own_page(self, delta).encode(errors="backslashreplace"))

    def accumulate_recorded(self, calls: Sequence[RecordedCall], scale: float) -> None:
        """Lines 2 and 3 for a loop that computes losses by itself: a piece of the current microbatch.

        ``calls`` of the model have the same records as rows; ``scale`` multiplies the gradients that arrived at their
        outputs. A PrivacyError if more rows came than examples of the microbatch are left.
        """
        assert isinstance(self.bound, PerExampleClip)
        batch, count = self._batch, calls[0].count
        if batch is None or batch.current is None or count > batch.current:
            self._current_batch(count)
            return
        self.bound.accumulate_recorded(calls, scale)
        batch.bounded += count
        batch.current = batch.current - count or None

    def save(self, folder: Path | str, extras: Mapping[str, Any] | None = None) -> None:
        """Write a checkpoint from which another process can resume this run; it replaces an older one.

        It holds weights, states, parameters of the run and the path of its ledger, no key, and nothing private but a
        keyed fingerprint of the data set, whose file is deleted when the run is closed after its last step.

        Args:
            folder: created if it does not exist; its files are readable by their owner alone.
            extras: what ``extras`` is after :meth:`resume`: tensors, numbers, text, and mappings and sequences of
                those, computed from released values only.

        Raises:
            ValueError: the ledger is in memory.
            TypeError: something in the model, the optimizer or ``extras`` cannot be saved.
            OSError: the files cannot be written; the older checkpoint stays.
        """
        from noisette.run.checkpoint import Fingerprint, capture_state, digests_of, write

        folder = Path(folder)
        if isinstance(self.bound, PerExampleClip):
            self.bound.reshard()
        if self._all_ranks.size > 1:
            self._all_ranks.check_equal(f"run.save after step {self.steps_taken}", lambda: digests_of(self.bound.model))
        with self._all_ranks.unanimous(f"the checkpoint after step {self.steps_taken}"):
            learned = capture_state(self.bound.model, self.optimizer, self._all_ranks)
            if self._all_ranks.rank == 0:
                if self.ledger.path is None:
                    raise ValueError(
                        "a run whose ledger is in memory cannot be resumed, because what it spent is forgotten with "
                        "the process; give privatize, or in an Opacus loop PrivacyEngine, ledger=PATH"
                    )
                folder.mkdir(parents=True, exist_ok=True)
                if folder != self._saved_in:  # first, because a checkpoint without it could not be resumed
                    self._fingerprint = self._fingerprint or Fingerprint.of(self._dataset, self._user_numbers)
                    self._fingerprint.write(folder)
                write(folder, self.saved(folder, learned, self.extras if extras is None else extras).facts())
        self._saved_in = folder

    def saved(self, beside: Path, learned: Mapping[str, Any], extras: Mapping[str, Any]) -> SavedRun:
        """What a checkpoint in the folder ``beside`` says of the run, whose ledger is a file and is synchronised."""
        from noisette.run.checkpoint import SavedRun

        assert self.ledger.path is not None, "in memory"
        self.ledger.shorten()
        head = self.ledger.head
        atomic_files.sync(self.ledger.path)  # the line that the checkpoint names must be on disk first
        return SavedRun(
            terms=self.terms,
            steps_taken=self.steps_taken,
            ledger=os.path.relpath(self.ledger.path, beside.resolve()),
            dataset=self.ledger.dataset,
            head=head,
            trained=list(self.bound.parameters),
            bound=self.bound.state(),
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
        users: Users | None = None,
        collate_fn: Collate | None = None,
        ranks: AnyRanks | None = None,
        saved: SavedRun | None = None,
    ) -> Self:
        """Resume a run from its checkpoint, with the steps that remain and with fresh secret randomness.

        Steps in the ledger beyond the checkpoint are lost, because the crashed process may have released them.

        Args:
            folder: where :meth:`save` wrote the checkpoint; all ranks read it, whose number may be another one.
            bound, optimizer: of a model like the saved one; they get the saved weights and state.
            dataset, users: the same records, and the same ids. A pass over the data that was under way begins anew.
            accountant, collate_fn, ranks: as for :func:`privatize`.
            ledger: the run's ledger; unless given, the one in the folder or in that around it which the checkpoint
                names.
            saved: what the checkpoint says, where another file holds it; the folder has the fingerprint of the records.

        Guarantee: that of :func:`privatize`, for everything that all processes of the run released together.

        Raises:
            FileNotFoundError: the checkpoint or the ledger does not exist.
            ValueError: a file was cut or altered, or model, optimizer or data set are not those of the run; all are
                left as they were.
            PrivacyError: the ledger does not continue from the checkpoint, is in use, or leaves too little of the
                budget; and everything that :func:`privatize` refuses.
        """
        from noisette.run.checkpoint import COMPARED, Fingerprint, SavedRun, digests_of

        folder = Path(folder)
        with ExitStack() as owned:
            ranks = ranks_of(ranks, owned)
            with ranks.unanimous("the checkpoint"):
                saved = SavedRun.read(folder) if saved is None else saved
                check_no_batch_norm(bound.model)
                check_optimizer(optimizer, bound)
                saved.check_fits(bound, optimizer)
            facts = {"checkpoint": [saved.terms.facts(), saved.steps_taken, saved.head]}
            ranks.check_equal("the checkpoint", lambda: facts)
            place = saved.ledger_near(folder) if ledger is None else ledger
            ledger = ledger_on_ranks(place, ranks, owned, saved.open_ledger)
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
            run = cls.on_ranks(make, ranks, owned)
        with ExitStack() as undone:
            undone.callback(run._owned.close)
            undone.callback(run.end)
            with ranks.unanimous("the end of the checkpoint"):
                if run.steps_left:
                    run._fingerprint = Fingerprint.read(folder)
                    if not run._fingerprint.fits(run._dataset, run._user_numbers, ranks):
                        problem = f"the data set is not the one that the run began with ({COMPARED})"
                        raise ValueError(f"{problem}; resume it with the same records of the same users")
                    run._paid.check_budget(run.steps_left)
                saved.restore_state(bound, optimizer)
            if ranks.size > 1:
                ranks.check_equal("the end of the checkpoint", lambda: digests_of(bound.model))
            undone.pop_all()
        run._saved_in = folder
        return run

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, traceback: Any) -> None:
        # What torch says of a tensor of a vectorised call that has ended.
        if isinstance(error, RuntimeError) and "maybe_level.has_value()" in str(error):
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
            self._owned.close()
        if self._saved_in is not None and not self.steps_left and self._all_ranks.rank == 0:
            from noisette.run.checkpoint import FINGERPRINT

            (self._saved_in / FINGERPRINT).unlink(missing_ok=True)


def privatize(
    bound: GradientBound,
    optimizer: Optimizer,
    dataset: Any,
    *,
    expected_batch_size: float,
    sampling_rate: float | None = None,
    steps: int | None = None,
    public_size: int | None = None,
    epochs: float | None = None,
    epsilon: float | None = None,
    noise_multiplier: float | None = None,
    delta: float | None = None,
    accountant: Accountant | None = None,
    ledger: Ledger | Path | str | None = None,
    allow_large_delta: bool = False,
    sampling: Sampling = Poisson(),  # noqa: B008 - it is frozen
    users: Users | None = None,
    collate_fn: Collate | None = None,
    ranks: AnyRanks | None = None,
    declaration: str = "",
) -> PrivateRun:
    """Attach differentially private training to your own model and optimizer.

    Every public quantity is declared: none is computed from the length of ``dataset``.

    Args:
        bound: what bounds one example, such as ``PerExampleClip(model, max_grad_norm=1.0)``.
        optimizer: any optimizer of the same trainable parameters whose ``step`` takes no closure.
        dataset: a tensor, a tuple or dictionary of tensors with the records on their first axis, a list of records,
            :class:`PaddedBuckets`, or anything with ``len`` and indexing, such as a ``datasets.Dataset``. A frame of
            pandas is a dictionary of columns, in a tuple such as ``(frame, series)`` a matrix. :class:`OwnRecords`
            where each of several processes holds others.
        expected_batch_size: the constant that the noised sum is divided by, in examples.
        sampling_rate: probability in (0, 1] that a record is in a step's batch.
        steps: number of logical steps.
        public_size: declared number of records, to give ``sampling_rate`` as expected batch size over it.
        epochs: passes over the declared size, to give ``steps``.
        epsilon: the privacy budget of this run together with everything in ``ledger``, with ``delta``; the noise is
            calibrated to it.
        noise_multiplier: standard deviation of the noise in units of the sensitivity, instead of ``epsilon``. With
            both, the steps must fit in the budget.
        delta: probability with which the bound on epsilon may fail; below one over the declared size.
        accountant: computes epsilon; ``PldAccountant()`` unless given.
        ledger: records every release; in memory unless given. A path is opened for the run, and closed with it.
        allow_large_delta: accept a delta of one over the declared size or more.
        sampling: how batches are drawn: ``Poisson()``, ``TruncatedPoisson(largest_batch)``, ``BallsInBins()`` or
            ``CyclicPoisson(bands)``.
        users: the user of each record, ``Users(ids, most_records)``, for a guarantee that covers all records of a user.
            Records or users are sampled, whichever costs less at the same expected batch size.
        collate_fn: makes a microbatch of a list of records, as for a ``DataLoader``; the function of torch unless
            given. It sees one record at a time, and what it returns is joined by rows.
        ranks: the processes that share the work: all of torch's default process group unless given, or this process
            alone where there is none. Each one calls this function with the same arguments.
        declaration: a name that the run shares with other releases in the ledger whose parameters were all fixed before
            the first of them, with nothing else released before the last. They are composed by ``accountant``; beside
            others, by whose results this run may have been chosen, a Rényi filter keeps the budget, with more noise.

    Guarantee: (epsilon, delta) differential privacy for adding or removing one record, or with ``users`` all records of
    one user, of all weights and optimizer states of the run together, for a loss as :class:`noisette.Loss` says, and
    however the runs and charges of the ledger were chosen by each other's results if the budget was fixed before. The
    key stays in the processes of the run; these and the network between them are one trusted party.
    Source: Abadi et al. 2016, algorithm 1.

    Raises:
        ValueError: numbers outside their domain, contradicting or missing; all problems are listed. A record has no
            user, the users are not those of the records, or the ledger has a guarantee of another kind.
        PrivacyError: the model has batch norm in training mode, the optimizer does not fit the bound or is stepped by
            another run that is not finished, the budget does not pay for the steps with the given noise, the data set
            has more records than truncated batches are paid for, or the ranks differ. What one rank raises, all raise.
    """
    numbers: dict[str, Any] = {
        "expected_batch_size": expected_batch_size,
        "sampling_rate": sampling_rate,
        "steps": steps,
        "public_size": public_size,
        "epochs": epochs,
        "epsilon": epsilon,
        "noise_multiplier": noise_multiplier,
        "delta": delta,
    }
    numbers = {name: plain(value) for name, value in numbers.items()}
    expected_batch_size, sampling_rate, steps, public_size, epochs, epsilon, noise_multiplier, delta = numbers.values()
    with ExitStack() as owned:
        ranks = ranks_of(ranks, owned)
        with ranks.unanimous("the declarations of the run"):
            offers("pop_sums", "noisette.PerExampleClip(model, max_grad_norm=1.0)", bound=bound)
            offers("step", "torch.optim.SGD(model.parameters(), lr=1.0)", optimizer=optimizer)
            all_of(
                partial(check_numbers, **numbers),
                partial(offers, "compose", "noisette.PldAccountant()", accountant=accountant),
                partial(check_no_batch_norm, bound.model),
                partial(check_optimizer, optimizer, bound),
            )
            sampling_rate, steps = schedule(expected_batch_size, sampling_rate, steps, public_size, epochs)
            parts = parts_of(bound.pop_sums())
            possible = releases(sampling, users, sampling_rate, expected_batch_size, public_size, parts)
            one_over_size = sampling_rate / expected_batch_size
            if users is not None and users.public_users is not None:
                one_over_size = 1 / users.public_users
            check_delta(delta, one_over_size, allow_large_delta)
        declared = {**numbers, "sampling": repr(sampling), "users": users and users.most_records}
        ranks.check_equal("the declarations of the run", lambda: declared)
        accountant = accountant if accountant is not None else PldAccountant()
        ledger = ledger_on_ranks(ledger, ranks, owned)

        def terms() -> dict[str, Any]:
            if noise_multiplier is None:
                assert epsilon is not None, "checked above"
                assert delta is not None, "checked above"
                before, prior = ledger.declarations, ledger.events
                by = accountant_beside(before, accountant, declaration=declaration, epsilon=epsilon, delta=delta)
                event = least_noisy(
                    possible, epsilon=epsilon, delta=delta, steps=steps, accountant=by, prior_events=prior
                )
            else:
                events = [release(noise_multiplier) for release in possible]
                event = cheapest(events, delta=delta or one_over_size / 10, steps=steps, accountant=accountant)
            check_events(with_releases(ledger.events, event, 1))
            parameters = RunParameters(
                event, float(expected_batch_size), steps, delta=delta, epsilon=epsilon, declaration=declaration
            )
            return parameters.facts()

        with ledger.lock:  # what other threads spend is either calibrated for here, or seen at the first reservation
            make = partial(
                PrivateRun,
                bound,
                optimizer,
                dataset,
                terms=RunParameters.of(ranks.from_first("the noise of the run", terms)),
                accountant=accountant,
                ledger=ledger,
                users=users,
                collate_fn=collate_fn,
            )
            run = PrivateRun.on_ranks(make, ranks, owned)
    if noise_multiplier is not None:
        try:
            run._paid.check_budget(run.steps_left)
        except BaseException:
            run.close()
            raise
    return run
