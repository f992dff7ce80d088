"""Autotuning: of several exact plans for one result, the one that was fastest for this shape on this device."""

from __future__ import annotations

import time
from collections.abc import Callable, Hashable, Mapping

import torch

_WINNERS: dict[Hashable, str] = {}


def fastest(key: Hashable, candidates: Mapping[str, Callable[[], object]], device: torch.device) -> str:
    """Name of the fastest candidate for this key, measured at its first use.

    Under ``torch.use_deterministic_algorithms(True)`` nothing is measured and the first candidate is chosen, so that
    two runs have the same rounding errors.
    """
    if torch.are_deterministic_algorithms_enabled() or len(candidates) == 1:
        return next(iter(candidates))
    key = (key, device.type, torch.get_num_threads())
    if key not in _WINNERS:
        # The first call of a backend includes choosing and compiling its kernels, so each candidate is called twice.
        first = {name: _best_time(candidate, device, 2) for name, candidate in candidates.items()}
        close = [name for name, seconds in first.items() if seconds < 2 * min(first.values())]
        _WINNERS[key] = min(close, key=lambda name: _best_time(candidates[name], device, 3))
    return _WINNERS[key]


def _best_time(candidate: Callable[[], object], device: torch.device, repeats: int) -> float:
    """Seconds of the fastest of this many calls."""
    best = float("inf")
    for _ in range(repeats):
        start = _now(device)
        candidate()
        best = min(best, _now(device) - start)
    return best


def _now(device: torch.device) -> float:
    if device.type == "cuda":
        torch.cuda.synchronize(device)
    return time.perf_counter()
