"""The one joiner: sampling, bounding, release and accounting around the user's own model and optimizer."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from types import TracebackType
from typing import Any, Self

import torch
from torch import Tensor, nn
from torch.optim.optimizer import Optimizer, register_optimizer_step_pre_hook

from noisette import _check
from noisette.accounting import (
    Accountant,
    Ledger,
    PldAccountant,
    PoissonGaussian,
    PrivacyCurve,
    noise_multiplier_for,
    tail_delta,
)
from noisette.bounding.base import GradientBound
from noisette.errors import PrivacyRefusal
from noisette.keystream import SecretKey
from noisette.piece_size import MeasuredSize, memory_of
from noisette.preflight import Call, prove, refuse_mixing_modules
from noisette.release import GaussianRelease, parts_of
from noisette.sampling import Batch, PoissonSampler, gatherer
from noisette.schedule import check_delta, check_numbers, schedule

# The part of delta that may go to what the noise generator cannot reach.
_TAIL_SHARE = 0.01
# Steps reserved at once in a ledger on disk: what a crash may count too many, for one fsync in so many steps.
_LEASE = 16


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
        epsilon: the budget that the noise is calibrated to; needs ``delta``.
        noise_multiplier: instead of ``epsilon``: standard deviation of the noise in units of the bound.
        delta: probability with which the bound on epsilon may fail; below one over the declared size.
        accountant: prices the run; ``PldAccountant()`` unless given.
        ledger: where what is spent is written; in memory unless given.
        allow_large_delta: accept a delta of one over the declared size or more.

    Guarantee: (epsilon, delta) differential privacy for adding or removing one record, of all weights and optimizer
    states of the run together, provided that the preflight passes and the key stays in the process.
    Source: Abadi et al. 2016, algorithm 1.

    Raises:
        ValueError: numbers outside their domain, contradicting or missing; all problems are listed.
        PrivacyRefusal: the model mixes examples, or the optimizer does not fit the bound.
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
    refuse_mixing_modules(bound.model)
    _check_optimizer(optimizer, bound)
    if noise_multiplier is None:
        assert epsilon is not None
        assert delta is not None
        noise_multiplier = noise_multiplier_for(
            epsilon=epsilon,
            delta=delta * (1 - _TAIL_SHARE),
            sampling_rate=sampling_rate,
            steps=steps,
            accountant=accountant,
        )
    return PrivateRun(
        bound,
        optimizer,
        dataset,
        event=PoissonGaussian(sampling_rate, noise_multiplier, parts_of(bound.take())),
        expected_batch_size=expected_batch_size,
        steps=steps,
        delta=delta,
        accountant=accountant,
        ledger=ledger if ledger is not None else Ledger(),
    )


class PrivateRun:
    """A training run under way: draws its batches, bounds and releases its gradients, and knows what was spent.

    Made by :func:`privatize`. A ``with`` block, or ``close()``, leaves model and optimizer as they were.
    """

    def __init__(
        self,
        bound: GradientBound,
        optimizer: Optimizer,
        dataset: Any,
        *,
        event: PoissonGaussian,
        expected_batch_size: float,
        steps: int,
        delta: float | None,
        accountant: Accountant,
        ledger: Ledger,
    ) -> None:
        self.bound = bound
        self.optimizer = optimizer
        self.event = event
        self.steps = steps
        self.accountant = accountant
        self.ledger = ledger
        self.steps_taken = 0
        key = SecretKey()
        size, self._gather = gatherer(dataset)
        self._sampler = PoissonSampler(size=size, sampling_rate=event.sampling_rate, key=key)
        self._measured = MeasuredSize(memory_of({p.device for p in bound.parameters.values()}))
        self._release = GaussianRelease(key, event.noise_multiplier, expected_batch_size)
        self._tail = tail_delta(
            noise_multiplier=event.noise_multiplier,
            sampling_rate=event.sampling_rate,
            steps=steps,
            dimensions=sum(p.numel() for part in bound.take() for p in part.params),
        )
        if delta is not None and self._tail > _TAIL_SHARE * delta:
            raise PrivacyRefusal(
                f"noise_multiplier={event.noise_multiplier:.4g} is so small that the tail of the noise generator alone "
                f"costs delta={self._tail:.2g}, more than {_TAIL_SHARE:.0%} of delta={delta:.2g}; ask for more noise"
            )
        self._names = {id(p): name for name, p in bound.parameters.items()}
        self._batch: Batch | None = None
        self._step_due = False
        self._reserved = 0
        self._written: dict[int, Tensor | None] = {}
        self._prices: dict[frozenset[tuple[PoissonGaussian, int]], PrivacyCurve] = {}
        self._proven: set[tuple[bool, ...]] = set()
        self._handles = (
            optimizer.register_step_pre_hook(self._before_step),
            register_optimizer_step_pre_hook(self._before_any_step),
            bound.model.register_forward_pre_hook(_Preflight(self), prepend=True, with_kwargs=True),
        )

    @property
    def noise_multiplier(self) -> float:
        """Standard deviation of the noise in units of the bound."""
        return self.event.noise_multiplier

    def batches(self) -> Iterator[Batch]:
        """The logical batches that remain, drawn by Poisson sampling; each may be empty and each needs one step.

        Raises:
            PrivacyRefusal: a batch was left without ``optimizer.step()``.
        """
        while self.steps_taken < self.steps:
            self._check_step_done()
            self._reserve_step()
            self._batch = Batch(self._sampler.indices(step=self.steps_taken), self._gather, self._measured)
            self._step_due = True
            yield self._batch
        self._check_step_done()

    def backward(self, losses: Tensor) -> None:
        """Add the bounded gradients of the piece in hand to the pending sum.

        Where memory runs out in a piece of ``batch.pieces("auto")``, nothing is added and the piece comes again in
        halves.

        Args:
            losses: one value per example of the piece, shape (b,).

        Raises:
            PrivacyRefusal: losses that are not those of the piece in hand, a second backward of one piece, or what the
                bound refuses.
        """
        if self._batch is None or self._batch.piece is None:
            raise PrivacyRefusal(
                "backward needs a piece of a batch: call it once for each piece in `for ... in batch.pieces(size)`, "
                "within `for batch in run.batches()`. Examples drawn in another way carry no claim."
            )
        if losses.dim() == 1 and losses.shape[0] != self._batch.piece:
            raise PrivacyRefusal(
                f"the piece in hand has {self._batch.piece} examples, but there are {losses.shape[0]} losses: "
                "give one loss for each example of the piece"
            )
        try:
            self.bound.backward(losses)
        except torch.OutOfMemoryError:
            if not self._batch.give_back():
                raise
            if not losses._is_view():
                losses.detach_()  # the caller holds on to the losses, and so to all activations of the piece
        else:
            self._batch.bounded += self._batch.piece
            self._batch.piece = None

    def epsilon(self, *, delta: float) -> float:
        """What all steps recorded in the ledger cost at this delta, for adding or removing one record.

        Guarantee: an upper bound, from the accountant, with the noise generator's tail taken off delta.
        """
        _check.open_fraction(delta=delta)
        spent = frozenset(self.ledger.events.items())
        if spent not in self._prices:
            self._prices[spent] = self.accountant.price(self.ledger.events)
        remaining = self.delta_for_noise(delta)
        return self._prices[spent].epsilon(delta=remaining) if remaining > 0 else math.inf

    def delta_for_noise(self, delta: float) -> float:
        """What is left of this delta for the Gaussian mechanism, once the noise generator's tail is taken off."""
        return delta - self._tail

    def _reserve_step(self) -> None:
        """The ledger knows of a step before its batch is drawn, so no crash can hide what was spent."""
        if self._reserved == 0:
            self._reserved = min(_LEASE if self.ledger.path else 1, self.steps - self.steps_taken)
            self.ledger.reserve(self.event, self._reserved)

    def _check_step_done(self) -> None:
        if self._step_due:
            raise PrivacyRefusal(
                "optimizer.step() was not called for the last batch. Every batch is released, also an empty one: "
                "whether a step happens must not depend on the data"
            )

    def _before_step(self, optimizer: Optimizer, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
        """Release the batch: what the optimizer finds in ``.grad`` is noised, and the ledger knows."""
        if args[1:] or kwargs.get("closure") is not None:  # the first argument is the optimizer
            raise PrivacyRefusal(
                "optimizer.step(closure) computes gradients that are not private; call step() without a closure"
            )
        if not self._step_due:
            raise PrivacyRefusal(
                "optimizer.step() needs a batch of its own: call it once for each batch in `for batch in run.batches()`"
            )
        self._check_gradients()
        assert self._batch is not None
        self._batch.check_bounded(len(self._batch.indices))
        _check_coverage(optimizer, self.bound)
        self._release(self.bound.take(), self._names, step=self.steps_taken)
        self.ledger.commit()
        self._step_due, self._batch = False, None
        self.steps_taken += 1
        self._reserved -= 1
        for p in self.bound.parameters.values():
            self._written[id(p)] = _call_gradient_hooks(p)

    def _before_any_step(self, optimizer: Optimizer, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
        """Another optimizer must not move parameters that this run answers for."""
        if optimizer is not self.optimizer and (shared := _held_by(optimizer) & self._names.keys()):
            raise PrivacyRefusal(
                f"a second optimizer ({type(optimizer).__name__}) steps {self._listed(shared)}, which a private run "
                "trains; give it other parameters, or close the run first"
            )

    def _check_gradients(self) -> None:
        stray = {
            id(p)
            for p in self.bound.parameters.values()
            if p.grad is not None and p.grad is not self._written.get(id(p))
        }
        if stray:
            raise PrivacyRefusal(
                f".grad of {self._listed(stray)} holds a gradient that is not private: losses.backward() was called, "
                "or .grad was set. Call run.backward(losses) instead, and clear these with optimizer.zero_grad()"
            )

    def _listed(self, ids: set[int]) -> str:
        names = sorted(self._names[i] for i in ids)
        return ", ".join(names[:5]) + (f" and {len(names) - 5} more" if len(names) > 5 else "")

    def close(self) -> None:
        """Leave model and optimizer as they were; give back what was reserved and not used."""
        for handle in self._handles:
            handle.remove()
        self.bound.close()
        self.ledger.release()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self.close()


class _Preflight:
    """Runs the preflight inside the first recorded call of the model in each of its modes, before that call itself.

    A mode is which modules train and which evaluate: ``model.train()`` can wake a batch norm that was proven asleep.
    """

    def __init__(self, run: PrivateRun | None) -> None:
        self._run = run

    def __deepcopy__(self, memo: dict[int, object]) -> _Preflight:
        return _Preflight(None)

    def __reduce__(self) -> tuple[type[_Preflight], tuple[None]]:
        return _Preflight, (None,)

    def __call__(self, module: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
        run = self._run
        if run is None or module is not run.bound.model or not torch.is_grad_enabled():
            return
        mode = tuple(part.training for part in module.modules())
        if mode in run._proven:
            return
        run._proven.add(mode)
        try:
            prove(run.bound, Call(args, kwargs))
        except BaseException:
            run._proven.discard(mode)
            raise


def _held_by(optimizer: Optimizer) -> set[int]:
    return {id(p) for group in optimizer.param_groups for p in group["params"]}


def _check_optimizer(optimizer: Optimizer, bound: GradientBound) -> None:
    if isinstance(optimizer, torch.optim.LBFGS):
        raise PrivacyRefusal("LBFGS needs a closure, which computes gradients that are not private; use SGD or Adam")
    _check_coverage(optimizer, bound)


def _check_coverage(optimizer: Optimizer, bound: GradientBound) -> None:
    """The optimizer moves the parameters that the bound covers, and no others that are trainable."""
    covered = {id(p): name for name, p in bound.parameters.items()}
    held = _held_by(optimizer)
    if held == covered.keys():
        return
    trainable = {
        id(p) for group in optimizer.param_groups for p in group["params"] if p.requires_grad or p.grad is not None
    }
    problems = [f"{name}: trainable, but not in the optimizer" for i, name in covered.items() if i not in held]
    outside = len(trainable - covered.keys())
    if outside:
        problems.append(f"{outside} trainable parameters of the optimizer are not in the model that is bounded")
    if problems:
        raise PrivacyRefusal(
            "the optimizer and the bound differ:\n  " + "\n  ".join(problems) + "\n"
            "Freeze what is not trained (requires_grad=False) before PerExampleClip, and give the optimizer the rest."
        )


def _call_gradient_hooks(p: Tensor) -> Tensor | None:
    """The user's gradient hooks of a parameter see the noised gradient, as they would any other; what is left of it."""
    hooks: Mapping[int, Any] = p._backward_hooks or {}
    for hook in list(hooks.values()):
        if p.grad is not None and (changed := hook(p.grad)) is not None:
            p.grad = changed
    after: Mapping[int, Any] = getattr(p, "_post_accumulate_grad_hooks", None) or {}
    for hook in list(after.values()):
        hook(p)
    return p.grad
