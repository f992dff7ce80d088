"""One function for inputs of one kind: called as it is, as a graph or compiled, whichever is quickest."""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable, Iterable, Sequence

import torch
from torch import Tensor

from noisette._internal.waiting import wait_for
from noisette.capture.comparison import COMPILED_TOLERANCE, relative_difference, undone
from noisette.capture.compiler import Compilation, is_free
from noisette.capture.graph import CaptureError, Function, Graph, as_recorded, reason_of, trace
from noisette.capture.schedule import Schedule
from noisette.core.randomness import of_python_and_numpy

_SAMPLES = 3  # calls of each way that are timed before one is kept
# The first two calls of a way are compared with the function itself, then ever fewer, and every so many.
_COMPARED_EVERY = 256


class _Way:
    """A way of computing the function."""

    def __init__(
        self, name: str, call: Callable[[Sequence[Tensor], Sequence[Tensor]], Sequence[Tensor]], tolerance: float = 0
    ) -> None:
        self.name = name
        self.tolerance = tolerance
        self.call = call  # with constants and inputs
        self.calls = 0
        self.seconds: list[float] = []

    @property
    def is_compared(self) -> bool:
        """Whether this call is compared: calls 1, 2, 4, 8, ... and every 256th."""
        return self.calls & (self.calls - 1) == 0 or self.calls % _COMPARED_EVERY == 0


class Captured:
    """A function of tensors that is called again and again, with inputs of one kind.

    A graph whose results differ from those of the function is not used again.

    Args:
        schedule: when it is traced and compiled.
        tolerance: how far its results may differ from those of the function, as a share of their norm.
        still_to_come: how many times the work so far is still to come.
        buffers: the tensors that it may write into, besides its outputs.
        warn: told in words why it runs uncaptured or uncompiled.

    Attributes:
        problem: why it is not captured; ``None`` without one.
    """

    def __init__(
        self,
        schedule: Schedule,
        tolerance: float,
        still_to_come: Callable[[], float],
        buffers: Callable[[], Iterable[Tensor]],
        warn: Callable[[str], None],
    ) -> None:
        self._schedule = schedule
        self._tolerance = tolerance
        self._still_to_come = still_to_come
        self._buffers = buffers
        self._warn = warn
        self._eager: list[float] = []
        self._spent = 0.0
        self._graph: Graph | None = None
        self._compilation: Compilation | None = None
        self._ways: list[_Way] = []
        self._has_said_uncompiled = False
        self.problem: str | None = None

    @property
    def was_called(self) -> bool:
        """Whether the function itself was called, which chooses plans and finds mistakes."""
        return bool(self._eager)

    @property
    def is_traced(self) -> bool:
        """Whether there is a graph."""
        return self._graph is not None

    @property
    def is_due(self) -> bool:
        """Whether calls of this very size repay a graph, which there is not yet."""
        enough = self._spent >= self._schedule.before_trace and self._is_repaid(self._schedule.repays_trace)
        return self._graph is None and enough

    @property
    def is_untried(self) -> bool:
        """Whether some way has been timed too few times."""
        self._take_compiled()
        return any(len(way.seconds) < _SAMPLES for way in self._ways)

    @property
    def seconds(self) -> float:
        """The time of a call by the quickest way that was tried; 0 if one was not."""
        return 0.0 if self.is_untried else min(statistics.median(way.seconds) for way in self._ways)

    @property
    def eager_seconds(self) -> float:
        """The time of a call of the function itself."""
        return statistics.median(self._eager)

    @property
    def operations(self) -> int:
        """The number of operations of the graph; 0 before it is traced."""
        return 0 if self._graph is None else self._graph.operations

    def spent(self, seconds: float, *, eagerly: bool) -> None:
        """A call of this size has taken so long, by the function itself or another way."""
        self._spent += seconds
        if eagerly:
            self._eager = [*self._eager[-4:], seconds]

    def _is_repaid(self, seconds: float) -> bool:
        """Whether the calls to come are expected to take so long."""
        return self._spent * self._still_to_come() >= seconds

    def __call__(
        self, function: Function, constants: Callable[[Graph], Sequence[Tensor]], inputs: Sequence[Tensor]
    ) -> Sequence[Tensor] | None:
        """The outputs of the function, or ``None`` where the caller has to make the call.

        Args:
            function: to be traced, and to be compared with. Its last output says whether the others are valid.
            constants: gives what stands now where the graph's constants stood.
            inputs: of the function.
        """
        if self._graph is None:
            self._trace(function, inputs)
            if self._graph is None:
                return None
        elif self._ways[-1].name != "compiled":
            self._compile(inputs)
        way = self._next()
        way.calls += 1
        try:
            given = constants(self._graph)
            if way.is_compared:
                return self._compared(way, given, inputs, function)
            is_timed, device = len(way.seconds) < _SAMPLES, inputs[-1].device
            if is_timed:
                wait_for(device)
            start = time.perf_counter()
            outputs = way.call(given, inputs)
            if is_timed:
                wait_for(device)
            seconds = time.perf_counter() - start
        except torch.OutOfMemoryError:
            raise
        except CaptureError as error:
            return self._give_up(str(error))
        except Exception as error:  # of the compiled code or its runtime: the caller's own way is still there
            return self._give_up(reason_of(error))
        if is_timed:
            way.seconds.append(seconds)
        return outputs

    def close(self) -> None:
        """Stop compiling."""
        if self._compilation is not None:
            self._compilation.cancel()

    def _trace(self, function: Function, inputs: Sequence[Tensor]) -> None:
        try:
            before = of_python_and_numpy()
            with undone(self._buffers(), inputs[-1].device):
                function(*inputs)  # chooses plans and fills caches, which a trace must not do
                self._graph = trace(function, inputs)
            if of_python_and_numpy() != before:
                self._graph = None
                raise CaptureError("the loss draws from Python's or NumPy's random generator")
            self._ways = [_Way("graph", self._graph)]
            self._compile(inputs)
        except CaptureError as error:
            self._give_up(str(error))

    def _compile(self, inputs: Sequence[Tensor]) -> None:
        """Take what an earlier run has compiled, or begin to compile if that is repaid."""
        least = self._schedule.repays_compiling
        assert self._graph is not None
        if least is None:
            return
        if self._compilation is None:
            self._compilation = Compilation(self._graph, inputs)
        compilation = self._compilation
        wanted = compilation.failure is None and not compilation.is_running and not compilation.was_kept
        if wanted and self._is_repaid(least) and is_free():
            compilation.start(at_full_speed=self._schedule.waits)
            if self._schedule.waits:
                compilation.wait()
        self._take_compiled()

    def _take_compiled(self) -> None:
        """Make the compiled function one of the ways, once it is there."""
        compilation = self._compilation
        if compilation is None or self._ways[-1].name == "compiled":
            return
        if (compiled := compilation.ready()) is not None:

            def call(constants: Sequence[Tensor], inputs: Sequence[Tensor]) -> Sequence[Tensor]:
                with as_recorded(inputs[-1].device):
                    return compiled(*constants, *inputs)

            self._ways.append(_Way("compiled", call, COMPILED_TOLERANCE))
        elif compilation.failure is not None and not self._has_said_uncompiled:
            self._has_said_uncompiled = True
            self._warn(f"the step runs uncompiled: {compilation.failure}")

    def _next(self) -> _Way:
        """The way of the next call: one that was timed too few times, else the quickest."""
        if not self._schedule.keeps_quickest:
            return self._ways[-1]
        untried = [way for way in self._ways if len(way.seconds) < _SAMPLES]
        return untried[0] if untried else min(self._ways, key=lambda way: statistics.median(way.seconds))

    def _compared(
        self, way: _Way, constants: Sequence[Tensor], inputs: Sequence[Tensor], function: Function
    ) -> Sequence[Tensor] | None:
        """The outputs of one way, held against those of the function."""
        with undone(self._buffers(), inputs[-1].device):
            outputs = way.call(constants, inputs)
        torch.clear_autocast_cache()  # of weights from before the last optimizer step
        expected = function(*inputs)
        if not bool(expected[-1]):
            return expected
        # Norms apart from sums: where all are clipped, norms are so large that no error of a sum would be seen.
        difference = max(
            relative_difference(outputs[:-2], expected[:-2]), relative_difference(outputs[-2:-1], expected[-2:-1])
        )
        if not difference <= max(self._tolerance, way.tolerance):
            self._give_up(f"it gives sums that differ by {difference:.1g} of their norm from those of the step itself")
            return expected
        return outputs

    def _give_up(self, problem: str) -> None:
        self.problem = problem
        self.close()
        self._graph, self._compilation, self._ways = None, None, []  # nothing is kept for it
        self._warn(f"the step is not captured: {problem}")
