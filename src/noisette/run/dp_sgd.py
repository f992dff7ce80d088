"""DP-SGD, algorithm 1 of Abadi et al. 2016, and the function that computes each of its lines.

1. Take a batch, each record with probability q           ``indices`` of ``sampling.poisson.PoissonSampler``
2. Compute the gradient of each example                   ``gradients.per_example.per_example_gradients``
3. Clip each to norm C and add them up                    ``clipping.norms.clip_and_sum``
4. Add noise of std sigma C, divide by the batch size L   ``mechanisms.gaussian.GaussianRelease``
5. Take a step of descent                                 ``optimizer.step``, the user's own

``batches`` computes line 1, ``accumulate`` lines 2 and 3, and a hook before ``optimizer.step`` line 4, in this order.
"""

from __future__ import annotations

import warnings
from abc import ABC, abstractmethod
from collections.abc import Callable, Generator, Iterable, Iterator, Sequence
from types import TracebackType
from typing import Any, Literal, Self

import numpy as np
import torch
from torch import Tensor
from torch.optim.optimizer import Optimizer, register_optimizer_step_pre_hook

from noisette._internal.first_few import first_few
from noisette.accounting.events import StepRelease, UserLevel
from noisette.capture.schedule import schedule_of
from noisette.clipping.per_example import PerExampleClip
from noisette.clipping.recorded_rows import RecordedCall
from noisette.core.batches import Batch
from noisette.core.keys import SecretKey
from noisette.core.release import GaussianRelease, GradientBound, TakesDeviations, mark_of
from noisette.core.trace import Loss, Microbatch
from noisette.errors import PrivacyError
from noisette.mechanisms.banded_factor import correlation_of
from noisette.mechanisms.compiled_noise import CompiledNoise
from noisette.ranks import Alone, AnyRanks, OtherRankRanOut
from noisette.ranks.shards import is_sharded
from noisette.run.released_gradients import ReleasedGradients
from noisette.run.remaining_batches import RemainingBatches
from noisette.run.seal import Seal
from noisette.run.step_call import StepCall, uncompiled
from noisette.sampling.fetching import fetch_of
from noisette.sampling.joint_batch import JointBatch
from noisette.sampling.loading import Collate, may_draw, records_of
from noisette.sampling.microbatch_size import MeasuredSize, memory_of
from noisette.sampling.schemes import sampler_of, user_records
from noisette.sampling.users import Users
from noisette.validation.examples_apart import warn_if_examples_meet, warn_of_backward_hooks
from noisette.validation.optimizer import StepsOfScaler, check_coverage, held_by

_NOT_ASSERTED = """run.backward(losses) computes the losses of a whole batch at once, and nothing shows that they keep \
its examples apart. Give the loss of one example instead, which is vectorised so that examples cannot mix:

    def loss(model, x, y):  # a batch of one example
        return F.cross_entropy(model(x), y)

    run.accumulate(loss, x, y)

Where the model cannot be vectorised, pass separability="asserted" to privatize: you then assert it yourself."""


class DpSgdRun(ABC):
    """The steps of DP-SGD around the user's own model and optimizer. Accounting is left to the subclasses.

    A ``with`` block, or ``close()``, removes every hook from model and optimizer. Of its planned ``steps``,
    ``steps_taken`` have moved the weights, and ``steps_lost`` were lost when a process crashed.
    """

    def __init__(
        self,
        bound: GradientBound,
        optimizer: Optimizer,
        dataset: Any,
        *,
        key: SecretKey,
        event: StepRelease,
        expected_batch_size: float,
        steps: int,
        separability: Literal["asserted"] | None,
        users: Users | None = None,
        collate_fn: Collate | None = None,
        steps_taken: int = 0,
        steps_lost: int = 0,
        ranks: AnyRanks = Alone(),  # noqa: B008 - it has no state
    ) -> None:
        self.bound = bound
        self._ranks = ranks
        if isinstance(bound, PerExampleClip):
            # Sums of several ranks are rounded before they meet, which moves those of neighbouring batches by as much
            # again as the additions of twice so many examples.
            bound.examples = max(bound.examples, float(expected_batch_size) * (1 if ranks.size == 1 else 3))
            bound.still_to_come = self._still_to_come
            bound.ranks = ranks
        self.optimizer = optimizer
        self.sampling_rate = event.sampling_rate
        self.expected_batch_size = expected_batch_size
        self.steps = steps
        self.separability = separability
        self.steps_taken = self._first_step = steps_taken
        self.steps_lost = steps_lost
        self._records = records_of(dataset, collate_fn)
        by_user = user_records(event, users, dataset, self._records.size, key)
        if isinstance(event, UserLevel) and by_user is not None:
            self._records = by_user.of(self._records, event.records)
        self._user_numbers = None if by_user is None else by_user.users
        self._sampler = sampler_of(event, self._records.size, key, first_step=steps_taken, users=by_user)
        self._measured = MeasuredSize(memory_of({p.device for p in bound.parameters.values()}))
        schedule = bound.schedule if isinstance(bound, PerExampleClip) else schedule_of("auto")
        self._compiled_noise = CompiledNoise(schedule, self._still_to_come)
        self._release = GaussianRelease(
            key,
            event.noise_multiplier,
            expected_batch_size,
            self._compiled_noise,
            ranks,
            correlation_of(event, steps - steps_taken - steps_lost),
        )
        self._names = {id(p): name for name, p in bound.parameters.items()}
        self._seal = Seal(bound, key)
        if isinstance(bound, PerExampleClip):
            bound.put_back = self._seal.before_microbatch
        self._batch: Batch | None = None  # drawn and not yet released
        self._compared = False  # whether the loss was called with several public examples
        # The ranks of a sharded model take every microbatch together; others meet once a step.
        self._is_sharded = any(map(is_sharded, bound.parameters.values()))
        self._gradients = ReleasedGradients(bound.parameters)
        self._stepping = StepCall()
        self._hooks = [
            StepsOfScaler(optimizer),
            optimizer.register_step_pre_hook(uncompiled(self._release_before_step)),
            optimizer.register_step_post_hook(uncompiled(self._after_step)),
            register_optimizer_step_pre_hook(uncompiled(self._refuse_second_optimizer)),
        ]

    @abstractmethod
    def _reserve_step(self) -> None:
        """Account for a step before its batch is drawn."""

    @abstractmethod
    def _commit_step(self) -> None:
        """Account for a release before its noise is drawn; from here on it cannot be taken back."""

    @abstractmethod
    def _steps_reserved(self) -> int:
        """How many steps are accounted for, from that of the current batch on; later batches may be drawn within."""

    @property
    def noise_multiplier(self) -> float:
        """Standard deviation of the noise in units of the sensitivity."""
        return self._release.noise_multiplier

    @property
    def steps_spent(self) -> int:
        """Number of steps that count towards ``steps``: those taken and those lost."""
        return self.steps_taken + self.steps_lost

    @property
    def steps_left(self) -> int:
        """Number of steps that may follow."""
        return max(0, self.steps - self.steps_spent)

    def _still_to_come(self) -> float:
        """How many times the work of this object so far is still to come."""
        return self.steps_left / max(1, self.steps_taken - self._first_step)

    def batches(self, workers: int = 0, to: torch.device | str | None = None, ahead: int = 1) -> RemainingBatches:
        """Line 1: the batches that remain, drawn as declared: Poisson batches
        unless others were. Each may be empty, and each needs one step. Of several ranks, each gets a part of each.
        Their ``len`` is the number of steps left, the total of a progress bar; a finished run warns that it has none.

        Args:
            workers: processes that load records; with 0 this process does. Their script needs
                ``if __name__ == "__main__":``, and the data set must be picklable.
            to: a device that microbatches are copied to, on a stream of its own.
            ahead: microbatches that the thread, or each process, loads ahead. They may belong to later steps that are
                in the ledger by then, so with a ledger in memory to none. The thread reads ahead rows of columns alone,
                processes whatever your data set returns.

        Guarantee: no batch is drawn before its step is in the ledger, and no process gets the key.

        Raises:
            PrivacyError: a batch was left without ``optimizer.step()``.
            TypeError, ValueError: ``workers`` or ``ahead`` is not a whole number of at least 0.
            RuntimeError: a loading process died; the step is not released.
        """
        return RemainingBatches(self._batches(workers, to, ahead), lambda: self.steps_left)

    def _batches(self, workers: int, to: torch.device | str | None, ahead: int) -> Generator[Batch, None, None]:
        fetch = fetch_of(self._records.gather, workers=workers, ahead=ahead, to=to)
        self._say_whether_finished()
        self.bound.before_first_batch()
        drawn: dict[int, Batch] = {}  # those ahead, by their steps

        def later(step: int) -> Iterator[Batch]:
            while (step := step + 1) < self.steps_taken + self._steps_reserved():
                if step not in drawn:
                    drawn[step] = batch_of(step)
                yield drawn[step]

        def batch_of(step: int) -> Batch:
            batch = self._batch_of(self._drawn(step))
            batch.fetch, batch.later = fetch, lambda: later(step)
            return batch

        try:
            while self.steps_left:
                self._check_step_taken()
                self._reserve_step()
                step = self.steps_taken
                self._batch = drawn.pop(step, None) or batch_of(step)
                yield self._batch
            self._check_step_taken()
        finally:
            fetch.close()

    def _say_whether_finished(self) -> None:
        if self.steps_left == 0 and self.steps_taken > self._first_step:  # it has trained, and is looped over again
            lost = f" ({self.steps_lost} lost in a crash)" if self.steps_lost else ""
            warnings.warn(
                f"this run is finished: all of its {self.steps} steps{lost} are spent, so there is no batch left and "
                "nothing is trained. To train further, start another run with noisette.privatize() on the same "
                "ledger, which adds the costs of both.",
                stacklevel=3,
            )

    def _drawn(self, step: int) -> np.ndarray:
        """Indices of the records of a step's batch that this process loads."""
        whole = self._sampler.indices(step=step)
        return self._ranks.share(whole) if self._records.own is None else self._records.held(whole)

    def _batch_of(self, drawn: np.ndarray) -> Batch:
        """The batch with these records."""
        before_each = self._seal.before_reading if may_draw(self._records.gather) else self._seal.before_microbatch
        if self._is_sharded:
            batch = JointBatch(drawn, self._records, self._measured, before_each, ranks=self._ranks)
        else:
            batch = Batch(drawn, self._records, self._measured, before_each)
        batch.expected = self.expected_batch_size
        if self.separability == "asserted":  # otherwise nothing is drawn before accumulate, where seeds are secret
            batch.before_use = self._seal.before_random_numbers
        return batch

    def accumulate(self, loss: Loss, *batch: Any, public: Iterable[Tensor] = (), **keywords: Any) -> None:
        """Lines 2 and 3: add the bounded gradients of the current microbatch to the sum of the batch.

        Where memory runs out in a microbatch of ``batch.microbatches("auto")``, nothing is added and the same examples
        come again in halves.

        Args:
            loss: called as ``loss(model, *batch, **keywords)`` with one example at a time, each tensor with a batch
                axis of length 1; returns a tensor with one value. It is vectorised by ``torch.func.vmap``, or where
                that cannot be, called once for each example, after which the model is put back.
            batch: the current microbatch; nested values in which each tensor has the examples on its first axis.
            public: tensors that the loss uses otherwise than as arguments, and that no record has been used for.
            keywords: more arguments of the loss, like ``batch``.

        Guarantee: no example is computed with another one's values, whatever model and loss compute, provided that the
        loss reaches no private value otherwise than by its arguments.

        Raises:
            PrivacyError: the examples are not those of the current microbatch, they were added before, or the loss
                cannot be vectorised and leaves something of one example for the next.
        """
        microbatch = Microbatch(batch, keywords)
        self._check_microbatch("accumulate", microbatch.count, "rows")
        if isinstance(self._batch, JointBatch) and self._batch.is_blank:
            self._add(self.bound.accumulate_nothing)
            return
        self._seal.before_random_numbers()
        self._add(lambda: self.bound.accumulate(loss, *batch, public=public, **keywords))
        if (
            not self._compared and not self._is_sharded
        ):  # afterwards, because what the loss makes and keeps is known from its recorded call
            self._compared = True
            warn_if_examples_meet(loss, self.bound.model, microbatch)
            warn_of_backward_hooks(self.bound.model)

    def before_call(self) -> None:
        """Called before the loop itself calls the model with records of the batch: random numbers are secret then."""
        self._seal.before_random_numbers()

    def accumulate_recorded(self, calls: Sequence[RecordedCall], scale: float) -> None:
        """Lines 2 and 3 for a loop that computes losses by itself: a piece of the current microbatch.

        Args:
            calls: of the model, each with the same records as rows, and the gradients that arrived at its outputs.
            scale: what these gradients are multiplied with.

        Raises:
            PrivacyError: there is no microbatch, or more rows than examples of it are left.
        """
        assert isinstance(self.bound, PerExampleClip)
        batch, count = self._batch, calls[0].count
        left = 0 if batch is None or batch.current is None else batch.current
        if batch is None or count > left:
            raise PrivacyError(
                f"gradients of {count} rows have arrived at the model's outputs, where {left} records of a batch are "
                "left: call the model with the records of the current batch, each in one piece of it"
            )
        self.bound.accumulate_recorded(calls, scale)
        batch.bounded += count
        batch.current = left - count or None

    def backward(self, losses: Tensor) -> None:
        """Lines 2 and 3 for models that cannot be vectorised: the bounded gradients of a vector of losses.

        Where memory runs out in a microbatch of ``batch.microbatches("auto")``, nothing is added and the same examples
        come again in halves.

        Args:
            losses: one value per example of the microbatch, shape (b,).

        Raises:
            PrivacyError: the separability of examples was not asserted, the losses are not those of the current
                microbatch, backward was called twice for one, or the bound refuses them.
        """
        if self.separability != "asserted":
            raise PrivacyError(_NOT_ASSERTED)
        self._check_microbatch("backward", losses.shape[0] if losses.dim() == 1 else None, "losses")
        self._seal.warn_of_known_numbers()
        if not self._add(lambda: self.bound.backward(losses)) and not losses._is_view():
            losses.detach_()  # the caller's reference to the losses would keep all activations alive

    def _check_microbatch(self, called: str, count: int | None, values: str) -> None:
        """Check that there is a microbatch, and that what was given has one value for each of its examples."""
        current = None if self._batch is None else self._batch.current
        if current is None:
            raise PrivacyError(
                f"{called} needs a microbatch: call it once for each one in `for ... in batch.microbatches(size)`, "
                "within `for batch in run.batches()`. Examples drawn in another way have no guarantee."
            )
        if count is not None and count != current:
            raise PrivacyError(
                f"the current microbatch has {current} examples, but there are {count} {values}: give one for each "
                "example of the microbatch"
            )

    def _add(self, bounded: Callable[[], None]) -> bool:
        """Add the current microbatch to the sum of the batch; false where memory ran out and it comes again."""
        batch = self._batch
        assert batch is not None
        assert batch.current is not None
        try:
            bounded()
        except OtherRankRanOut:
            batch.current = None
            return False
        except torch.OutOfMemoryError:
            if not batch.retry_smaller():
                raise
            return False
        batch.bounded += 0 if isinstance(batch, JointBatch) and batch.is_blank else batch.current
        batch.current = None
        return True

    def _release_before_step(self, optimizer: Optimizer, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
        """Line 4, in a hook before ``optimizer.step()``: what the optimizer finds in ``.grad`` is noised.

        torch calls it once more where a ``step`` calls that of its base class; the release was made by then.
        """
        if any(arg is not None for arg in args[1:]) or kwargs.get("closure") is not None:  # args[0] is the optimizer
            raise PrivacyError(
                "optimizer.step(closure) computes gradients that are not private; call step() without a closure"
            )
        if hasattr(optimizer, "found_inf") or "grad_scaler" in kwargs:
            StepsOfScaler.refuse(optimizer)
        batch = self._batch
        if batch is None and self._is_stepping():
            self._stepping.enter()
            return
        if batch is None:
            raise PrivacyError(
                "optimizer.step() needs a batch of its own: call it once for each batch in `for batch in run.batches()`"
            )
        with self._ranks.unanimous(f"step {self.steps_taken}") as equal:
            self._gradients.check_no_others()
            batch.check_bounded(len(batch.indices))
            if {id(p) for group in optimizer.param_groups for p in group["params"]} != self._names.keys():
                check_coverage(optimizer, self.bound)
            self._seal.before_release()
            # The accounting comes first: a release that fails half-way counts, and its noise is never drawn again.
            self._commit_step()
            sums = self.bound.pop_sums()
            if self._ranks.size > 1:
                equal["bounds, shares and parameters of the release"] = mark_of(sums)
        step, self._batch = self.steps_taken, None
        self.steps_taken += 1
        try:
            self._release(sums, self._names, step=step)
        except BaseException:
            self._ranks.close()  # the others wait for the rest of the release, and learn so that it does not come
            raise
        self._gradients.hand_over()
        if isinstance(self.optimizer, TakesDeviations):
            self.optimizer.take_deviations(self._release.deviations)
        self._stepping.begin()

    def _after_step(self, *_: object) -> None:
        """A hook after ``optimizer.step()``; that of a base class, within it, is not yet the end of the step."""
        if self._stepping.end():
            self.bound.after_step()

    def _is_stepping(self) -> bool:
        """Whether the step that made the last release is still under way."""
        return self._stepping.is_running()

    def _check_step_taken(self) -> None:
        if self._batch is not None:
            raise PrivacyError(
                "optimizer.step() was not called for the last batch. Every batch is released, also an empty one: "
                "whether a step happens must not depend on the data. Where the loop was interrupted within a batch, "
                f"close this run and start another with noisette.privatize() for the {self.steps_left} steps that are "
                "left, on the same ledger: the model keeps its weights"
            )

    def _refuse_second_optimizer(self, optimizer: Optimizer, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
        """A hook before the step of any optimizer: no other one may move the parameters of this run.

        One that the run's own optimizer calls within its step finds released gradients.
        """
        if optimizer is self.optimizer or not (shared := held_by(optimizer) & self._names.keys()):
            return
        if not self._is_stepping():
            names = sorted(self._names[i] for i in shared)
            raise PrivacyError(
                f"a second optimizer ({type(optimizer).__name__}) steps {first_few(names)}, which a DP-SGD run "
                "trains; give it other parameters, or close the run first. Of an optimizer that wraps another one, "
                "give the outer one to privatize"
            )

    def _remove_hooks(self) -> None:
        """Remove every hook from model and optimizer, and what a batch that was not released left in the model."""
        for handle in self._hooks:
            handle.remove()
        self._compiled_noise.close()
        self._seal.open_again()

    @abstractmethod
    def close(self) -> None:
        """Remove every hook from model and optimizer."""

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self.close()
