"""Per-example clipping: scale each example's gradient to a norm of at most C, then add up."""

from __future__ import annotations

import warnings
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import AbstractContextManager, contextmanager, nullcontext
from dataclasses import replace
from functools import partial
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.utils.stateless import _reparametrize_module

from noisette._internal import checks
from noisette.capture.schedule import Capture, schedule_of
from noisette.capture.step import CapturedSteps
from noisette.clipping.engines.book_keeping import BookKeeping
from noisette.clipping.flat import FlatClipping
from noisette.clipping.loss_checks import check_independent, check_one_per_example
from noisette.clipping.one_by_one import OneByOne, OneByOneWarning, says_one_by_one
from noisette.clipping.quantile_count import count_within_norm, twice_the_count
from noisette.core.backward import LocatedRecording, UncoveredError, search
from noisette.core.clip import (
    Accumulator,
    AdaptiveRule,
    ClippedSum,
    Clipping,
    ClippingRule,
    Count,
    Engine,
    Group,
    check_real,
    clipping_of,
)
from noisette.core.forms import Examples
from noisette.core.registry import rewrites
from noisette.core.release import BoundedSum, Stateful
from noisette.core.trace import Loss, Microbatch, NotVectorizedError, Tape, record_losses
from noisette.errors import PrivacyError
from noisette.gradients.batch_axis import BatchAxisFinder
from noisette.gradients.lazy_parameters import check_initialized
from noisette.gradients.outside_tensors import OutsideTensors
from noisette.gradients.repeated_pass import repeatable
from noisette.ranks import Alone, AnyRanks, in_step
from noisette.ranks.shards import Shards, local
from noisette.ranks.wrappers import Unwrapped
from noisette.rules.autotune import few_operations
from noisette.rules.recomputed_blocks import Blocks


class PerExampleClip:
    """Bounds each example by scaling its gradient, over all trainable parameters jointly unless ``clipping`` is given.

    The model is not changed: two hooks on its root record each forward pass, and ``close()`` removes them.

    Args:
        model: any module whose examples do not mix; its trainable parameters are those that require gradients now. Of
            ``DistributedDataParallel`` it is the module inside; the wrapper exchanges nothing until ``close()``.
        max_grad_norm: the bound C, in the units of the gradient's Euclidean norm; as ``clipping=FlatClipping(C)``.
        clipping: instead of ``max_grad_norm``: a rule, such as ``PerLayerClipping(1.0)`` or ``AdaptiveClip(0.1)``.
        engine: how the clipped sum is computed; every engine gives the same sum.
        capture: how :meth:`accumulate` runs from its second microbatch on: ``"eager"`` as it is; ``"graph"`` as one
            graph of operations, without Python; ``"compiled"`` as a graph that was compiled, for which it waits;
            ``"auto"`` as the quickest of these, where enough microbatches are to be expected to repay the work.

    Guarantee: adding or removing one example changes each sum by at most its bound (with ``max_grad_norm`` there is
    one, of bound C), provided that no operation of the model mixes examples (the preflight checks that), and for given
    random numbers of each example: without a run, which seeds generators secretly, one example more gives those behind
    it other masks, and who knows the seed knows them.
    Source: Abadi et al. 2016, algorithm 1; Lee & Kifer 2020, eq. 2.

    Raises:
        ValueError: the bound is not a finite number above zero, the rule does not fit the parameters, ``capture`` is
            unknown, or the model has nothing to train, a complex parameter, or lazy modules without shapes.

    >>> import torch
    >>> model = torch.nn.Linear(2, 1, bias=False)
    >>> clip = PerExampleClip(model, max_grad_norm=1.0)
    >>> clip.backward(model(torch.tensor([[3.0, 4.0], [0.0, 0.5]])).squeeze(1))
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
    ) -> None:
        checks.exactly_one(max_grad_norm=max_grad_norm, clipping=clipping)
        if clipping is None:
            assert max_grad_norm is not None
            clipping = FlatClipping(max_grad_norm)
        self._unwrapped = Unwrapped(model)
        self.model = model = self._unwrapped.module
        check_initialized(model)
        self.clipping: ClippingRule = clipping
        self.engine: Engine = engine if engine is not None else BookKeeping()
        self.examples = 1.0
        self.still_to_come: Callable[[], float] = lambda: 1.0  # how often the work so far will come again; likewise
        self.ranks: AnyRanks = Alone()  # that take part in each microbatch of a sharded model; a run sets it
        self._batch_axes = BatchAxisFinder()
        self._shards = Shards(model)
        with self._shards.gathered():
            self._tape = Tape(model, rewrites())
        # The trainable parameters, by name; while a sharded model runs, the tape sees whole ones in their place.
        self.parameters: Mapping[str, Tensor] = self._shards.held(self._tape.parameters)
        self._groups: list[Group] | None = None  # of the current batch: all its microbatches have the same bounds
        self._outside = OutsideTensors()
        # When anything is captured or compiled.
        self.schedule = None if self._shards else schedule_of(capture)
        self._captured = self.schedule and CapturedSteps(model, self._clipped_sum, self._outside, self.schedule)
        self._one_by_one = OneByOne(self._tape, self._outside)
        self._is_one_by_one = False  # the loss cannot be vectorised
        self.put_back: Callable[[], None] | None = None  # makes the model what it was before the batch; a run sets it
        self._sums = Accumulator()
        self._twice_counted: dict[int, Tensor] = {}  # by number of the group
        self._counts: list[Count] = []  # released with the last batch
        self._closed = False
        try:
            if not self.parameters:
                raise ValueError("the model has no trainable parameter: every one has requires_grad=False")
            check_real(self.parameters)
            self._fresh_groups()
        except ValueError:
            self.close()
            raise

    def backward(self, losses: Tensor) -> None:
        """Add the clipped gradients of these examples to the running sum.

        Args:
            losses: one value per example, shape (b,), computed from calls of the model.

        Raises:
            PrivacyError: a scalar, a tensor that is not one value per example, losses that depend on each other's
                outputs, or a clip that was closed.
            MissingRuleError: an operation uses a parameter in a way that has no rule.
        """
        self._check_open()
        if self._shards:
            raise PrivacyError(
                "losses of a sharded model are computed while its ranks exchange weights, which cannot be recorded: "
                "give the loss of one example to run.accumulate(loss, *batch), or each rank the whole model"
            )
        recording = self._tape.pop()
        if losses.dim() != 1 or not losses.requires_grad:
            check_one_per_example(losses)
        if losses.shape[0] == 0:
            return
        if not recording.calls:
            raise PrivacyError(
                "the losses do not come from a call of the model: call the module itself (not its forward, not a part "
                "of it), with gradients enabled, before each backward"
            )
        check_independent(losses, recording.outputs)
        graph = search(losses, recording.uses, self._tape.parameters)
        forward = [LocatedRecording(losses, recording, graph, self._batch_axes.locate(losses, recording, graph))]
        del recording  # the engine holds the only reference to the activations, and drops each as soon as it can
        self._add(self._by_engine(forward, clipping_of(self._trained_groups())))

    @property
    def sees_examples_alone(self) -> bool:
        """Whether the loss is being called with one example at a time."""
        return self._one_by_one.is_running

    @property
    def capture_problems(self) -> tuple[str, ...]:
        """Why microbatches so far were not captured, though they were due."""
        return () if self._captured is None else self._captured.problems

    @property
    def captured_operations(self) -> int:
        """The number of operations in the largest captured graph; 0 before a step is captured."""
        return 0 if self._captured is None else self._captured.operations

    def before_first_batch(self) -> None:
        """Remember which tensors exist, so that a vectorised loss uses no other from outside."""
        self._outside.before_first_batch()

    def before_batch(self) -> None:
        """Called before the first records of a batch are read."""
        self.reshard()

    def reshard(self) -> None:
        """Leave each rank its shards alone, where the model is sharded and was called since."""
        self._shards.reshard()

    def accumulate(self, loss: Loss, *batch: Any, public: Iterable[Tensor] = (), **keywords: Any) -> None:
        """Add the clipped gradients of these examples to the running sum, given the loss of one example.

        The loss is vectorised by ``torch.func.vmap``: nothing in model or loss can see more than one example. A loss
        that cannot be vectorised is called once for each example, with a warning; what such a call leaves behind in
        tensors, modules, closures, globals and containers is refused, so that none reads what another one wrote.

        Args:
            loss: called as ``loss(model, *batch, **keywords)`` with one example at a time, each tensor with a batch
                axis of length 1; returns a tensor with one value.
            batch: b examples; nested values in which each tensor has the examples on its first axis.
            public: tensors that the loss uses otherwise than as arguments, and that no record has been used for.
            keywords: more arguments of the loss, like ``batch``.

        Guarantee: each example's gradient is computed from that example and the weights alone, provided that the loss
        reaches no private value otherwise than by its arguments. A tensor from outside is refused unless it stays the
        same or is declared public; Python numbers and arrays from outside cannot be seen, nor what a
        ``torch.autograd.Function`` does in a ``vmap`` rule of its own.

        Raises:
            PrivacyError: the loss is not one value, writes into the model, uses a tensor from outside that changes, or,
                where it cannot be vectorised, leaves something behind.
            MissingRuleError: an operation uses a parameter in a way that has no rule.

        >>> import torch
        >>> model = torch.nn.Linear(2, 1, bias=False)
        >>> clip = PerExampleClip(model, max_grad_norm=1.0)
        >>> clip.accumulate(lambda model, x: model(x).sum(), torch.tensor([[3.0, 4.0], [0.0, 0.5]]))
        >>> [sum] = clip.pop_sums()
        >>> [round(value, 3) for value in sum.grads[0].flatten().tolist()]
        [0.6, 1.3]
        """
        self._check_open()
        microbatch = Microbatch(batch, keywords)
        if microbatch.count == 0:
            return
        groups = self._trained_groups()
        if self._shards:
            with in_step(self.ranks, "a microbatch"), self._shards.gathered():
                clipped = self._clipped_sum(loss, microbatch, clipping_of(groups), public)
        elif self._captured is None or self._is_one_by_one:
            clipped = self._clipped_sum(loss, microbatch, clipping_of(groups), public)
        else:
            clipped = self._captured.clipped_sum(
                loss,
                microbatch,
                groups,
                tuple(public),
                buffers=dict(self.model.named_buffers()),
                steps_left_ratio=self.still_to_come(),
            )
        self._add(clipped)

    def accumulate_nothing(self) -> None:
        """Take part in a microbatch of a sharded model of which this rank has no example."""
        self._check_open()
        self._batch_groups()
        with in_step(self.ranks, "a microbatch"), self._shards.gathered():
            pass
        self._sums.add(self._shards.land({}, self._trained()))

    def _clipped_sum(
        self, loss: Loss, microbatch: Microbatch, clipping: Clipping, public: Iterable[Tensor], traced: bool = False
    ) -> ClippedSum:
        """The clipped sum of a microbatch, given the loss of one example."""
        if self._is_one_by_one and not traced:
            return self._one_by_one.clipped_sum(loss, microbatch, clipping, public, self.put_back)
        try:
            return self._vectorized_sum(loss, microbatch, clipping, public, traced)
        except (NotVectorizedError, UncoveredError, NotImplementedError) as error:
            if traced or self._shards:  # a graph is traced, or other ranks wait
                raise
            fact = str(error).splitlines()[0].partition(". ")[0]
            cause = error.cause if isinstance(error, NotVectorizedError) else f"{fact}."
            warnings.warn(says_one_by_one(cause), OneByOneWarning, stacklevel=3)
            self._is_one_by_one = True
        return self._clipped_sum(loss, microbatch, clipping, public)

    def _vectorized_sum(
        self, loss: Loss, microbatch: Microbatch, clipping: Clipping, public: Iterable[Tensor], traced: bool
    ) -> ClippedSum:
        """The clipped sum of a microbatch, by one call of the loss."""
        # A graph that is traced has no random state, and runs without Python. The ranks of a sharded model run once.
        eager = not traced and not self._shards
        record = partial(self._recorded, loss, microbatch, tuple(public), recompute=eager)
        with few_operations() if traced else nullcontext():
            return self._by_engine([repeatable(record, self.model) if eager else record()], clipping)

    def _recorded(
        self, loss: Loss, microbatch: Microbatch, public: Iterable[Tensor], *, recompute: bool
    ) -> LocatedRecording:
        """A forward pass of a microbatch."""
        with _reparametrize_module(self.model, {name: b.clone() for name, b in self.model.named_buffers()}):
            found = record_losses(
                self._tape, loss, microbatch, self._outside, public, blocks=Blocks if recompute else None
            )
        check_one_per_example(found.losses)
        graph = search(found.losses, found.recording.uses, self._tape.parameters)
        examples = [Examples(microbatch.count)] * len(found.recording.uses)
        return LocatedRecording(found.losses, found.recording, graph, examples)

    def _check_open(self) -> None:
        if self._closed:
            raise PrivacyError("this clip was closed, so it records nothing: make a new PerExampleClip of the model")

    def _by_engine(self, forward: list[LocatedRecording], clipping: Clipping) -> ClippedSum:
        """The clipped sum of one located recording, which is taken out of its list."""
        trained = self._trained()
        with _without_autocast(forward[0].losses.device.type):
            return self.engine.clipped_sum(forward.pop(), trained, clipping)

    def _trained(self) -> dict[str, Tensor]:
        """The parameters that the tape sees, without those that were frozen since."""
        return {name: p for name, p in self._tape.parameters.items() if self.parameters[name].requires_grad}

    def _trained_groups(self) -> list[Group]:
        """The groups of the current batch, without the parameters that were frozen since."""
        trained = {name for name, p in self.parameters.items() if p.requires_grad}
        groups = self._batch_groups()
        if len(trained) == len(self.parameters):
            return groups
        return [replace(group, names=tuple([name for name in group.names if name in trained])) for group in groups]

    def _add(self, clipped: ClippedSum) -> None:
        """Add the clipped sum of a microbatch to that of the batch."""
        counts = {
            k: self._twice_counted.get(k, 0) + twice_the_count(clipped.norms[k], group.bound)
            for k, group in enumerate(self._batch_groups())
            if group.count is not None
        }
        self._sums.add(self._shards.land(clipped.sums, self._trained()) if self._shards else clipped.sums)
        self._twice_counted |= counts

    def _batch_groups(self) -> list[Group]:
        if self._groups is None:
            self._adapt()  # also where the optimizer failed after a release
            self._groups = self._fresh_groups()
        return self._groups

    def _adapt(self) -> None:
        for count in self._counts:
            if isinstance(self.clipping, AdaptiveRule) and count.released.grad is not None:
                self.clipping.adapt(count.released.grad)

    def _fresh_groups(self) -> list[Group]:
        groups = self.clipping.groups(list(self.parameters))
        if sorted([name for group in groups for name in group.names]) != sorted(self.parameters):
            raise ValueError(
                f"{type(self.clipping).__name__} does not put every trainable parameter in exactly one group"
            )
        return groups

    def pop_sums(self) -> list[BoundedSum]:
        """Return the clipped sum of each group, zeros where no example contributed; then start again from nothing.

        A group that counts has its count beside it, as a sum of its own.
        """
        held = {name: local(p) for name, p in self.parameters.items()}
        groups, added, counted = self._batch_groups(), self._sums.pop_sums(held), self._twice_counted
        self._groups, self._twice_counted, self._counts = None, {}, []
        sums: list[BoundedSum] = []
        for k, group in enumerate(groups):
            params = tuple([self.parameters[name] for name in group.names])
            sums.append(BoundedSum(params, tuple([added[name] for name in group.names]), group.bound))
            if group.count is not None:
                sums.append(count_within_norm(group.count, counted.get(k)))
                self._counts.append(group.count)
        return sums

    @contextmanager
    def set_aside(self) -> Iterator[None]:
        """Within it nothing is pending and nothing recorded; what was is there again afterwards."""
        kept = self._sums, self._groups, self._twice_counted, self._counts
        self._sums, self._groups, self._twice_counted, self._counts = Accumulator(), None, {}, []
        try:
            with self._tape.set_aside():
                yield
        finally:
            self._sums, self._groups, self._twice_counted, self._counts = kept

    def state(self) -> Mapping[str, float]:
        """What the clipping rule has learned from released values; empty for a rule that learns nothing."""
        return self.clipping.state() if isinstance(self.clipping, Stateful) else {}

    def restore(self, state: Mapping[str, float]) -> None:
        """Continue with what :meth:`state` gave, with a clipping rule like the one that it was taken from."""
        if isinstance(self.clipping, Stateful):
            self.clipping.restore(state)

    def after_step(self) -> None:
        """Give an adaptive clipping rule the counts that were released; clipping does not constrain the weights."""
        self._adapt()

    def close(self) -> None:
        """Remove the hooks; the model is as it was."""
        self._closed = True
        self._tape.close()
        self._unwrapped.close()


def _without_autocast(device: str) -> AbstractContextManager[object]:
    """Norms and sums are computed outside of autocast."""
    return torch.autocast(device, enabled=False) if torch.is_autocast_enabled(device) else nullcontext()
