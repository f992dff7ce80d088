"""Seconds per step: one step of each method in turn, so that a busy moment of the machine falls on all of them."""

from __future__ import annotations

import gc
import statistics
import time
from collections.abc import Callable, Sequence
from typing import Any

import torch

from noisette.bench.cell import Cell, Settings, failure
from noisette.bench.memory import memory_limit
from noisette.bench.methods import METHODS, Step

WARM_UP = 2
SLOW_SECONDS = 20.0


def step_times(
    cell: Cell, methods: Sequence[str], settings: Settings, advance: Callable[[float], None]
) -> dict[str, dict[str, Any]]:
    """Median seconds per step of each method, and each measured step; a method that fails gives its error instead.

    Steps before the measured ones warm up. A method slower than 20 seconds a step is measured once.
    """
    gc.collect()  # models of earlier cells, which hold themselves by their hooks
    torch.manual_seed(0)
    inputs, targets = cell.data(settings.device)
    courses = {
        name: _Course(lambda make=METHODS[name]: make(cell.model(settings.device), inputs, targets), settings.device)
        for name in methods
    }
    with memory_limit(settings.device):
        for _ in range(WARM_UP + settings.rounds):
            for course in courses.values():
                course.go_on()
                advance(1 / (len(courses) * (WARM_UP + settings.rounds)))
    return {name: course.row() for name, course in courses.items()}


class _Course:
    """The steps of one method, until one fails or turns out slow."""

    def __init__(self, start: Callable[[], Step], device: str) -> None:
        self._start = start
        self._device = device
        self._step: Step | None = None
        self._seconds: list[float] = []
        self._error: dict[str, str] | None = None

    def go_on(self) -> None:
        """One step more."""
        if self._error or self._is_slow():
            return
        try:
            self._step = self._step or self._start()
            self._seconds.append(self._timed(self._step))
        except Exception as error:  # that a method cannot train a model is a result
            self._error, self._step = failure(error), None

    def row(self) -> dict[str, Any]:
        """What was measured."""
        if self._error:
            return self._error
        measured = self._seconds[-1:] if self._is_slow() else self._seconds[WARM_UP:]
        return {"seconds": statistics.median(measured), "each": measured}

    def _is_slow(self) -> bool:
        """The first step does not tell: it may try out what is fastest for these shapes."""
        return len(self._seconds) > 1 and self._seconds[-1] > SLOW_SECONDS

    def _timed(self, step: Step) -> float:
        self._wait()
        start = time.perf_counter()
        step()
        self._wait()
        return time.perf_counter() - start

    def _wait(self) -> None:
        if self._device == "cuda":
            torch.cuda.synchronize()
