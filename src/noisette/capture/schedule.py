"""When a step is traced and compiled: only where the run is long enough to repay it, unless asked for."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

Capture = Literal["auto", "eager", "graph", "compiled"]

# Tracing takes 1 to 4 seconds, and saves a tenth to a half of the time of what follows. Compiling takes 5 to 60 seconds
# beside the training, and saves another tenth to a half.
_BEFORE_TRACE, _REPAYS_TRACE, _REPAYS_COMPILING = 2.0, 10.0, 60.0


@dataclass(frozen=True)
class Schedule:
    """When a function that is called again and again is traced and compiled.

    Args:
        before_trace: seconds that its calls must have taken before it is traced.
        repays_trace: seconds that its calls must be expected to take from then on.
        repays_compiling: seconds that its calls must be expected to take before it is compiled; ``None``: never.
        waits: whether calls wait until the compiled function is there.
        keeps_quickest: whether the quickest way is kept; otherwise the one that was asked for.
    """

    before_trace: float
    repays_trace: float
    repays_compiling: float | None
    waits: bool
    keeps_quickest: bool


# The values of ``capture``; "eager" never captures anything.
SCHEDULES: dict[str, Schedule | None] = {
    "auto": Schedule(_BEFORE_TRACE, _REPAYS_TRACE, _REPAYS_COMPILING, waits=False, keeps_quickest=True),
    "eager": None,
    "graph": Schedule(0, 0, None, waits=False, keeps_quickest=False),
    "compiled": Schedule(0, 0, 0, waits=True, keeps_quickest=False),
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
