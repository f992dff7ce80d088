"""One function for inputs of one kind: called as it is, as a graph or compiled, whichever is quickest."""

from __future__ import annotations

import random
import statistics
import time
from collections.abc import Callable, Sequence

import numpy as np
import torch
from torch import Tensor

from noisette.capture.comparison import relative_difference, with_same_random_numbers
from noisette.capture.compiler import Compilation, is_free
from noisette.capture.graph import CaptureError, Function, Graph, as_recorded, reason_of, trace
from noisette.capture.schedule import Schedule

_SAMPLES = 3  # calls of each way that are timed before one is kept
# The first two calls of a way are compared with the function itself, then ever fewer, and every so many.
_COMPARED_EVERY = 256


class _Way:
    """A way of computing the function."""

    def __init__(self, name: str, call: Callable[[Sequence[Tensor], Sequence[Tensor]], Sequence[Tensor]]) -> None:
        self.name = name
        self.call = call  # with constants and inputs
        self.calls = 0
        self.seconds: list[float] = []

    @property
    def is_compared(self) -> bool:
        """Whether this call is compared: calls 1, 2, 4, 8, ... and every 256th."""
        return self.calls & (self.calls - 1) == 0 or self.calls % _COMPARED_EVERY == 0


class Captured:
    """A function of tensors that is called again and again, with inputs of one kind.

    The first call goes through the function itself, which the caller makes: :meth:`is_due` says from when on
    :meth:`__call__` takes over. A graph whose results differ from those of the function is not used again.

    Args:
        schedule: when it is traced and compiled.
        tolerance: how far its results may differ from those of the function, as a share of their norm.
        still_to_come: how many times the work so far is still to come.
        warn: told in words why it runs uncaptured or uncompiled.
    """

    def __init__(
        self,
        schedule: Schedule,
        tolerance: float,
        still_to_come: Callable[[], float],
        warn: Callable[[str], None],
    ) -> None:
        self._schedule = schedule
        self._tolerance = tolerance
        self._still_to_come = still_to_come
        self._warn = warn
        self._eager: list[float] = []
        self._spent = 0.0
        self._graph: Graph | None = None
        self._compilation: Compilation | None = None
        self._ways: list[_Way] = []
        self._has_said_uncompiled = False
        self.problem: str | None = None

    @property
    def constants(self) -> Sequence[Tensor]:
        """What the graph reaches otherwise than as inputs."""
        return () if self._graph is None else self._graph.constants

    @property
    def operations(self) -> int:
        """The number of operations of the graph; 0 before it is traced."""
        return 0 if self._graph is None else self._graph.operations

    @property
    def compiling(self) -> Compilation | None:
        """What is being compiled now."""
        return self._compilation if self._compilation is not None and self._compilation.is_running else None

    def ran_eagerly(self, seconds: float) -> None:
        """The caller has made a call by itself."""
        self._spent += seconds
        self._eager = [*self._eager[-4:], seconds]

    def is_due(self) -> bool:
        """Whether the next call is to go through :meth:`__call__`."""
        if self.problem is not None or not self._eager:
            return False
        if self._graph is None:
            return self._spent >= self._schedule.before_trace and self._is_repaid(self._schedule.repays_trace)
        self._take_compiled()
        return self._next() is not None

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
        elif self._ways[-1].name != "compiled" and not self.compiling:
            self._compile(inputs)
        if (way := self._next()) is None:
            return None
        way.calls += 1
        try:
            given = constants(self._graph)
            if way.is_compared:
                return self._compared(way, given, inputs, function)
            start = time.perf_counter()
            outputs = way.call(given, inputs)
            seconds = time.perf_counter() - start
        except torch.OutOfMemoryError:
            raise
        except CaptureError as error:
            return self._give_up(str(error))
        except Exception as error:  # of the compiled code or its runtime: the caller's own way is still there
            return self._give_up(reason_of(error))
        self._spent += seconds
        if len(way.seconds) < _SAMPLES:
            way.seconds.append(seconds)
        return outputs

    def close(self) -> None:
        """Stop compiling."""
        if self._compilation is not None:
            self._compilation.cancel()

    def _trace(self, function: Function, inputs: Sequence[Tensor]) -> None:
        try:
            function(*inputs)  # chooses plans and fills caches, which a trace must not do
            before = _random_states()
            self._graph = trace(function, inputs)
            if _random_states() != before:
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
        if compilation.failure is None and not compilation.was_kept and self._is_repaid(least) and is_free():
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

            self._ways.append(_Way("compiled", call))
        elif compilation.failure is not None and not self._has_said_uncompiled:
            self._has_said_uncompiled = True
            self._warn(f"the step runs uncompiled: {compilation.failure}")

    def _next(self) -> _Way | None:
        """The way of the next call; ``None`` for the function itself."""
        if not self._schedule.keeps_quickest:
            return self._ways[-1]
        for way in self._ways:
            if len(way.seconds) < _SAMPLES:
                return way
        best = min(self._ways, key=lambda way: statistics.median(way.seconds))
        return best if statistics.median(best.seconds) < statistics.median(self._eager) else None

    def _compared(
        self, way: _Way, constants: Sequence[Tensor], inputs: Sequence[Tensor], function: Function
    ) -> Sequence[Tensor] | None:
        """The outputs of one way, held against those of the function."""
        outputs, expected = with_same_random_numbers(
            lambda: way.call(constants, inputs), lambda: function(*inputs), inputs[-1].device
        )
        if not bool(expected[-1]):
            return expected
        # Norms apart from sums: where all are clipped, norms are so large that no error of a sum would be seen.
        difference = max(
            relative_difference(outputs[:-2], expected[:-2]), relative_difference(outputs[-2:-1], expected[-2:-1])
        )
        if not difference <= self._tolerance:
            self._give_up(f"it gives sums that differ by {difference:.1g} of their norm from those of the step itself")
            return expected
        return outputs

    def _give_up(self, problem: str) -> None:
        self.problem = problem
        self.close()
        self._warn(f"the step is not captured: {problem}")


def _random_states() -> tuple[object, ...]:
    """The states of Python's and NumPy's generators."""
    numpy = np.random.get_state(legacy=False)
    return random.getstate(), str(numpy)
