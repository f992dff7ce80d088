"""The private step as a function of tensors alone, and what it takes to use a graph of it.

Guarantee: does not depend on the graph being faithful. It computes the norms of the very gradients that it adds up, the
clipping norm enters as an input, and the examples were apart in ``vmap`` when it was traced.
"""

import time
from collections.abc import Callable, Hashable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import lru_cache
from typing import TypeAlias

import torch
from torch import Tensor, nn
from torch.utils._pytree import tree_flatten

from noisette.capture.captured import Captured, Schedule, python_values, wait_for
from noisette.core.clip import ClippedSum, Clipping, Group, bounds_of, factors_within, may_wait
from noisette.core.loss import Loss, Microbatch, OutsideTensors, versions_of
from noisette.core.trees import children, leaves

# The clipped sum of (loss, microbatch, clipping, public), with copies of the model's buffers; where ``traced`` is true,
# only by operations that can be recorded, or with an error.
Step = Callable[..., ClippedSum]
Public: TypeAlias = tuple[Tensor, ...]
Buffers: TypeAlias = Mapping[str, Tensor]
_MOST_KINDS = 16  # kinds of microbatches that are captured
_SIZES = 8  # numbers of rows of graphs between a power of two and the next one


@dataclass
class _Kind:
    """What is known of microbatches that differ in the number of their examples alone."""

    captured: Captured
    # By the rows of a graph: the names of the sums that it gives, and the tensors that it uses besides its arguments.
    graphs: dict[int, tuple[tuple[str, ...], tuple[Tensor, ...]]] = field(default_factory=dict)


@dataclass(eq=False)
class _TracedStep:
    """The private step as a function of tensors: bounds, which rows count, and rows of the batch.

    Gives the sums, the norms and whether all gradients are finite. A gradient that is not has the factor zero; where
    the host does not wait to learn of it, the graph leaves it out. ``names`` are those of the sums, after a call.
    """

    step: Step
    loss: Loss
    microbatch: Microbatch
    groups: Sequence[Group]
    public: Public
    names: tuple[str, ...] | None = None

    def eager(self) -> ClippedSum:
        return self.step(self.loss, self.microbatch, Clipping(self.groups), self.public, traced=False)

    def __call__(self, bounds: Tensor, real: Tensor, *rows: Tensor) -> list[Tensor]:
        waits = may_wait(real.device)
        finite: list[Tensor] = []

        def factors(norms: Tensor) -> Tensor:
            found = factors_within(bounds, self.groups, norms)
            finite.append(found.isfinite())
            return torch.where(finite[0] & real if waits else real, found, 0)

        clipping = Clipping(self.groups, factors, are_finite=waits)
        clipped = self.step(self.loss, self.microbatch.with_tensors(rows), clipping, self.public, traced=True)
        self.names = tuple(clipped.sums)
        return [*(total.detach() for total in clipped.sums.values()), clipped.norms, finite[0].all()]


class CapturedSteps:
    """The graphs of a clip's private step, one for each kind of microbatch.

    A kind is given by shapes, types and devices, modes, which parameters train, code and plain values of Python
    (:func:`python_values`), and settings of torch. With a value that differs in each step, steps stay eager.
    """

    def __init__(self, model: nn.Module, step: Step, outside: OutsideTensors, schedule: Schedule) -> None:
        self._model, self._step, self._outside, self._schedule = model, step, outside, schedule
        self._kinds: dict[Hashable, _Kind] = {}

    @property
    def problems(self) -> tuple[str, ...]:
        return tuple(dict.fromkeys(p for kind in self._kinds.values() if (p := kind.captured.problem) is not None))

    @property
    def operations(self) -> int:
        return max([kind.captured.operations for kind in self._kinds.values()], default=0)

    def clipped_sum(
        self, loss: Loss, microbatch: Microbatch, groups: Sequence[Group], public: Public, buffers: Buffers, left: float
    ) -> ClippedSum:
        """The clipped sum of a microbatch, by the quickest way that is ready."""
        function = _TracedStep(self._step, loss, microbatch, groups, public)
        kind = self._kind_of(function)
        if kind is None:
            return function.eager()
        rows, start = padded_size(microbatch.count), time.perf_counter()
        by = kind.captured.rows_for(rows, left)
        if by is not None and (found := self._by_graph(kind, by, function, buffers, left)) is not None:
            kind.captured.add_time(rows, time.perf_counter() - start, by)
            return found
        start, versions = time.perf_counter(), versions_of(microbatch.tensors)
        found = function.eager()
        if versions != versions_of(microbatch.tensors):
            kind.captured.problem = "the loss writes into its arguments"
        wait_for(microbatch.tensors[0].device)  # its time decides whether a graph is worth while
        kind.captured.add_time(rows, time.perf_counter() - start, None)
        return found

    def _by_graph(self, kind: _Kind, size: int, step: _TracedStep, buffers: Buffers, left: float) -> ClippedSum | None:
        """The clipped sum by a graph of so many rows; ``None`` if a gradient is not finite, or the graph is no good."""
        rows, b = padded(step.microbatch.tensors, size), step.microbatch.count
        device = rows[0].device
        self._outside.begin(step.public)
        for tensor in kind.graphs.get(size, ((), ()))[1]:
            self._outside.check(tensor)
        self._outside.end()
        bounds = bounds_of(tuple([group.bound for group in step.groups]), device)
        outputs = kind.captured(size, step, [bounds, is_real(b, size, device), *rows], buffers, left)
        if step.names is not None and size not in kind.graphs:  # the graph is a new one
            kind.graphs[size] = step.names, tuple(self._outside.used())
        if outputs is None or (may_wait(device) and not bool(outputs[-1])):
            return None
        *sums, norms, _ = outputs
        return ClippedSum(dict(zip(kind.graphs[size][0], _apart(sums), strict=True)), norms[:, :b])

    def _kind_of(self, function: _TracedStep) -> _Kind | None:
        """What is known of microbatches like this one; ``None`` if they are not captured."""
        # Nothing is chosen by time then, so that two runs have the same rounding errors.
        if not self._schedule.at_once and torch.are_deterministic_algorithms_enabled():
            return None
        microbatch, groups, tensors = function.microbatch, function.groups, function.microbatch.tensors
        others, structure, device = [], None, tensors[0].device.type
        if not microbatch.are_tensors_alone:
            arguments = microbatch.args, microbatch.kwargs
            structure = _structure(arguments)
            others = [leaf for leaf in leaves(arguments) if not isinstance(leaf, Tensor)]
        lower = torch.get_autocast_dtype(device) if torch.is_autocast_enabled(device) else None
        key = (
            tuple([(t.shape[1:], t.stride()[1:], t.dtype, t.device, t.requires_grad) for t in tensors]),
            structure,
            tuple([group.names for group in groups]),
            tuple([id(tensor) for tensor in function.public]),
            (lower, torch.get_default_dtype(), torch.are_deterministic_algorithms_enabled(), torch.get_num_threads()),
            python_values(self._model, [function.loss, *(group.factor for group in groups), *others]),
        )
        found = self._kinds.get(key)
        if found is None and self._has_room():
            dtypes = [tensor.dtype for tensor in (*self._model.parameters(), *tensors)] + ([lower] if lower else [])
            found = self._kinds[key] = _Kind(Captured(self._schedule, dtypes))
        return found

    def _has_room(self) -> bool:
        """Whether there are few kinds; of many the oldest one without a graph is forgotten."""
        if len(self._kinds) >= _MOST_KINDS:
            idle = next((key for key, kind in self._kinds.items() if not kind.captured.operations), None)
            return self._kinds.pop(idle, None) is not None
        return True


def padded_size(count: int) -> int:
    """The least number of rows that a graph is made for: at most an eighth is added, see ``_SIZES``."""
    step = max(1, (1 << max(0, (count - 1).bit_length() - 1)) // _SIZES)
    return -(-count // step) * step


def padded(tensors: Sequence[Tensor], size: int) -> list[Tensor]:
    """Tensors (b, ...) with their first row repeated at the end, (size, ...), laid out alike in every call."""
    if missing := size - len(tensors[0]):
        tensors = [torch.cat([tensor, tensor[:1].expand(missing, *tensor.shape[1:])]) for tensor in tensors]
    return [_laid_out(tensor) for tensor in tensors]


def _laid_out(rows: Tensor) -> Tensor:
    """Rows without gaps from the start of their memory: a graph reads inputs by the strides and offset of its trace."""
    is_dense = rows.is_contiguous() or (rows.dim() == 4 and rows.is_contiguous(memory_format=torch.channels_last))
    if is_dense and not rows.storage_offset():
        return rows
    return rows.clone(memory_format=torch.preserve_format if is_dense else torch.contiguous_format)


@lru_cache(maxsize=1024)
def is_real(count: int, size: int, device: torch.device) -> Tensor:
    """Which of the rows are not repeated ones, (size,)."""
    return torch.arange(size, device=device) < count


def _structure(value: object) -> Hashable:
    """The containers and the names in them, without the values: equal for values that code reads in the same way."""
    found, containers = tree_flatten(value)
    opened = [(type(leaf), children(leaf)) for leaf in found]
    inside = [None if parts is None else (kind, tuple(parts), _structure([*parts.values()])) for kind, parts in opened]
    return str(containers), tuple(inside)


def _apart(sums: Sequence[Tensor]) -> list[Tensor]:
    """Sums that share no memory: a compiler returns one tensor for two that are equal, and noise is added in place."""
    taken: set[int] = set()
    apart: list[Tensor] = []
    for tensor in sums:
        apart.append(tensor.clone() if tensor.data_ptr() in taken else tensor)
        taken.add(tensor.data_ptr())
    return apart
