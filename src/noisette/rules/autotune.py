"""Autotuning: of several exact plans for one result, the one that was fastest for this shape on this device."""

from __future__ import annotations

import time
from collections.abc import Callable, Hashable, Iterator, Mapping
from contextlib import contextmanager
from contextvars import ContextVar

import torch
from torch.fx.experimental.proxy_tensor import get_proxy_mode

_WINNERS: dict[Hashable, str] = {}
_FEW_OPERATIONS = ContextVar("few_operations", default=False)


class NotMeasuredError(RuntimeError):
    """A choice of plans was asked for within a trace, and nothing has been measured before it."""


@contextmanager
def few_operations() -> Iterator[None]:
    """Within it only plans are chosen whose number of operations does not depend on the number of examples.

    For a step that is traced: every operation becomes a node of the graph, and a graph of thousands of nodes takes
    minutes to compile. Run the same step within this context before the trace, so that its plans are measured.
    """
    token = _FEW_OPERATIONS.set(True)
    try:
        yield
    finally:
        _FEW_OPERATIONS.reset(token)


def operations_are_few() -> bool:
    """Whether the call is within :func:`few_operations`."""
    return _FEW_OPERATIONS.get()


def fastest(key: Hashable, candidates: Mapping[str, Callable[[], object]], device: torch.device) -> str:
    """Name of the fastest candidate for this key, measured at its first use.

    Under ``torch.use_deterministic_algorithms(True)`` nothing is measured and the first candidate is chosen, so that
    two runs have the same rounding errors.

    Raises:
        NotMeasuredError: the call is traced, and this key has not been measured: times of a trace mean nothing, and the
            operations of every candidate would be part of the graph.
    """
    if torch.are_deterministic_algorithms_enabled() or len(candidates) == 1:
        return next(iter(candidates))
    key = (key, operations_are_few(), device.type, torch.get_num_threads())
    if key not in _WINNERS:
        if get_proxy_mode() is not None:
            raise NotMeasuredError(
                f"nothing was measured for the plans {', '.join(candidates)}; run the step once within "
                "few_operations() before it is traced"
            )
        # The first call of a backend includes choosing and compiling its kernels, so each candidate is called twice.
        first = {name: _best_time(candidate, device, 2) for name, candidate in candidates.items()}
        close = [name for name, seconds in first.items() if seconds < 2 * min(first.values())]
        _WINNERS[key] = min(close, key=lambda name: _best_time(candidates[name], device, 3))
    return _WINNERS[key]


def _best_time(candidate: Callable[[], object], device: torch.device, repeats: int) -> float:
    """Seconds of the fastest of this many calls."""
    seconds = _seconds_on_gpu if device.type == "cuda" else _seconds_on_processor
    return min(seconds(candidate, device) for _ in range(repeats))


def _seconds_on_processor(candidate: Callable[[], object], device: torch.device) -> float:
    start = time.perf_counter()
    candidate()
    return time.perf_counter() - start


def _seconds_on_gpu(candidate: Callable[[], object], device: torch.device) -> float:
    """The time between two events in the GPU's own queue, which leaves out what the processor does before and after."""
    stream = torch.cuda.current_stream(device)
    start, end = torch.cuda.Event(enable_timing=True), torch.cuda.Event(enable_timing=True)
    start.record(stream)
    candidate()
    end.record(stream)
    end.synchronize()
    return start.elapsed_time(end) / 1000
