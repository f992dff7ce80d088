"""Per-example clipping: scale each example's gradient to a norm of at most C, then add up."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import replace
from functools import partial
from typing import TYPE_CHECKING, Any, Literal

import torch
from torch import Tensor, nn
from torch.nn.parameter import is_lazy

import noisette.rules  # noqa: F401 - registers them
from noisette.capture.captured import Capture, schedule_of
from noisette.capture.step import CapturedSteps
from noisette.clipping.rules import FlatClipping
from noisette.core import clip
from noisette.core.backward import UncoveredError, gradients_apart
from noisette.core.clip import BookKeeping, ClippedSum, Clipping, ClippingRule, Engine, Group, together
from noisette.core.loss import Loss, Microbatch, ModelBuffers, OutsideTensors, Unwrapped
from noisette.core.release import BoundedSum, Stateful
from noisette.core.trace import LossCall, TrainedModel, record_losses, recorded
from noisette.core.vmap import ExamplesDisagreeError, NotVectorizedError, shared_numbers
from noisette.errors import MissingRuleError, PrivacyError, exactly_one, offers, warn
from noisette.ranks import Alone, AnyRanks, in_step
from noisette.ranks.process_group import canonical_parameters
from noisette.ranks.shards import Shards, local
from noisette.rules.conv import few_operations
from noisette.rules.recomputed_blocks import recompute, repeatable

if TYPE_CHECKING:
    from noisette.clipping.engines import RecordedCall, Returned

_FEW = 8  # examples, whose disagreement about a value tells nothing of other microbatches
_ALL_FAIL = 16  # examples from the first on: where the losses of all raise, it is the loss that is wrong
_NEARLY_NOTHING = 1e-5  # the norm of a gradient that may be zero but for rounding


class PerExampleClip:
    """Bounds each example by scaling its gradient, over all trainable parameters jointly unless ``clipping`` is given.

    Nothing is attached to the model.

    Args:
        model: any module whose examples do not mix; its trainable parameters are those that require gradients now. Of
            ``DistributedDataParallel`` it is the module inside; the wrapper exchanges nothing until ``close()``.
        max_grad_norm: the bound C, in the units of the gradient's Euclidean norm; as ``clipping=FlatClipping(C)``.
        clipping: instead of ``max_grad_norm``: a rule, such as ``PerLayerClipping(1.0)`` or ``AdaptiveClip(0.1)``.
        engine: how the clipped sum is computed; every engine gives the same sum.
        capture: how :meth:`accumulate` runs from its second microbatch on: ``"eager"``; ``"graph"`` as one graph of
            operations; ``"compiled"`` as a compiled graph, for which it waits; ``"auto"`` as the quickest of these,
            where enough microbatches are to be expected to repay the work.
        errors: what becomes of an example whose loss raises an error, as for a label that is out of range: with
            ``"raise"`` so does :meth:`accumulate`, and nothing of the batch is released; with ``"skip"`` it adds
            nothing, unless the first sixteen all raise.

    Guarantee: adding or removing one example changes each sum by at most its bound (with ``max_grad_norm`` there is
    one, of bound C), in real arithmetic, for a loss as :class:`noisette.Loss` says, and for given random numbers of
    each example, which a run draws from a secret seed.
    Source: Abadi et al. 2016, algorithm 1; Lee & Kifer 2020, eq. 2.

    Raises:
        ValueError: the bound is not a finite number above zero, the rule does not fit the parameters, ``capture`` is
            unknown, or the model has nothing to train, a complex parameter, or lazy modules without shapes.

    >>> import torch
    >>> model = torch.nn.Linear(2, 1, bias=False)
    >>> clip = PerExampleClip(model, max_grad_norm=1.0)
    >>> clip.accumulate(lambda model, x: model(x).sum(), torch.tensor([[3.0, 4.0], [0.0, 0.5]]))
    >>> [sum] = clip.pop_sums()
    >>> [round(value, 3) for value in sum.grads[0].flatten().tolist()]
    [0.6, 1.3]
    """

    def __init__(
        self,
        model: nn.Module,
        max_grad_norm: float | None = None,
        *,
        clipping: ClippingRule | None = None,
        engine: Engine | None = None,
        capture: Capture = "auto",
        errors: Literal["raise", "skip"] = "raise",
    ) -> None:
        if errors not in ("raise", "skip"):
            raise ValueError(f"errors={errors!r} is unknown; choose 'raise' or 'skip'")
        offers("named_parameters", "a torch.nn.Module", model=model)
        exactly_one(max_grad_norm=max_grad_norm, clipping=clipping)
        offers("clipped_sum", "noisette.engines.BookKeeping()", engine=engine)
        offers("groups", "noisette.AutomaticClipping()", clipping=clipping)
        if clipping is None:
            assert max_grad_norm is not None
            clipping = FlatClipping(max_grad_norm)
        self._unwrapped = Unwrapped(model)
        self.model = model = self._unwrapped.module
        _check_initialized(model)
        self.clipping: ClippingRule = clipping
        self._adaptive = clipping if isinstance(clipping, clip.AdaptiveRule) else None
        self.engine: Engine = engine if engine is not None else BookKeeping()
        self.ranks: AnyRanks = Alone()  # that take part in each microbatch of a sharded model; a run sets it
        self._shards = Shards(model)
        self._is_sharded = bool(self._shards)
        with self._shards.gathered():
            # While a sharded model runs, these whole parameters stand in the place of the shards.
            self._whole = {name: p for name, p in canonical_parameters(model) if p.requires_grad}
        self.parameters = {name: self._shards.parameters[name] for name in self._whole}  # the trainable ones
        self.buffers = ModelBuffers(model)
        self._outside = OutsideTensors()
        self.schedule = None if self._is_sharded else schedule_of(capture)  # when anything is captured or compiled
        # Engines that compute examples one after the other are captured where that is asked for, which says why not.
        repeats, self._captured = getattr(self.engine, "computes_again", False), None
        if self.schedule is not None and (self.schedule.at_once or not repeats):
            self._captured = CapturedSteps(model, self._clipped_sum, self._outside, self.schedule)
        self._still_to_come = 1.0  # how many times the work so far is still to come
        self._known_losses: set[object] = set()  # by their code: called once, so that it is known what they draw
        self._is_one_by_one = False  # the loss cannot be vectorised
        self._may_call_model_at_once = not getattr(self.engine, "computes_again", False)  # though the loss may not be
        self._opened: set[nn.Module] = set()  # modules that cannot be vectorised, though those inside of them may be
        self._is_first = True  # no microbatch has been added yet
        self._skips_errors = errors == "skip"
        self._tried = self._failed = 0  # examples so far, and those whose loss has raised
        self._groups: list[Group] | None = None  # of the current batch: all its microbatches have the same bounds
        self._sums = clip.Accumulator()
        self._twice_counted: dict[int, Tensor] = {}  # by number of the group
        self._released: list[Group] = []  # whose counts were released with the last batch
        self._closed = False
        try:
            if not self.parameters:
                raise ValueError("the model has no trainable parameter: every one has requires_grad=False")
            if found := [name for name, p in self.parameters.items() if p.is_complex()]:
                raise ValueError(  # rules, noise and optimizers would treat only its real part
                    f"complex parameters cannot be trained: {', '.join(found)}. Hold the real and the imaginary part "
                    "as a real parameter with a last axis of 2, and use torch.view_as_complex(parameter) in forward."
                )
            self._fresh_groups()
        except ValueError:
            self.close()
            raise

    @property
    def capture_problems(self) -> tuple[str, ...]:
        """Why microbatches so far were not captured, though they were due."""
        return () if self._captured is None else self._captured.problems

    @property
    def captured_operations(self) -> int:
        """The number of operations in the largest captured graph; 0 before a step is captured."""
        return 0 if self._captured is None else self._captured.operations

    def before_first_batch(self, columns: Sequence[Tensor] = ()) -> None:
        """Remember which tensors exist, so that a loss uses no other from outside, and none of the records."""
        self._outside.before_first_batch(columns)

    def begin_batch(self, still_to_come: float = 1.0, seed: int = 0) -> None:
        """The first records of a batch are about to be read: the losses compute with the buffers as they are now."""
        self.reshard()
        self._still_to_come = still_to_come
        self.buffers.begin_batch(seed)

    def end_batch(self) -> list[str]:
        """Put back the buffers that were written since the batch began; give their names."""
        return self.buffers.end_batch()

    def reshard(self) -> None:
        """Leave each rank its shards alone, where the model is sharded and was called since."""
        if self._is_sharded:
            self._shards.reshard()

    def accumulate(self, loss: Loss, *batch: Any, public: Iterable[Tensor] = (), **keywords: Any) -> None:
        """Add the clipped gradients of these examples to the running sum, given the loss of one example.

        A loss that ``torch.func.vmap`` cannot vectorise is called once for each example, with a warning.

        Guarantee: for a loss as :class:`noisette.Loss` says, each example's gradient is computed from that example,
        the weights and the buffers alone.

        Raises:
            PrivacyError: the loss is not one value, reads entries of several examples that are no tensor, writes into
                a parameter, or uses a tensor from outside that changes.
            MissingRuleError: an operation uses a parameter in a way that has no rule.
        """
        self.add(loss, Microbatch(batch, keywords), tuple(public))

    def add(self, loss: Loss, microbatch: Microbatch, public: tuple[Tensor, ...]) -> None:
        """Lines 2 and 3 of algorithm 1 for the examples of a microbatch, as :meth:`accumulate`."""
        self._check_open()
        if microbatch.count == 0:
            return
        self._tried += microbatch.count
        groups = self._trained_groups()
        for hook in self.model._forward_pre_hooks.values():
            if (refresh := getattr(hook, "refresh", None)) is not None:  # of statistics from public data
                refresh(self.model)  # in its own buffers: copies are dropped after a call, a graph has no hooks
        if self._is_sharded:
            with in_step(self.ranks, "a microbatch"), self._shards.gathered(self.ranks):
                clipped = self._step(loss, microbatch, Clipping(groups), public, once=True)  # other ranks wait
            self._add(self._shards.land(clipped.sums, self._trained().parameters, self.ranks), clipped.norms)
            return
        if self._captured is None or self._is_one_by_one or microbatch.has_other_entries:
            clipped = self._clipped_sum(loss, microbatch, Clipping(groups), public)
        else:
            buffers, left = self.buffers.values(), self._still_to_come
            clipped = self._captured.clipped_sum(loss, microbatch, groups, public, buffers, left)
        if self._is_first:
            self._is_first = False
            if microbatch.count > 1 and bool(clipped.norms.max() < _NEARLY_NOTHING):
                self._check_alone(loss, microbatch, float(clipped.norms.sum()))
        self._add(clipped.sums, clipped.norms)

    def _add(self, sums: Mapping[str, Tensor], norms: Tensor) -> None:
        counts = {
            k: self._twice_counted.get(k, 0) + group.count.twice(norms[k], group.bound)
            for k, group in enumerate(self._batch_groups())
            if group.count is not None
        }
        self._sums.add(sums)
        self._twice_counted |= counts

    def _check_alone(self, loss: Loss, microbatch: Microbatch, alone: float) -> None:
        """Refuse a loss over a batch, which has no gradient for any example alone, and has one for several joined."""
        # The gradient of a sum or mean of losses of one example has at most the norm of all examples alone, added up.
        trained = [p for p in self._trained().parameters.values() if p.requires_grad]
        try:
            with torch.random.fork_rng(devices=[]), self.buffers.lent():
                value = loss(self.model, *microbatch.args, **microbatch.kwargs).sum()
            with gradients_apart(trained):
                joined = torch.autograd.grad(value, trained, allow_unused=True)
        except Exception:  # of several examples a loss may raise anything
            return
        if 100 * alone < math.hypot(*(float(g.norm()) for g in joined if g is not None)) < math.inf:
            raise PrivacyError(
                "the loss of one example alone has no gradient, and that of several together has one, as that of pairs "
                "or of the order of survival times: every step would release noise alone. Make each pair a record, "
                "with users= for the people in it, or use a loss of one example, such as discrete-time survival: "
                "docs/explanation/contract.md"
            )

    def accumulate_nothing(self) -> None:
        """Take part in a microbatch of a sharded model of which this rank has no example."""
        self._check_open()
        self._batch_groups()
        with in_step(self.ranks, "a microbatch"), self._shards.gathered(self.ranks):
            pass
        self._sums.add(self._shards.land({}, self._trained().parameters, self.ranks))

    def record_rows(self, batch: Microbatch) -> Returned:
        """Call the model with the rows of these arguments apart, for a loop that computes losses by itself."""
        from noisette.clipping.engines import record_rows

        self._check_open()
        if self._is_sharded:
            way_out = "call run.accumulate(loss, *batch), or give each rank the whole model"
            raise PrivacyError(f"a sharded model takes the loss of one example: {way_out}")
        returned = record_rows(self._trained(), batch, one_by_one=self._is_one_by_one)
        self._is_one_by_one |= returned.call.recording is None
        return returned

    def accumulate_recorded(self, calls: Sequence[RecordedCall], scale: float) -> None:
        """Add the clipped gradients of the rows of these calls, as :func:`noisette.clipping.engines.clipped_sum_of`."""
        from noisette.clipping.engines import clipped_sum_of

        self._check_open()
        clipping = Clipping(self._trained_groups())
        with _without_autocast(next(iter(calls[0].gradients.values())).device.type):
            clipped = clipped_sum_of(calls, scale, self.engine, self._trained().parameters, clipping)
        self._add(clipped.sums, clipped.norms)

    def pop_sums(self) -> list[BoundedSum]:
        """Return the clipped sum and the count of each group, zeros without examples; then start again from nothing."""
        held = {name: local(p) for name, p in self.parameters.items()} if self._is_sharded else self.parameters
        groups, added, counted = self._batch_groups(), self._sums.pop_sums(held), self._twice_counted
        self.buffers.seed += 1  # without a run, whose batches have seeds
        self._twice_counted, self._released = {}, groups
        if self._adaptive is not None:
            self._groups = None
        sums: list[BoundedSum] = []
        for k, group in enumerate(groups):
            params = tuple([self.parameters[name] for name in group.names])
            sums.append(BoundedSum(params, tuple([added[name] for name in group.names]), group.bound))
            if group.count is not None:
                sums.append(group.count.sum_of(counted.get(k)))
        return sums

    def after_step(self) -> None:
        """Give an adaptive clipping rule the counts that were released; clipping does not constrain the weights."""
        for group in self._released:
            if self._adaptive is not None and group.count is not None and group.count.released.grad is not None:
                self._adaptive.adapt(group.count.released.grad)

    def state(self) -> Mapping[str, float]:
        """What the clipping rule has learned from released values; empty for a rule that learns nothing."""
        return self.clipping.state() if isinstance(self.clipping, Stateful) else {}

    def restore(self, state: Mapping[str, float]) -> None:
        """Continue with what :meth:`state` gave, with a clipping rule like the one that it was taken from."""
        if isinstance(self.clipping, Stateful):
            self.clipping.restore(state)

    def close(self) -> None:
        self._closed = True
        self._unwrapped.close()

    def _clipped_sum(
        self, loss: Loss, microbatch: Microbatch, clipping: Clipping, public: tuple[Tensor, ...], traced: bool = False
    ) -> ClippedSum:
        """The clipped sum of a microbatch, to which an example whose loss raises adds nothing where that is asked for.

        Guarantee: whether an example counts depends on itself alone: one that raises among others is called alone.
        """
        if traced:
            with few_operations():
                return self._step(loss, microbatch, clipping, public, once=True)
        try:
            return self._called(loss, microbatch, clipping, public)
        except Exception as error:
            if isinstance(error, PrivacyError | torch.OutOfMemoryError) or not self._skips_errors:
                raise
            microbatch.check_unwritten()
            if half := microbatch.count // 2:
                parts = [microbatch.of_rows(range(half)), microbatch.of_rows(range(half, microbatch.count))]
                return together([self._clipped_sum(loss, part, clipping, public) for part in parts])
            self._failed += 1
            if self._failed == self._tried >= _ALL_FAIL:
                raise
            return ClippedSum({}, torch.zeros(len(clipping.groups), 1, device=microbatch.tensors[0].device))

    def _called(self, loss: Loss, microbatch: Microbatch, clipping: Clipping, public: tuple[Tensor, ...]) -> ClippedSum:
        """The clipped sum of a microbatch: by one call of the loss, or where that cannot be, one for each example."""
        if not self._is_one_by_one:
            step = partial(self._step, loss, clipping=clipping, public=public, once=False)
            try:
                try:
                    return step(microbatch)
                except ExamplesDisagreeError as error:
                    return _in_ways(step, microbatch, error, max(2, microbatch.count // 2))
            except (NotVectorizedError, UncoveredError, NotImplementedError) as error:
                microbatch.check_unwritten()
                from noisette.clipping.engines import OneByOneWarning

                warn(OneByOneWarning(error))
                self._is_one_by_one = not isinstance(error, ExamplesDisagreeError) or microbatch.count > _FEW
                self._may_call_model_at_once &= isinstance(error, NotVectorizedError)
        from noisette.clipping.engines import calls_of_loss, clipped_sum_of, clipped_sum_one_by_one

        model = self._trained()
        with shared_numbers(loss, self.buffers.seed) as (loss, _):
            if self._may_call_model_at_once:
                try:
                    record = partial(recorded, model=model, batch=microbatch, public=public, recompute=recompute)
                    calls = calls_of_loss(loss, model, microbatch, record, self._opened)
                    with _without_autocast(microbatch.tensors[0].device.type):
                        return clipped_sum_of([calls], 1, self.engine, model.parameters, clipping)
                except (NotVectorizedError, MissingRuleError, NotImplementedError):
                    microbatch.check_unwritten()
            call = LossCall(loss, self.model, microbatch, self.buffers)
            found = clipped_sum_one_by_one(call, model.parameters, clipping)
        self._may_call_model_at_once = False
        return found

    def _step(
        self, loss: Loss, microbatch: Microbatch, clipping: Clipping, public: tuple[Tensor, ...], *, once: bool
    ) -> ClippedSum:
        """The clipped sum of a microbatch, by one call of the loss; ``once``: no part of it is computed again."""
        repeats, model = not once and getattr(self.engine, "repeats_the_pass", False), self._trained()
        code = _code_of(loss), self.model.training
        seeded = shared_numbers(loss, self.buffers.seed)
        known = nullcontext((loss, lambda: False))  # it draws nothing there
        with known if code in self._known_losses else seeded as (called, has_drawn):
            record = partial(record_losses, called, model, microbatch, public, None if once else recompute)
            forward = repeatable(record, microbatch.tensors) if repeats else record()
            if has_drawn():
                if once and not self._is_sharded:
                    raise NotVectorizedError("The loss draws from the random generator of Python or NumPy.")
            elif not forward.recording.has_asked:  # otherwise another batch may go another way
                self._known_losses.add(code)
            with _without_autocast(forward.losses.device.type):
                return self.engine.clipped_sum(forward, model.parameters, clipping)

    def _check_open(self) -> None:
        if self._closed:
            raise PrivacyError("this clip was closed, so it records nothing: make a new PerExampleClip of the model")

    def _trained(self) -> TrainedModel:
        """What the losses see, of the parameters those that were not frozen since."""
        trained = {name: p for name, p in self._whole.items() if self.parameters[name].requires_grad}
        return TrainedModel(self.model, trained, self.buffers, self._outside)

    def _trained_groups(self) -> list[Group]:
        trained, groups = self._trained().parameters, self._batch_groups()
        if len(trained) == len(self.parameters):
            return groups
        return [replace(group, names=tuple([name for name in group.names if name in trained])) for group in groups]

    def _batch_groups(self) -> list[Group]:
        if self._groups is None:
            self.after_step()  # also where the optimizer failed after a release
            self._groups = self._fresh_groups()
        return self._groups

    def _fresh_groups(self) -> list[Group]:
        groups = self.clipping.groups(list(self.parameters))
        if sorted([name for group in groups for name in group.names]) != sorted(self.parameters):
            rule = type(self.clipping).__name__
            raise ValueError(f"{rule} does not put every trainable parameter in exactly one group")
        return groups


def _check_initialized(model: nn.Module) -> None:
    named = [*model.named_parameters(), *model.named_buffers()]
    if lazy := [name for name, tensor in named if is_lazy(tensor)]:
        raise ValueError(
            f"{', '.join(lazy)}: a lazy module has no parameters before its first input. Call the model once with a "
            "public input, and give its parameters to the optimizer after that"
        )


def _in_ways(
    step: Callable[[Microbatch], ClippedSum], batch: Microbatch, ways: ExamplesDisagreeError, calls: int
) -> ClippedSum:
    """The clipped sum, by a call for all examples that go one way; the error again where that takes more calls."""
    if calls < len(ways.groups):
        raise ways
    batch.check_unwritten()
    left, found = calls // len(ways.groups) - 1, list[ClippedSum]()  # left for each of them
    for group in map(batch.of_rows, ways.groups):
        try:
            found.append(step(group))
        except ExamplesDisagreeError as again:
            found.append(_in_ways(step, group, again, left))
    return together(found)


def _code_of(loss: Any) -> object:
    while isinstance(loss, partial):
        loss = loss.func
    return getattr(loss, "__code__", type(loss))


def _without_autocast(device: str) -> AbstractContextManager[object]:
    return torch.autocast(device, enabled=False) if torch.is_autocast_enabled(device) else nullcontext()
