"""When the noise of a run is compiled: once that saves more time than it takes, or at once where that is asked for.

There is one compiled pass for all models with sums of one type, so the next run on the same machine finds it on disk.
"""

from __future__ import annotations

from collections.abc import Callable

import torch

from noisette.capture.compiler import Compilation, is_free
from noisette.capture.graph import CaptureError, trace
from noisette.capture.schedule import Schedule
from noisette.mechanisms.box_muller import Compiled, example_inputs, noised_quotient

# Measured on two cores: what the compiled pass saves for each value, what compiling costs, and what loading costs.
_SAVED, _TO_COMPILE, _TO_LOAD = 4e-9, 5.0, 1.0


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
        self._compilations: dict[torch.dtype, Compilation] = {}

    def __call__(self, dtype: torch.dtype, values: int) -> Compiled | None:
        """The compiled pass for sums of this type, if it is there, before so many values are drawn."""
        schedule = self._schedule
        if schedule is None or schedule.repays_compiling is None:
            return None
        self._drawn += values
        saved = self._drawn * self._still_to_come() * _SAVED
        if not schedule.waits and saved < _TO_LOAD:
            return None
        if dtype not in self._compilations:
            inputs = example_inputs(dtype)
            self._compilations[dtype] = Compilation(trace(noised_quotient, inputs), inputs)
        compilation = self._compilations[dtype]
        if compilation.failure is None and not compilation.was_kept and not compilation.is_running:
            if schedule.waits:
                compilation.start(at_full_speed=True)
            elif saved >= _TO_COMPILE and is_free():
                compilation.start()
        return self._waited_for(compilation) if schedule.waits else compilation.ready()

    def close(self) -> None:
        """Stop compiling."""
        for compilation in self._compilations.values():
            compilation.cancel()

    @staticmethod
    def _waited_for(compilation: Compilation) -> Compiled | None:
        try:
            return compilation.wait()
        except CaptureError:  # without a compiler noise is drawn as before, and the result is the same
            return None
