"""The private step of a clip as a function of tensors alone, and what it takes to use a graph of it.

Guarantee: does not depend on the graph being faithful. It computes the norms of the very gradients that it adds up, the
clipping norm enters as an input, and the examples were apart in ``vmap`` when it was traced.
"""

from __future__ import annotations

import time
import warnings
from collections.abc import Callable, Hashable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import Any, Protocol, runtime_checkable

import torch
from torch import Tensor, nn

from noisette._internal.waiting import wait_for
from noisette.capture.captured import Captured
from noisette.capture.comparison import tolerance_of
from noisette.capture.graph import Graph
from noisette.capture.python_state import PythonState
from noisette.capture.rows import is_real, padded, padded_size
from noisette.capture.schedule import Schedule
from noisette.capture.sizes import CapturedSizes
from noisette.core.clip import ClippedSum, Clipping, Group, clipping_of, factors_within, limits_of, may_wait
from noisette.core.trace import Loss, Microbatch
from noisette.core.trees import leaves, structure
from noisette.gradients.outside_tensors import OutsideTensors
from noisette.rules.autotune import few_operations


@runtime_checkable
class RefreshesFromPublicData(Protocol):
    """The owner of a hook that brings a model's public statistics up to date, in the same tensors, before a call."""

    def refresh(self, model: nn.Module) -> None:
        """Recompute the statistics if weights have changed."""
        ...


Step = Callable[[Loss, Microbatch, Clipping, Iterable[Tensor]], ClippedSum]

_MOST_KINDS = 16  # kinds of microbatches that are captured; of each size there is one


class CaptureWarning(UserWarning):
    """The step cannot be captured or compiled; it is computed in the ordinary way, with the same result."""


@dataclass
class _Traced:
    """What was found out when a graph was traced."""

    names: tuple[str, ...] = ()  # of the parameters that have a sum, in the order of the outputs
    outside: tuple[Tensor, ...] = ()  # tensors that the loss reached otherwise than as arguments
    places: tuple[tuple[Mapping[str, Any], str] | None, ...] = ()  # of the constants in the model


@dataclass
class _Kind:
    """What is known of microbatches that differ in the number of their examples alone."""

    captured: CapturedSizes
    traced: dict[int, _Traced] = field(default_factory=dict)  # by number of rows


class CapturedSteps:
    """The graphs of a clip's private step, one for each kind of microbatch.

    Args:
        model: whose parameters and buffers are looked up at each call.
        step: computes the clipped sum eagerly.
        outside: the tensors from outside that losses have used.
        schedule: when a step is traced and compiled.
        still_to_come: how many times the work so far is still to come.
        put_back: makes the model what it was before the microbatch, where a run does so.
    """

    def __init__(
        self,
        model: nn.Module,
        step: Step,
        outside: OutsideTensors,
        schedule: Schedule,
        still_to_come: Callable[[], float],
        put_back: Callable[[], None],
    ) -> None:
        self._still_to_come = still_to_come
        self._put_back = put_back
        self._model = model
        self._step = step
        self._outside = outside
        self._schedule = schedule
        self._state = PythonState(model)
        self._kinds: dict[Hashable, _Kind] = {}
        self._said: set[str] = set()

    @property
    def problems(self) -> tuple[str, ...]:
        """Why kinds of microbatches run in the ordinary way."""
        found = [kind.captured.problem for kind in self._kinds.values()]
        return tuple(dict.fromkeys([problem for problem in found if problem is not None]))

    @property
    def operations(self) -> int:
        """The number of operations in the largest graph; 0 without any."""
        return max([kind.captured.operations for kind in self._kinds.values()], default=0)

    def clipped_sum(
        self, loss: Loss, microbatch: Microbatch, groups: Sequence[Group], examples: float, public: Sequence[Tensor]
    ) -> ClippedSum:
        """The clipped sum of a microbatch, by the quickest way that is ready."""
        kind, rows = self._kind_of(loss, microbatch, groups, public), padded_size(microbatch.count)
        chosen = None if kind is None else kind.captured.choose(rows)
        if kind is not None and chosen is not None:
            start = time.perf_counter()
            limits = limits_of(groups, examples, microbatch.tensors[0].device)
            if (found := self._by_graph(kind, chosen, loss, microbatch, groups, limits, public)) is not None:
                kind.captured.spent(rows, time.perf_counter() - start, chosen[0])
                return found
            self._put_back()  # the loss may have been called
        start = time.perf_counter()
        found = self._step(loss, microbatch, clipping_of(groups, examples), public)
        if kind is not None:  # its time decides whether a graph is worth while
            wait_for(microbatch.tensors[0].device)
            kind.captured.spent(rows, time.perf_counter() - start, None)
        return found

    def close(self) -> None:
        """Stop compiling."""
        for kind in self._kinds.values():
            kind.captured.close()

    def _by_graph(
        self,
        kind: _Kind,
        chosen: tuple[int, Captured],
        loss: Loss,
        microbatch: Microbatch,
        groups: Sequence[Group],
        limits: Tensor,
        public: Sequence[Tensor],
    ) -> ClippedSum | None:
        """The clipped sum by a graph; ``None`` if some gradient is not finite, or the graph is not to be used."""
        b, (size, captured) = microbatch.count, chosen
        rows = padded(microbatch.tensors, size)
        device = rows[0].device
        traced = kind.traced.setdefault(size, _Traced())

        def function(limits: Tensor, real: Tensor, *tensors: Tensor) -> list[Tensor]:
            masked = _MaskedFactors(groups, limits, real)
            clipping = Clipping([group.names for group in groups], masked, are_finite=may_wait(device))
            with few_operations():
                clipped = self._step(loss, microbatch.with_tensors(tensors), clipping, public)
            traced.names, traced.outside = tuple(clipped.sums), tuple(self._outside.used())
            return [*(sum.detach() for sum in clipped.sums.values()), clipped.norms, masked.all_finite]

        self._check_outside(traced, public)
        _refresh_public_statistics(self._model)
        inputs = [limits, is_real(b, size, device), *rows]
        outputs = captured(function, lambda graph: self._constants(traced, graph), inputs)
        if outputs is None or (may_wait(device) and not bool(outputs[-1])):
            return None
        *sums, norms, _ = outputs
        return ClippedSum(dict(zip(traced.names, _apart(sums), strict=True)), norms[:, :b])

    def _check_outside(self, traced: _Traced, public: Sequence[Tensor]) -> None:
        """Check the tensors that the loss reaches otherwise than as arguments, as a call of the loss would."""
        self._outside.begin(public)
        for tensor in traced.outside:
            self._outside.check(tensor)
        self._outside.end()

    def _constants(self, traced: _Traced, graph: Graph) -> list[Tensor]:
        """The tensors that stand now where those stood that the graph was traced with."""
        if not traced.places:
            places = {
                id(tensor): (table, name)
                for part in self._model.modules()
                for table in (part._parameters, part._buffers)
                for name, tensor in table.items()
            }
            traced.places = tuple([places.get(id(tensor)) for tensor in graph.constants])
        return [
            tensor if place is None else place[0][place[1]]
            for place, tensor in zip(traced.places, graph.constants, strict=True)
        ]

    def _kind_of(
        self, loss: Loss, microbatch: Microbatch, groups: Sequence[Group], public: Sequence[Tensor]
    ) -> _Kind | None:
        """What is known of microbatches like this one; ``None`` if they are not captured.

        Under deterministic algorithms nothing is chosen by time, so that two runs have the same rounding errors.
        """
        if self._schedule.keeps_quickest and torch.are_deterministic_algorithms_enabled():
            return None
        tensors = microbatch.tensors
        key = (
            tuple([(tensor.shape[1:], tensor.dtype, tensor.device, tensor.requires_grad) for tensor in tensors]),
            _other_arguments(microbatch),
            tuple([group.names for group in groups]),
            tuple(map(id, public)),
            _settings(tensors[0].device.type),
            self._state.of(loss, *(group.factor for group in groups), *_other_values(microbatch)),
        )
        if key not in self._kinds:
            if len(self._kinds) >= _MOST_KINDS and not self._drop_one():
                self._warn(f"the step is not captured for more than {_MOST_KINDS} kinds of microbatches")
                return None
            self._kinds[key] = _Kind(self._sizes(tolerance_of(_precisions(self._model, tensors))))
        return self._kinds[key]

    def _sizes(self, tolerance: float) -> CapturedSizes:
        """The captured step of a new kind of microbatches, in no size yet."""
        make = partial(Captured, self._schedule, tolerance, self._still_to_come, self._model.buffers, self._warn)
        return CapturedSizes(make, self._schedule, self._still_to_come)

    def _drop_one(self) -> bool:
        """Forget the oldest kind that has no graph; false if all have one."""
        for key, kind in self._kinds.items():
            if kind.captured.operations == 0:
                del self._kinds[key]
                return True
        return False

    def _warn(self, said: str) -> None:
        """Say once that a step runs in the ordinary way."""
        if said not in self._said:
            self._said.add(said)
            warnings.warn(said, CaptureWarning, stacklevel=2)


class _MaskedFactors:
    """Clipping factors in a graph: zero for rows that count for nothing, and for gradients that are not finite.

    Where the host does not wait to learn of the latter, their factors stay, for the graph to leave them out.
    """

    def __init__(self, groups: Sequence[Group], limits: Tensor, real: Tensor) -> None:
        self._groups = groups
        self._limits = limits
        self._real = real
        self.all_finite: Tensor = torch.ones((), dtype=torch.bool)

    def __call__(self, norms: Tensor) -> Tensor:
        factors = factors_within(self._limits, self._groups, norms)
        finite = factors.isfinite()
        self.all_finite = finite.all()
        counts = finite & self._real if may_wait(norms.device) else self._real
        return torch.where(counts, factors, 0)


def _refresh_public_statistics(model: nn.Module) -> None:
    """What hooks of the model compute from its weights and public data at each call, which is no part of the graph."""
    for hook in model._forward_pre_hooks.values():
        if isinstance(owner := getattr(hook, "__self__", None), RefreshesFromPublicData):
            owner.refresh(model)


def _other_arguments(microbatch: Microbatch) -> Hashable:
    """Structure of the arguments."""
    if not microbatch.kwargs and all(isinstance(arg, Tensor) for arg in microbatch.args):
        return len(microbatch.args)
    return structure((microbatch.args, dict(microbatch.kwargs)))


def _other_values(microbatch: Microbatch) -> list[Any]:
    """The arguments that are not tensors."""
    return [leaf for leaf in leaves((microbatch.args, dict(microbatch.kwargs))) if not isinstance(leaf, Tensor)]


def _settings(device: str) -> Hashable:
    """Settings of torch that decide how operations compute."""
    autocast = torch.get_autocast_dtype(device) if torch.is_autocast_enabled(device) else None
    return autocast, torch.get_default_dtype(), torch.are_deterministic_algorithms_enabled(), torch.get_num_threads()


def _precisions(model: nn.Module, tensors: Sequence[Tensor]) -> set[torch.dtype]:
    """The types that a step computes with."""
    device = tensors[0].device.type
    found = {tensor.dtype for tensor in (*model.parameters(), *tensors)}
    return found | ({torch.get_autocast_dtype(device)} if torch.is_autocast_enabled(device) else set())


def _apart(sums: Sequence[Tensor]) -> list[Tensor]:
    """Sums that share no memory: a compiler returns one tensor for two that are equal, and noise is added in place."""
    taken: set[int] = set()
    apart: list[Tensor] = []
    for tensor in sums:
        apart.append(tensor.clone() if tensor.data_ptr() in taken else tensor)
        taken.add(tensor.data_ptr())
    return apart
