"""The one joiner: sampling, bounding, release and accounting around the user's own model and optimizer."""

from __future__ import annotations

from collections.abc import Mapping
from contextlib import ExitStack
from pathlib import Path
from types import MappingProxyType
from typing import Any, Self

from torch.optim.optimizer import Optimizer

from noisette._internal.keystream import SecretKey
from noisette.accounting import Accountant, Ledger, PldAccountant, PoissonGaussian, noise_multiplier_for
from noisette.accounting.budget import PrivacyBudget, delta_left_for_noise
from noisette.accounting.run_parameters import RunParameters
from noisette.accounting.sampling_plan import check_delta, check_numbers, schedule
from noisette.mechanisms.bounded_sum import GradientBound
from noisette.mechanisms.gaussian import parts_of
from noisette.run.checkpoint import SavedRun
from noisette.run.dataset_fingerprint import Fingerprint
from noisette.run.dp_sgd import DpSgdRun
from noisette.validation import ValidateOnFirstCall, check_no_batch_norm
from noisette.validation.optimizer import check_optimizer

# Steps reserved at once in a ledger on disk: what a crash may count too many, for one fsync in so many steps.
_LEASE = 64


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
) -> PrivateRun:
    """Attach differentially private training to a model and an optimizer, which stay yours.

    Every public quantity is declared: nothing is read from the length of ``dataset``, whose records only fill batches.

    Args:
        bound: what bounds one example, such as ``PerExampleClip(model, max_grad_norm=1.0)``.
        optimizer: any optimizer of the same trainable parameters whose ``step`` takes no closure.
        dataset: tensors, arrays, or anything with ``len`` and indexing.
        expected_batch_size: the constant that the noised sum is divided by, in examples.
        sampling_rate: probability in (0, 1] that a record is in a step's batch.
        steps: number of logical steps.
        public_size: declared number of records, to give ``sampling_rate`` as expected batch size over it.
        epochs: passes over the declared size, to give ``steps``.
        epsilon: the budget that the noise is calibrated to, for this run and all that stands in ``ledger`` together;
            needs ``delta``.
        noise_multiplier: standard deviation of the noise in units of the bound; calibrated to ``epsilon`` unless
            given. With both, the steps must fit in the budget.
        delta: probability with which the bound on epsilon may fail; below one over the declared size.
        accountant: prices the run; ``PldAccountant()`` unless given.
        ledger: where what is spent is written; in memory unless given.
        allow_large_delta: accept a delta of one over the declared size or more.

    Guarantee: (epsilon, delta) differential privacy for adding or removing one record, of all weights and optimizer
    states of the run together, provided that the preflight passes and the key stays in the process.
    Source: Abadi et al. 2016, algorithm 1.

    Raises:
        ValueError: numbers outside their domain, contradicting or missing; all problems are listed.
        PrivacyError: the model mixes examples, the optimizer does not fit the bound, or the budget does not pay for
            the steps with the given noise.
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
    check_delta(delta, sampling_rate / expected_batch_size, allow_large_delta)
    accountant = accountant if accountant is not None else PldAccountant()
    check_no_batch_norm(bound.model)
    check_optimizer(optimizer, bound)
    ledger = ledger if ledger is not None else Ledger()
    given = noise_multiplier is not None
    if noise_multiplier is None:
        assert epsilon is not None
        assert delta is not None
        noise_multiplier = noise_multiplier_for(
            epsilon=epsilon,
            delta=delta_left_for_noise(delta, ledger),
            sampling_rate=sampling_rate,
            steps=steps,
            accountant=accountant,
            prior_events=ledger.events,
        )
    event = PoissonGaussian(sampling_rate, noise_multiplier, parts_of(bound.pop_sums()))
    before = ledger.events.get(event, 0)
    terms = RunParameters(event, float(expected_batch_size), steps, delta=delta, epsilon=epsilon, before=before)
    run = PrivateRun(bound, optimizer, dataset, terms=terms, accountant=accountant, ledger=ledger)
    if given:
        try:
            run.check_budget()
        except BaseException:
            run.close()
            raise
    return run


class PrivateRun(DpSgdRun):
    """A training run with a claim: each of its steps is on record before its batch is drawn, and has its price.

    Made by :func:`privatize`, or by :meth:`resume` from what :meth:`save` kept. The ``steps_lost`` with a process that
    died are paid for like the others; ``extras`` is what :meth:`save` was given.
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
            sampling_rate=terms.event.sampling_rate,
            noise_multiplier=terms.event.noise_multiplier,
            expected_batch_size=terms.expected_batch_size,
            steps=terms.steps,
            steps_taken=steps_taken,
            steps_lost=steps_lost,
        )
        self.terms = terms
        self.accountant = accountant
        self.ledger = ledger
        self.extras = extras
        self._dataset = dataset
        self._beside = terms.beside(ledger.events)
        self._reserved = 0
        self._fingerprint: Fingerprint | None = None
        self._saved_in: Path | None = None
        self._own_ledger: Ledger | None = None
        first = bound.model.register_forward_pre_hook(ValidateOnFirstCall(bound), prepend=True, with_kwargs=True)
        self._handles.append(first)

    @property
    def event(self) -> PoissonGaussian:
        """The release of one step."""
        return self.terms.event

    def epsilon(self, *, delta: float) -> float:
        """What all that is recorded in the ledger costs at this delta, for adding or removing one record.

        Guarantee: an upper bound, from the accountant, with the noise generator's tail taken off delta.
        """
        return self._spending.epsilon(delta=delta)

    def delta_for_noise(self, delta: float) -> float:
        """What is left of this delta for the Gaussian mechanisms, once the noise generator's tail is taken off."""
        return self._spending.delta_for_noise(delta)

    def save(self, folder: Path | str, extras: Mapping[str, Any] | None = None) -> None:
        """Keep in a folder what it takes to go on with this run in another process; an older checkpoint goes.

        That is the weights, the state of optimizer and bound, the terms of the run, where its ledger lies, and a keyed
        fingerprint of the data set. No key of noise or sampling is kept, and nothing private but the fingerprint,
        whose file goes when the run is closed after its last step.

        Args:
            folder: made if it is not there; its files can be read by their owner alone.
            extras: what ``extras`` shall hold after :meth:`resume`; what it holds now unless given. Tensors, numbers,
                text, and mappings and sequences of those, that know of the records only what was released.

        Raises:
            ValueError: the ledger is in memory, so that what was spent ends with the process.
            TypeError: something in the model, the optimizer or ``extras`` cannot be kept.
            OSError: the files cannot be written; the older checkpoint stays.
        """
        if self.ledger.path is None:
            raise ValueError(
                "a run whose ledger is in memory cannot be resumed, since nothing would know what was spent; give "
                "privatize a Ledger(path)"
            )
        folder = Path(folder)
        folder.mkdir(parents=True, exist_ok=True)
        if folder != self._saved_in:  # first: a checkpoint without it could not be resumed
            if self._fingerprint is None:
                self._fingerprint = Fingerprint.of(self._dataset)
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
    ) -> Self:
        """Go on with a run from its checkpoint, with what is left of its steps and under fresh secret randomness.

        What the ledger holds of the run beyond the checkpoint is paid for and lost: a process that died may have
        released it. So however often a run dies, it never makes more steps than were planned.

        Args:
            folder: where :meth:`save` kept the run.
            bound: of a model like the one that was saved, which gets its weights.
            optimizer: like the one that was saved, whose state it gets.
            dataset: the same records.
            accountant: prices the run; ``PldAccountant()`` unless given.
            ledger: that of the run; opened where it lay, as seen from the folder, unless given.

        Guarantee: that of :func:`privatize`, of all that every process of the run released together.

        Raises:
            FileNotFoundError: the checkpoint or the ledger is not there.
            ValueError: a file was cut or altered, or model, optimizer or data set are not those of the run; all are
                left as they were.
            PrivacyError: the ledger does not go on from where the run was saved, is in use, or holds so much else by
                now that the rest of the run would exceed its budget; and what :func:`privatize` refuses.
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
                steps_taken=saved.steps_taken,
                steps_lost=saved.steps_lost(ledger),
                extras=saved.extras,
            )
            undone.callback(run._let_go)
            if run.steps_left:
                run._check_data(folder)
                run.check_budget()
            saved.restore_state(bound, optimizer)
            undone.pop_all()
        run._own_ledger, run._saved_in = own, folder
        return run

    def _check_data(self, folder: Path) -> None:
        """The records are those that the run began with."""
        self._fingerprint = Fingerprint.read(folder)
        if not self._fingerprint.fits(self._dataset):
            raise ValueError("the data set is not the one that the run began with; resume it with the same records")

    def check_budget(self) -> None:
        """The steps that are left fit in the budget, beside all that stands in the ledger by now.

        Raises:
            PrivacyError: they do not.
        """
        self._spending.check_budget(self.steps_left)
        self._beside = self.terms.beside(self.ledger.events)

    def _before_batch(self) -> None:
        """The ledger knows of a step before its batch is drawn, so no crash can hide what was spent."""
        if self._reserved == 0:
            if self.terms.beside(self.ledger.events) != self._beside:
                self.check_budget()
            lease = min(_LEASE if self.ledger.path else 1, self.steps_left)
            self.ledger.reserve(self.event, lease)
            self._reserved = lease

    def _before_release(self) -> None:
        self.ledger.commit(self.event)
        self._reserved -= 1

    def close(self) -> None:
        """Leave model and optimizer as they were; give back what was reserved and not used."""
        self._let_go()
        self.bound.close()
        try:
            self.ledger.release()
        finally:
            if self._own_ledger is not None:
                self._own_ledger.close()
        if self._saved_in is not None and not self.steps_left:
            Fingerprint.remove(self._saved_in)
