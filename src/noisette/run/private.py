"""A private training run: DP-SGD with a ledger, a budget and checkpoints."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from contextlib import ExitStack
from inspect import getattr_static
from pathlib import Path
from types import MappingProxyType
from typing import Any, Literal, Self

import torch
from torch import Tensor, nn
from torch.optim.optimizer import Optimizer

from noisette._internal.keystream import SecretKey
from noisette.accounting import Accountant, Event, Ledger, PldAccountant
from noisette.accounting.budget import PrivacyBudget, delta_left_for_noise
from noisette.accounting.calibrate import cheapest, least_noisy, with_releases
from noisette.accounting.events import StepRelease, check_events
from noisette.accounting.ledger.ledger import RecordedRun
from noisette.accounting.run_parameters import RunParameters
from noisette.accounting.sampling_plan import check_delta, check_numbers, schedule
from noisette.gradients.vmap_internals import current_level
from noisette.mechanisms.bounded_sum import DerivedBound, GradientBound
from noisette.mechanisms.gaussian import parts_of
from noisette.run.checkpoint import SavedRun
from noisette.run.dataset_fingerprint import Fingerprint
from noisette.run.dp_sgd import DpSgdRun
from noisette.sampling.loading import Collate
from noisette.sampling.schemes import Poisson, Sampling, releases
from noisette.sampling.users import Users
from noisette.validation import Call, check_no_batch_norm, check_worst_case, checks
from noisette.validation.checked_calls import FUNCTIONS, MOST_ENTRIES, PLAIN, CheckedCalls
from noisette.validation.optimizer import check_optimizer

# Steps reserved at once in a ledger on disk: one fsync for so many steps; after a crash as many may count too much. It
# depends on the planned number of steps alone, which is public, as the duration of a step is not.
_MOST_AT_ONCE, _FEWEST_LEASES = 64, 20


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
    ledger: Ledger | None = None,
    allow_large_delta: bool = False,
    separability: Literal["asserted"] | None = None,
    example: object = None,
    sampling: Sampling = Poisson(),  # noqa: B008 - it is frozen
    users: Users | None = None,
    collate_fn: Collate | None = None,
) -> PrivateRun:
    """Attach differentially private training to your own model and optimizer.

    Every public quantity is declared: none is computed from the length of ``dataset``.

    Args:
        bound: what bounds one example, such as ``PerExampleClip(model, max_grad_norm=1.0)``.
        optimizer: any optimizer of the same trainable parameters whose ``step`` takes no closure.
        dataset: a tensor, a tuple or dictionary of tensors with the records on their first axis, a list of records,
            :class:`PaddedBuckets`, or anything with ``len`` and indexing, such as a ``datasets.Dataset``. Arrays in
            mapped files are read row by row. :class:`OwnRecords` where each of several processes holds other records.
        expected_batch_size: the constant that the noised sum is divided by, in examples.
        sampling_rate: probability in (0, 1] that a record is in a step's batch.
        steps: number of logical steps.
        public_size: declared number of records, to give ``sampling_rate`` as expected batch size over it.
        epochs: passes over the declared size, to give ``steps``.
        epsilon: the privacy budget of this run together with everything in ``ledger``; the noise is calibrated to it.
            Needs ``delta``.
        noise_multiplier: standard deviation of the noise in units of the sensitivity; calibrated to ``epsilon`` unless
            given. With both, the steps must fit in the budget.
        delta: probability with which the bound on epsilon may fail; below one over the declared size.
        accountant: computes epsilon; ``PldAccountant()`` unless given.
        ledger: records every release; in memory unless given.
        allow_large_delta: accept a delta of one over the declared size or more.
        separability: ``"asserted"`` permits ``run.backward(losses)``, for models that cannot be vectorised: you assert
            that your model and loop keep the examples apart. ``run.accumulate`` needs no such assertion.
        example: public inputs for the checks of the model, where it has rules that random inputs break (a last token,
            lengths, ranges): one public record or a few, in the form in which the model is called. A tensor, a tuple
            of positional arguments (the last entry may be a mapping of keyword arguments), or a mapping. Whole numbers
            are then also drawn at random between its lowest and its highest.
        sampling: how batches are drawn: ``Poisson()`` unless given, ``TruncatedPoisson(largest_batch)`` for batches of
            at most a fixed size, or ``BallsInBins()`` for passes in which each record is in one batch.
        users: the user of each record, ``Users(ids, most_records)``, for a guarantee that covers all records of a user.
            Records or users are sampled, whichever costs less at the same expected batch size.
        collate_fn: makes a microbatch of a list of records, as for a ``DataLoader``; the function of torch unless
            given. The form in which it hands out a record must not depend on the other ones: use
            :class:`PaddedBuckets` where sequences differ in length.

    Guarantee: (epsilon, delta) differential privacy for adding or removing one record, or with ``users`` all records of
    one user, of all weights and optimizer states of the run together, provided that the key stays in the process and,
    with ``separability="asserted"``, that model and loop keep the examples apart.
    Source: Abadi et al. 2016, algorithm 1.

    Raises:
        ValueError: numbers outside their domain, contradicting or missing; all problems are listed. A record has no
            user, the users are not those of the records, or the ledger has a guarantee of another kind.
        PrivacyError: the model mixes examples, the optimizer does not fit the bound, the budget does not pay for the
            steps with the given noise, or the data set has more records than truncated batches are paid for.
    """
    check_numbers(
        expected_batch_size=expected_batch_size,
        sampling_rate=sampling_rate,
        steps=steps,
        public_size=public_size,
        epochs=epochs,
        epsilon=epsilon,
        noise_multiplier=noise_multiplier,
        delta=delta,
    )
    sampling_rate, steps = schedule(expected_batch_size, sampling_rate, steps, public_size, epochs)
    possible = releases(
        sampling,
        users,
        sampling_rate,
        expected_batch_size=expected_batch_size,
        public_size=public_size,
        parts=parts_of(bound.pop_sums()),
    )
    one_over_size = sampling_rate / expected_batch_size
    if users is not None and users.public_users is not None:
        one_over_size = 1 / users.public_users
    check_delta(delta, one_over_size, allow_large_delta)
    accountant = accountant if accountant is not None else PldAccountant()
    check_no_batch_norm(bound.model)
    check_optimizer(optimizer, bound)
    if separability is None and isinstance(bound, DerivedBound):
        dtype = next(iter(bound.parameters.values())).dtype
        check_worst_case(bound, Call((torch.zeros(1, *bound.input_shape, dtype=dtype),), {}))
    ledger = ledger if ledger is not None else Ledger()
    given = noise_multiplier is not None
    with ledger.lock:  # what other threads spend is either calibrated for here, or seen at the first reservation
        if noise_multiplier is None:
            assert epsilon is not None
            assert delta is not None
            event = least_noisy(
                possible,
                epsilon=epsilon,
                delta=delta_left_for_noise(delta, ledger),
                steps=steps,
                accountant=accountant,
                prior_events=ledger.events,
            )
        else:
            events = [release(noise_multiplier) for release in possible]
            event = cheapest(events, delta=delta or one_over_size / 10, steps=steps, accountant=accountant)
        check_events(with_releases(ledger.events, event, 1))
        run = PrivateRun(
            bound,
            optimizer,
            dataset,
            terms=RunParameters(event, float(expected_batch_size), steps, delta=delta, epsilon=epsilon),
            accountant=accountant,
            ledger=ledger,
            separability=separability,
            example=example,
            users=users,
            collate_fn=collate_fn,
        )
    if given:
        try:
            run.check_budget()
        except BaseException:
            run.close()
            raise
    return run


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
    ) -> None:
        dimensions = sum(p.numel() for part in bound.pop_sums() for p in part.params)
        self._spending = PrivacyBudget(terms, accountant, ledger, dimensions)
        super().__init__(
            bound,
            optimizer,
            dataset,
            key=SecretKey(),
            event=terms.event,
            expected_batch_size=terms.expected_batch_size,
            steps=terms.steps,
            separability=separability,
            users=users,
            collate_fn=collate_fn,
            steps_taken=steps_taken,
            steps_lost=steps_lost,
        )
        self.terms = terms
        self.accountant = accountant
        self.ledger = ledger
        self.extras = extras
        self._dataset = dataset
        self._recorded = RecordedRun(terms.run, dimensions)
        self._lease = max(1, min(_MOST_AT_ONCE, terms.steps // _FEWEST_LEASES)) if ledger.path else 1
        self._reserved = self._own_entries = 0
        self._other_entries = ledger.entries  # lines in the ledger that this object did not write
        self._checked = self._other_releases()  # what the budget was computed with
        self._fingerprint: Fingerprint | None = None
        self._saved_in: Path | None = None
        self._own_ledger: Ledger | None = None
        if separability == "asserted":
            hook = ValidateOnFirstCall(bound, example)
            self._hooks.append(bound.model.register_forward_pre_hook(hook, prepend=True, with_kwargs=True))

    @property
    def event(self) -> StepRelease:
        """The release of one step."""
        return self.terms.event

    def epsilon(self, *, delta: float) -> float:
        """Epsilon spent at this delta by everything in the ledger, for adding or removing one record or user.

        Guarantee: an upper bound, from the accountant, with the noise generator's tail subtracted from delta.
        """
        return self._spending.epsilon(delta=delta)

    def delta_for_noise(self, delta: float) -> float:
        """What is left of this delta for the Gaussian mechanisms after subtracting the noise generator's tail."""
        return self._spending.delta_for_noise(delta)

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
        if self.ledger.path is None:
            raise ValueError(
                "a run whose ledger is in memory cannot be resumed, because what it spent is forgotten with the "
                "process; give privatize a Ledger(path)"
            )
        self._seal.before_saving()
        folder = Path(folder)
        folder.mkdir(parents=True, exist_ok=True)
        if folder != self._saved_in:  # first, because a checkpoint without it could not be resumed
            if self._fingerprint is None:
                self._fingerprint = Fingerprint.of(self._dataset, self._user_numbers)
            self._fingerprint.write(folder)
            self._saved_in = folder
        SavedRun.write(
            folder,
            self.bound,
            self.optimizer,
            terms=self.terms,
            steps_taken=self.steps_taken,
            ledger=self.ledger,
            extras=self.extras if extras is None else extras,
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
        ledger: Ledger | None = None,
        separability: Literal["asserted"] | None = None,
        example: object = None,
        users: Users | None = None,
        collate_fn: Collate | None = None,
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
        saved = SavedRun.read(folder)
        check_no_batch_norm(bound.model)
        check_optimizer(optimizer, bound)
        saved.check_fits(bound, optimizer)
        with ExitStack() as undone:
            own = None
            if ledger is None:
                ledger = own = undone.enter_context(saved.open_ledger(folder))
            run = cls(
                bound,
                optimizer,
                dataset,
                terms=saved.terms,
                accountant=accountant if accountant is not None else PldAccountant(),
                ledger=ledger,
                separability=separability,
                example=example,
                users=users,
                steps_taken=saved.steps_taken,
                steps_lost=saved.steps_lost(ledger),
                extras=saved.extras,
            )
            undone.callback(run._remove_hooks)
            if run.steps_left:
                run._check_data(folder)
                run.check_budget()
            saved.restore_state(bound, optimizer)
            undone.pop_all()
        run._own_ledger, run._saved_in = own, folder
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
            with self.ledger.lock:  # nothing else is reserved between the check and the reservation
                others = self.ledger.entries - self._own_entries
                if others != self._other_entries and self._other_releases() != self._checked:
                    self.check_budget()  # something else was released meanwhile
                self._other_entries = others
                lease = min(self._lease, self.steps_left)
                self.ledger.reserve(self.terms.event, lease, run=self._recorded)
            self._reserved = lease
            self._own_entries += 1

    def _steps_reserved(self) -> int:
        return self._reserved

    def _commit_step(self) -> None:
        self.ledger.commit(self.terms.event, run=self._recorded)
        self._own_entries += 1
        self._reserved -= 1

    def close(self) -> None:
        """Remove every hook from model and optimizer, and return the reserved steps that were not used."""
        self._remove_hooks()
        self.bound.close()
        try:
            self.ledger.release(run=self._recorded)
        finally:
            if self._own_ledger is not None:
                self._own_ledger.close()
        if self._saved_in is not None and not self.steps_left:
            Fingerprint.remove(self._saved_in)


class ValidateOnFirstCall:
    """A forward pre-hook that runs the checks before a call with gradients that was not checked before.

    So they run in the first call, and again when modes, modules, arguments or plain attributes of the model have
    changed: after ``model.train()`` a batch norm mixes examples that did not do so in evaluation mode. A copy of the
    model is not checked. ``example`` are the user's own public inputs.
    """

    def __init__(self, bound: GradientBound | None, example: object = None) -> None:
        self._bound = bound
        self._example = example
        self._checked = CheckedCalls()
        self._checking = False
        self._mark: list[Any] | None = None

    def __deepcopy__(self, memo: dict[int, object]) -> ValidateOnFirstCall:
        return ValidateOnFirstCall(None)

    def __reduce__(self) -> tuple[type[ValidateOnFirstCall], tuple[None]]:
        return ValidateOnFirstCall, (None,)

    def __call__(self, module: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
        bound = self._bound
        if bound is None or module is not bound.model or not torch.is_grad_enabled() or self._checking:
            return
        if current_level() is not None:  # a vectorised loss needs no check
            return
        mark = _plain_mark(module, args, kwargs)
        if mark is not None and mark == self._mark:
            return
        self._mark = mark
        call = Call(args, kwargs)
        covered, size = self._checked.covers(module, call), self._checked.larger_size(call)
        self._checking = True
        try:
            if not covered:
                checks.prove(bound, call, self._example)
            if size is not None:
                checks.prove_size(bound, call, self._example, size)
        except BaseException:
            self._checked.forget()
            self._mark = None
            raise
        finally:
            self._checking = False


def _plain_mark(model: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any]) -> list[Any] | None:
    """What is equal in two calls of which one check is enough, in one pass; ``None`` if an argument is a container."""
    values = [*args, *kwargs.values()]
    if not all(isinstance(value, Tensor) or type(value) in PLAIN for value in values):
        return None
    mark: list[Any] = [list(kwargs)]
    mark += [(v.dtype, v.shape) if isinstance(v, Tensor) else v for v in values]
    for part in model.modules():
        mark += [id(part), id(type(part)), id(getattr_static(type(part), "forward", None))]
        mark += map(id, part._forward_pre_hooks.values())
        mark += map(id, part._forward_hooks.values())
        for name, value in vars(part).items():
            if type(value) in PLAIN:
                mark += [name, value]
            elif type(value) in FUNCTIONS:
                mark += [name, id(value)]
            elif type(value) in (list, tuple):
                mark += [name, str(value) if len(value) <= MOST_ENTRIES else len(value)]
        for name, buffer in part._buffers.items():
            if buffer is not None and buffer.numel() == 1:
                mark += [name, buffer.item() if buffer.device.type == "cpu" else buffer._version]
    return mark
