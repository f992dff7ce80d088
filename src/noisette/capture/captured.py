"""One step as graphs: when it is traced and compiled, its cache key in Python, and its comparison with the step."""

from __future__ import annotations

import math
import statistics
import time
import types
from collections.abc import Callable, Collection, Hashable, Iterable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, suppress
from dataclasses import dataclass, field
from enum import Enum
from functools import lru_cache, partial
from itertools import islice
from typing import TYPE_CHECKING, Any, Literal

import numpy as np
import torch
from torch import Tensor, nn
from torch.optim import Optimizer
from torch.optim.lr_scheduler import LRScheduler

from noisette.errors import warn

if TYPE_CHECKING:
    from noisette.capture.graph import Function, Graph


def wait_for(device: torch.device) -> None:
    """Return when a GPU has done everything that it was given; for a processor at once."""
    if device.type == "cuda":
        torch.cuda.synchronize(device)


Capture = Literal["auto", "eager", "graph", "compiled"]

# Tracing takes about 1 second, and 15 milliseconds for each weight; it saves a tenth to a half of what follows.
_BEFORE_TRACE, _REPAYS_TRACE, _TO_TRACE_WEIGHT = 2.0, 8.0, 0.015
# Training waits for the compiler, on two cores 10 seconds for 150 operations, and compiling saves another tenth to a
# half: it repays itself where at least so many times what it takes is still to come.
_REPAYS_COMPILING, _TO_COMPILE, _TO_COMPILE_OPERATION = 4.0, 5.0, 0.05


@dataclass(frozen=True)
class Schedule:
    """When a step that is computed again and again is traced and compiled.

    ``at_once``: traced in its second call and then used; otherwise once that is repaid, and where it is quicker.
    """

    at_once: bool
    compiles: bool

    def traces(self, weights: int, seconds: float, left: float, served_by: int) -> bool:
        """Whether to trace, after calls of so many seconds in all that will come ``left`` times again.

        ``served_by``: operations of a graph of more rows, which these calls have already; 0 if there is none.
        """
        if self.at_once and (not served_by or torch.are_deterministic_algorithms_enabled()):
            return not served_by  # nothing is chosen by time then
        takes = 1 + _TO_TRACE_WEIGHT * weights
        if self.at_once and self.compiles:
            takes += _TO_COMPILE + _TO_COMPILE_OPERATION * served_by
        return (self.at_once or seconds >= _BEFORE_TRACE) and seconds * left >= _REPAYS_TRACE * takes

    def compiles_graph(self, operations: int, seconds: float, left: float) -> bool:
        takes = _TO_COMPILE + _TO_COMPILE_OPERATION * operations
        return self.compiles and (self.at_once or seconds * left >= _REPAYS_COMPILING * takes)

    def compiled(self, function: Function, inputs: Sequence[Tensor]) -> Callable[..., list[Tensor]] | None:
        """A function of tensors alone, compiled for inputs like these; ``None`` where it cannot be."""
        from noisette.capture.graph import CaptureError, trace

        try:
            graph = trace(function, inputs).compiled(inputs)
        except CaptureError:
            return None
        return lambda *given: graph(given)


# The values of ``capture``; "eager" never captures anything.
SCHEDULES: dict[str, Schedule | None] = {
    "auto": Schedule(at_once=False, compiles=True),
    "eager": None,
    "graph": Schedule(at_once=True, compiles=False),
    "compiled": Schedule(at_once=True, compiles=True),
}


def schedule_of(capture: str) -> Schedule | None:
    """The schedule of this name; a ValueError if there is none."""
    if capture not in SCHEDULES:
        raise ValueError(f"capture={capture!r} is unknown; choose one of {', '.join(map(repr, SCHEDULES))}")
    return SCHEDULES[capture]


_PLAIN = frozenset(
    {bool, int, float, complex, str, bytes, type(None), torch.dtype, torch.device, torch.layout, torch.memory_format}
    | {np.bool_, np.int32, np.int64, np.float32, np.float64, types.BuiltinFunctionType}
)
_OF_EVERY_MODULE = frozenset(vars(nn.Module())) - {"training"}
_HOOKS = "_forward_hooks", "_forward_pre_hooks"
_LIBRARIES = {"torch", "numpy", "noisette"}  # whose functions read nothing that changes
_DEEPEST, _WIDEST = 4, 32


def python_values(model: nn.Module, reached: Iterable[Any]) -> Hashable:
    """Plain values, and the identities of code, modules and parameters, in a fixed order.

    Of the model: modes and plain attributes of all its modules, its hooks, and which parameters train. Of a function
    that is ``reached``: closure, defaults and globals that its code names; of an optimizer or a scheduler its settings
    now; of another object the attributes that the code names.
    """
    found: list[Hashable] = []
    seen = set[int]()
    for value in (model, *reached):
        _add(value, (), _DEEPEST, found, seen)
    return tuple(found)


def _add_modules(root: nn.Module, found: list[Hashable], seen: set[int]) -> None:
    following = [root]
    for module in following:  # grows meanwhile
        if module is None or id(module) in seen:
            continue
        seen.add(id(module))
        found.append(id(module))
        table = vars(module)
        for name, value in table.items():
            if name not in _OF_EVERY_MODULE:
                kind = type(value)
                if kind in _PLAIN or (kind is tuple and _PLAIN.issuperset(map(type, value))):
                    found.append(value)
                elif kind is dict or kind is list:
                    entries = islice(value.values() if kind is dict else value, _WIDEST)
                    found += [entry for entry in entries if type(entry) in _PLAIN]
                elif not issubclass(kind, Tensor):
                    _add(value, (), 1, found, seen)
        for p in table["_parameters"].values():
            if p is not None:
                found += id(p), p.requires_grad, p.dtype
        for name in _HOOKS:
            found += table[name]
        following += table["_modules"].values()


def _add(value: Any, names: tuple[str, ...], depth: int, found: list[Hashable], seen: set[int]) -> None:
    """Add what a value holds, given the names that occur in the code that reads it."""
    kind = type(value)
    inside: Iterable[Any] = ()
    if kind in _PLAIN:
        found.append(value)
    elif issubclass(kind, nn.Module):
        _add_modules(value, found, seen)
    elif kind is types.FunctionType:
        found.append(value.__code__)
        if str(value.__globals__.get("__name__")).partition(".")[0] not in _LIBRARIES:
            names = _names_in(value.__code__)
            inside = _held_by(value, names)
    elif kind is types.MethodType:
        inside = value.__func__, value.__self__
        names = _names_in(getattr(value.__func__, "__code__", None))
    elif kind is partial:
        inside = value.func, *value.args, *value.keywords.values()
    elif kind is dict or kind is list or kind is tuple:
        found.append(len(value))
        inside = (value.values() if kind is dict else value) if len(value) <= _WIDEST else ()
    elif issubclass(kind, Tensor | Enum):
        found.append(id(value))
    elif issubclass(kind, Optimizer):
        table = _attributes(value)
        groups = table.get("param_groups", ())
        inside = table.get("optimizer"), *(setting for group in groups for setting in group.values())
    elif issubclass(kind, LRScheduler):
        inside = _attributes(value).get("_last_lr", ())
    elif table := _attributes(value):
        names = (*names, *_names_in(getattr(kind.__call__, "__code__", None)))
        inside = [table[name] for name in names if name in table]
    if depth:
        for part in inside:
            _add(part, names, depth - 1, found, seen)


def _held_by(function: types.FunctionType, names: tuple[str, ...]) -> Iterator[Any]:
    yield from function.__defaults__ or ()
    yield from (function.__kwdefaults__ or {}).values()
    for cell in function.__closure__ or ():
        with suppress(ValueError):  # it is empty
            yield cell.cell_contents
    yield from (function.__globals__[name] for name in names if name in function.__globals__)


def _attributes(value: Any) -> Mapping[str, Any]:
    """The attributes of an object itself, of a class or of a Python module, without code of theirs."""
    try:
        table = object.__getattribute__(value, "__dict__")
    except Exception:  # a property of this name fails, or there are none
        return {}
    return table if type(table) in (dict, types.MappingProxyType) else {}


@lru_cache(maxsize=1024)
def _names_in(code: types.CodeType | None) -> tuple[str, ...]:
    """The names of globals and attributes in code, also in the functions that it defines."""
    if code is None:
        return ()
    inner = [_names_in(constant) for constant in code.co_consts if isinstance(constant, types.CodeType)]
    return tuple(sorted({*code.co_names, *(name for names in inner for name in names)}))


_SAMPLES = 3  # calls of each graph that are timed before one is kept
_COMPARED_EVERY = 256
_WIDTH = 4093  # numbers of a sketch: a prime, so that a column of a weight is spread over many of them
_MOST_PADDING = 2  # a graph serves calls of more than half of its rows
# How far outputs may differ, as a share of the norm of all together, because operations are ordered otherwise.
_TOLERANCE = {torch.float64: 1e-9, torch.float32: 1e-4}
_TOLERANCE_LOW_PRECISION = 5e-2
# A compiled graph rounds otherwise, and about zero a ReLU takes the other branch: sums in a ResNet-18 differ by 3e-3.
_TOLERANCE_COMPILED = 1e-2


class CaptureWarning(UserWarning):
    """The step cannot be captured or compiled; it is computed in the ordinary way, with the same result."""


@dataclass
class _Timed:
    """A graph, compiled or not, and what is known of its calls."""

    graph: Graph
    is_compiled: bool = False
    calls: int = 0
    seconds: list[float] = field(default_factory=list)

    @property
    def is_compared(self) -> bool:
        """Whether this call is compared: calls 1, 2, 4, 8, ... and every 256th."""
        return self.calls & (self.calls - 1) == 0 or self.calls % _COMPARED_EVERY == 0

    @property
    def median(self) -> float:
        """The time of a call; 0 if it was not tried often enough."""
        return statistics.median(self.seconds) if len(self.seconds) >= _SAMPLES else 0.0

    def outputs(self, inputs: Sequence[Tensor], buffers: Mapping[str, Tensor]) -> Sequence[Tensor]:
        """What the graph gives; the first calls are timed."""
        if len(self.seconds) >= _SAMPLES:
            return self.graph(inputs, buffers)
        wait_for(inputs[-1].device)
        start = time.perf_counter()
        outputs = self.graph(inputs, buffers)
        wait_for(inputs[-1].device)
        self.seconds.append(time.perf_counter() - start)
        return outputs


@dataclass
class _Size:
    """Calls of one number of rows: seconds of the last eager ones and of all together, and the graphs."""

    eager: list[float] = field(default_factory=list)
    spent: float = 0.0
    graphs: list[_Timed] = field(default_factory=list)
    is_compilable: bool = True

    @property
    def quickest(self) -> _Timed:
        """The graph that was tried too few times, or else the quickest one."""
        return min(self.graphs, key=lambda timed: timed.median)


class Captured:
    """A step that is computed again and again, with inputs of one kind but for the number of their rows.

    A graph serves calls of up to as many rows as it has. A size that is met often enough gets a graph of its own, and
    each call goes to the quickest for its size. Once a graph has given other results, none is used: ``problem`` is why.
    """

    def __init__(self, schedule: Schedule, dtypes: Collection[torch.dtype]) -> None:
        self._schedule = schedule
        self._weights = len(dtypes)  # with the few inputs
        found = [_TOLERANCE.get(dtype, _TOLERANCE_LOW_PRECISION) for dtype in dtypes if dtype.is_floating_point]
        self._tolerance = max(found, default=0.0)
        self._sizes: dict[int, _Size] = {}
        self.problem: str | None = None

    @property
    def operations(self) -> int:
        return max([timed.graph.operations for size in self._sizes.values() for timed in size.graphs], default=0)

    def rows_for(self, rows: int, left: float) -> int | None:
        """The number of rows of the graph that serves a call of so many rows; ``None`` for the eager step.

        ``left`` is how many times the work so far is still to come.
        """
        own = self._sizes.setdefault(rows, _Size())
        if self.problem is not None or not own.eager:
            return None  # the first call of each size finds mistakes and chooses plans
        able = {n: size for n, size in self._sizes.items() if size.graphs and rows <= n < rows * _MOST_PADDING}
        spent = own.spent if able else sum(size.spent for size in self._sizes.values())
        if not own.graphs and self._schedule.traces(self._weights, spent, left, self.operations if able else 0):
            return rows
        if self._schedule.at_once:
            return min(able)
        n = min(able, key=lambda n: able[n].quickest.median, default=None)
        return n if n is not None and able[n].quickest.median < statistics.median(own.eager) else None

    def add_time(self, rows: int, seconds: float, by: int | None) -> None:
        """A call of so many rows has taken so long, by the graph of ``by`` rows or eagerly (``None``)."""
        size = self._sizes.setdefault(rows, _Size())
        size.spent += seconds
        if by is None:
            size.eager = [*size.eager[-4:], seconds]
        elif by != rows:
            self._sizes[by].spent += seconds

    def __call__(
        self, rows: int, function: Function, inputs: Sequence[Tensor], buffers: Mapping[str, Tensor], left: float
    ) -> Sequence[Tensor] | None:
        """The outputs of the function, or ``None`` where the caller has to compute the step.

        The last output says whether the others are valid.
        """
        from noisette.capture.graph import reason_of, trace  # with the compiler of torch

        size = self._sizes[rows]
        try:
            if not size.graphs:
                with _draws_undone(inputs[-1].device):
                    function(*inputs)  # chooses plans and fills caches, which no trace may do
                    size.graphs = [_Timed(trace(function, inputs, buffers))]
            if size.is_compilable and self._schedule.compiles_graph(self.operations, size.spent, left):
                self._compile(size, inputs, buffers)
            chosen = size.graphs[-1] if self._schedule.at_once else size.quickest
            chosen.calls += 1
            if chosen.is_compared:
                return self._compared(chosen, function, inputs, buffers)
            return chosen.outputs(inputs, buffers)
        except torch.OutOfMemoryError:
            raise
        except Exception as error:  # of a graph or its runtime; one of the loss comes again in the step itself
            return self._give_up(reason_of(error))

    def _compile(self, size: _Size, inputs: Sequence[Tensor], buffers: Mapping[str, Tensor]) -> None:
        from noisette.capture.graph import CaptureError

        size.is_compilable = False
        try:
            with _draws_undone(inputs[-1].device):
                size.graphs.append(_Timed(size.graphs[0].graph.compiled(inputs, buffers), is_compiled=True))
        except CaptureError as error:
            warn(f"the step runs uncompiled: {error}", CaptureWarning)

    def _compared(
        self, timed: _Timed, function: Function, inputs: Sequence[Tensor], buffers: Mapping[str, Tensor]
    ) -> Sequence[Tensor]:
        with _draws_undone(inputs[-1].device):
            found = list(map(sketch, timed.graph(inputs, buffers)[:-1]))  # the sums of one of the two are in memory
        torch.clear_autocast_cache()  # of weights from before the last optimizer step
        expected = function(*inputs)
        if not bool(expected[-1]):
            return expected
        wanted = list(map(sketch, expected[:-1]))
        # Norms apart from sums: where all are clipped, norms are so large that no error of a sum would be seen.
        difference = max(relative_difference(found[:-1], wanted[:-1]), relative_difference(found[-1:], wanted[-1:]))
        tolerance = max(self._tolerance, _TOLERANCE_COMPILED) if timed.is_compiled else self._tolerance
        if not difference <= tolerance:
            self._give_up(f"it gives sums that differ by {difference:.1g} of their norm from those of the step itself")
        return expected

    def _give_up(self, problem: str) -> None:
        self.problem = problem
        for size in self._sizes.values():
            size.graphs.clear()  # nothing is kept for it
        warn(f"the step is not captured: {problem}", CaptureWarning)


def sketch(tensor: Tensor) -> Tensor:
    """A tensor of few numbers itself, in double precision; of many, sums of them with signs, whose norm is like theirs.

    >>> sketch(torch.tensor([3.0, 4.0])), len(sketch(torch.ones(1000, 1000)))
    (tensor([3., 4.], dtype=torch.float64), 5401)
    """
    flat = tensor.detach().reshape(-1)
    rows = len(flat) // _WIDTH
    if rows < 2:
        return flat.double()
    # The signs are those of a multiplicative hash, so that no pattern of errors is likely to cancel.
    signs = 1 - (torch.arange(rows, device=flat.device) * 0x9E3779B1 >> 16) % 2 * 2
    sums = signs.to(flat.dtype) @ flat[: rows * _WIDTH].view(rows, _WIDTH)
    return torch.cat([sums.double(), flat[rows * _WIDTH :].double()])


def relative_difference(outputs: Sequence[Tensor], expected: Sequence[Tensor]) -> float:
    """The norm of the difference of two lists of tensors, divided by the norm of the expected ones."""
    if not expected:
        return 0.0
    pairs = [(one.double(), other.double()) for one, other in zip(outputs, expected, strict=True)]
    squares = [torch.stack([(one - other).square().sum(), other.square().sum()]) for one, other in pairs]
    difference, size = torch.stack(squares).sum(0).tolist()  # read at once: a GPU would be waited for each time
    return math.sqrt(difference / size) if size else math.inf if difference else 0.0


def _draws_undone(device: torch.device) -> AbstractContextManager[None]:
    """Within it torch's generators draw what they will draw again afterwards."""
    return torch.random.fork_rng([device] if device.type == "cuda" else [])
