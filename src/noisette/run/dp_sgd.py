"""Steps of noised gradients around the user's own model and optimizer. What they cost is for others to say."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterator, Mapping
from types import TracebackType
from typing import Any, Self

import torch
from torch import Tensor
from torch.optim.optimizer import Optimizer, register_optimizer_step_pre_hook

from noisette._internal.keystream import SecretKey
from noisette.errors import PrivacyError
from noisette.mechanisms.bounded_sum import GradientBound
from noisette.mechanisms.gaussian import GaussianRelease
from noisette.sampling.microbatch_size import MeasuredSize, memory_of
from noisette.sampling.poisson import Batch, PoissonSampler, gatherer
from noisette.validation.optimizer import check_coverage, held_by


class DpSgdRun(ABC):
    """A training run under way: draws its batches, bounds their gradients and releases them with noise.

    A ``with`` block, or ``close()``, leaves model and optimizer as they were. Of its planned ``steps``, ``steps_taken``
    have moved the weights, and ``steps_lost`` went down with a process that died.
    """

    def __init__(
        self,
        bound: GradientBound,
        optimizer: Optimizer,
        dataset: Any,
        *,
        key: SecretKey,
        sampling_rate: float,
        noise_multiplier: float,
        expected_batch_size: float,
        steps: int,
        steps_taken: int = 0,
        steps_lost: int = 0,
    ) -> None:
        self.bound = bound
        self.optimizer = optimizer
        self.sampling_rate = sampling_rate
        self.steps = steps
        self.steps_taken = steps_taken
        self.steps_lost = steps_lost
        size, self._gather = gatherer(dataset)
        self._sampler = PoissonSampler(size=size, sampling_rate=sampling_rate, key=key)
        self._measured = MeasuredSize(memory_of({p.device for p in bound.parameters.values()}))
        self._release = GaussianRelease(key, noise_multiplier, expected_batch_size)
        self._names = {id(p): name for name, p in bound.parameters.items()}
        self._batch: Batch | None = None
        self._step_due = False
        self._written: dict[int, Tensor | None] = {}
        self._handles = [
            optimizer.register_step_pre_hook(self._before_step),
            optimizer.register_step_post_hook(lambda *_: self.bound.after_step()),
            register_optimizer_step_pre_hook(self._before_any_step),
        ]

    @abstractmethod
    def _before_batch(self) -> None:
        """A batch is about to be drawn."""

    @abstractmethod
    def _before_release(self) -> None:
        """A batch is about to be released; nothing can keep it back any more."""

    @property
    def noise_multiplier(self) -> float:
        """Standard deviation of the noise in units of the bound."""
        return self._release.noise_multiplier

    @property
    def steps_spent(self) -> int:
        """How far the run has come on its way to ``steps``: those taken and those lost."""
        return self.steps_taken + self.steps_lost

    @property
    def steps_left(self) -> int:
        """Number of steps that may follow."""
        return max(0, self.steps - self.steps_spent)

    def batches(self) -> Iterator[Batch]:
        """The logical batches that remain, drawn by Poisson sampling; each may be empty and each needs one step.

        Raises:
            PrivacyError: a batch was left without ``optimizer.step()``.
        """
        while self.steps_left:
            self._check_step_done()
            self._before_batch()
            self._batch = Batch(self._sampler.indices(step=self.steps_taken), self._gather, self._measured)
            self._step_due = True
            yield self._batch
        self._check_step_done()

    def backward(self, losses: Tensor) -> None:
        """Add the bounded gradients of the piece in hand to the pending sum.

        Where memory runs out in a piece of ``batch.microbatches("auto")``, nothing is added and the piece comes
        again in halves.

        Args:
            losses: one value per example of the piece, shape (b,).

        Raises:
            PrivacyError: losses that are not those of the piece in hand, a second backward of one piece, or what the
                bound refuses.
        """
        if self._batch is None or self._batch.piece is None:
            raise PrivacyError(
                "backward needs a piece of a batch: call it once for each piece in "
                "`for ... in batch.microbatches(size)`, within `for batch in run.batches()`. Examples drawn in another way carry no claim."
            )
        if losses.dim() == 1 and losses.shape[0] != self._batch.piece:
            raise PrivacyError(
                f"the piece in hand has {self._batch.piece} examples, but there are {losses.shape[0]} losses: "
                "give one loss for each example of the piece"
            )
        try:
            self.bound.backward(losses)
        except torch.OutOfMemoryError:
            if not self._batch.retry_smaller():
                raise
            if not losses._is_view():
                losses.detach_()  # the caller holds on to the losses, and so to all activations of the piece
        else:
            self._batch.bounded += self._batch.piece
            self._batch.piece = None

    def _check_step_done(self) -> None:
        if self._step_due:
            raise PrivacyError(
                "optimizer.step() was not called for the last batch. Every batch is released, also an empty one: "
                "whether a step happens must not depend on the data"
            )

    def _before_step(self, optimizer: Optimizer, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
        """Release the batch: what the optimizer finds in ``.grad`` is noised."""
        if args[1:] or kwargs.get("closure") is not None:  # the first argument is the optimizer
            raise PrivacyError(
                "optimizer.step(closure) computes gradients that are not private; call step() without a closure"
            )
        if not self._step_due:
            raise PrivacyError(
                "optimizer.step() needs a batch of its own: call it once for each batch in `for batch in run.batches()`"
            )
        self._check_gradients()
        assert self._batch is not None
        self._batch.check_bounded(len(self._batch.indices))
        check_coverage(optimizer, self.bound)
        # All of this first: a release that breaks off half-way counts, and its noise is never drawn again.
        self._before_release()
        step = self.steps_taken
        self._step_due, self._batch = False, None
        self.steps_taken += 1
        self._release(self.bound.pop_sums(), self._names, step=step)
        for p in self.bound.parameters.values():
            self._written[id(p)] = _call_gradient_hooks(p)

    def _before_any_step(self, optimizer: Optimizer, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
        """Another optimizer must not move parameters that this run answers for."""
        if optimizer is not self.optimizer and (shared := held_by(optimizer) & self._names.keys()):
            raise PrivacyError(
                f"a second optimizer ({type(optimizer).__name__}) steps {self._listed(shared)}, which a run of noised "
                "steps trains; give it other parameters, or close the run first"
            )

    def _check_gradients(self) -> None:
        stray = {
            id(p)
            for p in self.bound.parameters.values()
            if p.grad is not None and p.grad is not self._written.get(id(p))
        }
        if stray:
            raise PrivacyError(
                f".grad of {self._listed(stray)} holds a gradient that is not private: losses.backward() was called, "
                "or .grad was set. Call run.backward(losses) instead, and clear these with optimizer.zero_grad()"
            )

    def _listed(self, ids: set[int]) -> str:
        names = sorted(self._names[i] for i in ids)
        return ", ".join(names[:5]) + (f" and {len(names) - 5} more" if len(names) > 5 else "")

    def _let_go(self) -> None:
        """Take every hook off model and optimizer."""
        for handle in self._handles:
            handle.remove()

    @abstractmethod
    def close(self) -> None:
        """Leave model and optimizer as they were."""

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self.close()


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
