"""Seconds per step. The methods take turns step by step, so that other load on the machine affects all of them."""

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
    """Median seconds per step of each method, and the time of each measured step; or the error of a method that fails.

    Warm-up steps come first. A method slower than 20 seconds a step is measured once.
    """
    gc.collect()  # models of earlier cells, which are in reference cycles with their hooks
    torch.manual_seed(0)
    inputs, targets = cell.data(settings.device)
    timers = {
        name: _Timer(lambda make=METHODS[name]: make(cell.model(settings.device), inputs, targets), settings.device)
        for name in methods
    }
    with memory_limit(settings.device):
        for _ in range(WARM_UP + settings.rounds):
            for timer in timers.values():
                timer.measure()
                advance(1 / (len(timers) * (WARM_UP + settings.rounds)))
    return {name: timer.row() for name, timer in timers.items()}


class _Timer:
    """Times the steps of one method, until one fails or is slow."""

    def __init__(self, start: Callable[[], Step], device: str) -> None:
        self._start = start
        self._device = device
        self._step: Step | None = None
        self._seconds: list[float] = []
        self._error: dict[str, str] | None = None

    def measure(self) -> None:
        """Time one more step."""
        if self._error or self._is_slow():
            return
        try:
            self._step = self._step or self._start()
            self._seconds.append(self._timed(self._step))
        except Exception as error:  # a method that cannot train a model has its error as a result
            self._error, self._step = failure(error), None

    def row(self) -> dict[str, Any]:
        """The measurements, or the error."""
        if self._error:
            return self._error
        measured = self._seconds[-1:] if self._is_slow() else self._seconds[WARM_UP:]
        return {"seconds": statistics.median(measured), "each": measured}

    def _is_slow(self) -> bool:
        """Whether the last step was slow. The first does not count: it may time several algorithms for these shapes."""
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
