"""When the noise of a run is compiled: once that saves more time than it takes, or at once where that is asked for.

There is one compiled pass for all models with sums of one type, so the next run on the same machine finds it on disk.
"""

from __future__ import annotations

from collections.abc import Callable

import torch

from noisette.capture.graph import CaptureError, trace
from noisette.capture.schedule import Schedule
from noisette.mechanisms.box_muller import Compiled, example_inputs, noised_quotient

# Measured on two cores: what the compiled pass saves for each value, and what compiling costs, for which a run waits.
_SAVED, _TO_COMPILE = 4e-9, 5.0


class CompiledNoise:
    """The compiled pass of a run's noise, as soon as it is worth it and there; nothing without a compiler.

    Args:
        schedule: whether anything is compiled, and whether it is waited for; ``None``: nothing is.
        still_to_come: how many times the work so far is still to come.
    """

    def __init__(self, schedule: Schedule | None, still_to_come: Callable[[], float]) -> None:
        self._schedule = schedule
        self._still_to_come = still_to_come
        self._drawn = 0
        self._compiled: dict[torch.dtype, Compiled | None] = {}

    def __call__(self, dtype: torch.dtype, values: int) -> Compiled | None:
        """The compiled pass for sums of this type, if it is there, before so many values are drawn."""
        if self._schedule is None or not self._schedule.compiles:
            return None
        self._drawn += values
        if not self._schedule.at_once and self._drawn * self._still_to_come() * _SAVED < _TO_COMPILE:
            return None
        if dtype not in self._compiled:
            inputs = example_inputs(dtype)
            try:
                compiled = trace(noised_quotient, inputs).compiled(inputs)
                self._compiled[dtype] = lambda *given: compiled(given)
            except CaptureError:  # without a compiler noise is drawn as before, and the result is the same
                self._compiled[dtype] = None
        return self._compiled[dtype]
