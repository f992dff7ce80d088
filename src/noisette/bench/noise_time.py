"""Seconds that the noise of a release takes, by value."""

from __future__ import annotations

import statistics
import time

import torch

from noisette.capture.schedule import schedule_of
from noisette.core.noise import GaussianNoise, SecretKey
from noisette.mechanisms.compiled_noise import CompiledNoise

_REPEATS = 5


def noise_time(device: torch.device | str, values: int, *, is_compiled: bool = True) -> float:
    """Nanoseconds a value to divide a sum in single precision and to add noise to it; the median of five releases.

    Args:
        device: where the sum lies.
        values: how many it has.
        is_compiled: whether a processor computes it by compiled code, if that can be compiled there.

    >>> noise_time("cpu", 1000, is_compiled=False) > 0
    True
    """
    device = torch.device(device)
    compiled = CompiledNoise(schedule_of("compiled" if is_compiled else "eager"), lambda: 1.0)
    noise, sums = GaussianNoise(SecretKey(), compiled), {"weight": torch.zeros(values, device=device)}
    seconds = []
    for step in range(_REPEATS + 1):  # the first one compiles and fills tables
        _wait_for(device)
        began = time.perf_counter()
        noise.add_(sums, step=step, std=1.0, divisor=1.0)
        _wait_for(device)
        seconds.append(time.perf_counter() - began)
    return statistics.median(seconds[1:]) / values * 1e9


def _wait_for(device: torch.device) -> None:
    if device.type == "cuda":
        torch.cuda.synchronize(device)
