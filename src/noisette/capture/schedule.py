"""When a step is traced and compiled: only where the run is long enough to repay it, unless asked for."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

Capture = Literal["auto", "eager", "graph", "compiled"]

# Tracing takes 1 to 4 seconds, and saves a tenth to a half of the time of what follows.
_BEFORE_TRACE, _REPAYS_TRACE = 2.0, 10.0
# Training waits for the compiler, on two cores 10 seconds for 150 operations, and compiling saves another tenth to a
# half: it repays itself where at least so many times what it takes is still to come.
_REPAYS_COMPILING, _TO_COMPILE, _TO_COMPILE_OPERATION = 4.0, 5.0, 0.05


@dataclass(frozen=True)
class Schedule:
    """When a step that is computed again and again is traced and compiled.

    Args:
        at_once: traced in its second call and then used; otherwise once that is repaid, and where it is quicker.
        compiles: whether it is compiled, too.
    """

    at_once: bool
    compiles: bool

    def traces(self, seconds: float, left: float) -> bool:
        """Whether to trace, after calls of so many seconds in all that will come ``left`` times again."""
        return self.at_once or (seconds >= _BEFORE_TRACE and seconds * left >= _REPAYS_TRACE)

    def compiles_graph(self, operations: int, seconds: float, left: float) -> bool:
        """Whether to compile a graph of so many operations, likewise."""
        repays = _REPAYS_COMPILING * (_TO_COMPILE + _TO_COMPILE_OPERATION * operations)
        return self.compiles and (self.at_once or seconds * left >= repays)


# The values of ``capture``; "eager" never captures anything.
SCHEDULES: dict[str, Schedule | None] = {
    "auto": Schedule(at_once=False, compiles=True),
    "eager": None,
    "graph": Schedule(at_once=True, compiles=False),
    "compiled": Schedule(at_once=True, compiles=True),
}


def schedule_of(capture: str) -> Schedule | None:
    """The schedule of this name.

    Raises:
        ValueError: there is none of this name.

    >>> schedule_of("fast")
    Traceback (most recent call last):
      ...
    ValueError: capture='fast' is unknown; choose 'auto', 'eager', 'graph' or 'compiled'
    """
    if capture not in SCHEDULES:
        *names, last = map(repr, SCHEDULES)
        raise ValueError(f"capture={capture!r} is unknown; choose {', '.join(names)} or {last}")
    return SCHEDULES[capture]
