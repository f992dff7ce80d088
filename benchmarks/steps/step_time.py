"""Seconds per step. The methods take turns, so that other load on the machine affects all of them."""

from __future__ import annotations

import gc
import statistics
import time
from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

import torch

from benchmarks.steps.cell import Cell, Settings, failure
from benchmarks.steps.memory import memory_limit, peak, reset_peak
from benchmarks.steps.methods import METHODS
from benchmarks.steps.precision import in_precision
from benchmarks.steps.sgd import Method, Step
from noisette.capture.captured import wait_for

READY_STEPS = 2  # noisette takes one step as it is, and captures and compiles in the next
WARM_UP = 1  # turns after them
LEAST_ROUNDS = 3
SLOW_SECONDS = 20.0
_TURN_SECONDS = 0.05  # steps shorter than this follow each other as in training, with their data at hand
_MOST_STEPS = 50  # of a turn


def step_times(
    cell: Cell, methods: Sequence[str], settings: Settings, advance: Callable[[float], None]
) -> dict[str, dict[str, Any]]:
    """Median seconds per step of each method, and those of each turn; or the error of a method that fails.

    On a GPU also the bytes by which the memory in use grows at most in the last turn.

    Each method is made and takes its first two steps, timed apart: what is compiled is compiled then. Then comes a turn
    that only warms up. A turn is one step, or as many as fit in 0.05 seconds. A method slower than 20 seconds a step is
    measured once.
    """
    gc.collect()  # models of earlier cells, which are in reference cycles with their hooks
    torch.compiler.reset()  # after compiling for several models torch would stop compiling the same code
    torch.manual_seed(0)
    data = cell.data(settings.device)

    def made(method: Method) -> Step:
        step = method(cell.model(settings.device), data)
        return in_precision(settings.dtype, settings.device, step)

    timers = {name: _Timer(partial(made, METHODS[name]), settings.device) for name in methods}
    share = 1 / (1 + WARM_UP + settings.rounds)
    with memory_limit(settings.device):
        for timer in timers.values():
            timer.start()
            advance(share / len(timers))
        taken = _take_turns(list(timers.values()), settings, lambda: advance(share / len(timers)))
        advance(share * (WARM_UP + settings.rounds - taken))
    return {name: timer.row() for name, timer in timers.items()}


def _take_turns(timers: list[_Timer], settings: Settings, done: Callable[[], None]) -> int:
    """Warm-up and rounds, until enough is measured; in each of them another method comes first. How many there were."""
    began, turns = time.perf_counter(), WARM_UP + settings.rounds
    for turn in range(turns):
        if turn == WARM_UP:
            began = time.perf_counter()
        first = turn % len(timers)
        for timer in [*timers[first:], *timers[:first]]:
            timer.measure()
            done()
        is_late = settings.seconds is not None and time.perf_counter() - began > settings.seconds
        if is_late and turn + 1 >= WARM_UP + LEAST_ROUNDS:
            return turn + 1
    return turns


class _Timer:
    """Times the steps of one method, until one fails or is slow."""

    def __init__(self, make: Callable[[], Step], device: str) -> None:
        self._make = make
        self._device = device
        self._step: Step | None = None
        self._ready = 0.0
        self._seconds: list[float] = []  # per step, of each turn
        self._bytes = 0  # by which the memory in use on the GPU grows at most in a turn
        self._error: dict[str, str] | None = None

    def start(self) -> None:
        """Make the method and take its first steps."""

        def first() -> None:
            self._step = self._make()
            for _ in range(READY_STEPS):
                self._step()

        try:
            self._ready = self._timed(first)
        except Exception as error:  # a method that cannot train a model has its error as a result
            self._fail(error)

    def measure(self) -> None:
        """Time one more turn."""
        if self._step is None or self._is_slow():
            return
        try:
            self._seconds.append(self._turn(self._step))
        except Exception as error:
            self._fail(error)

    def row(self) -> dict[str, Any]:
        """The measurements, or the error."""
        if self._error:
            return self._error
        measured = self._seconds[-1:] if self._is_slow() else self._seconds[WARM_UP:]
        row = {"seconds": statistics.median(measured), "each": measured, "ready": self._ready}
        return row | ({"bytes": self._bytes} if self._device == "cuda" else {})

    def _fail(self, error: Exception) -> None:
        self._error, self._step = failure(error), None

    def _is_slow(self) -> bool:
        return bool(self._seconds) and self._seconds[-1] > SLOW_SECONDS

    def _turn(self, step: Step) -> float:
        """Seconds per step of one turn."""
        last = self._seconds[-1] if self._seconds else _TURN_SECONDS
        steps = min(_MOST_STEPS, max(1, round(_TURN_SECONDS / max(last, 1e-9))))

        def turn() -> None:
            for _ in range(steps):
                step()

        return self._timed(turn) / steps

    def _timed(self, run: Callable[[], None]) -> float:
        before = reset_peak(self._device) if self._device == "cuda" else 0
        self._wait()
        start = time.perf_counter()
        run()
        self._wait()
        seconds = time.perf_counter() - start
        self._bytes = peak(self._device) - before if self._device == "cuda" else 0
        return seconds

    def _wait(self) -> None:
        wait_for(torch.device(self._device))
