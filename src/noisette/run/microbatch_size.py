"""The size of a microbatch, given or grown by measuring memory.

It bounds memory and nothing else: the sum over a batch does not depend on the sizes of its microbatches.
"""

from __future__ import annotations

import math
from collections.abc import Iterable
from pathlib import Path
from typing import Protocol

import torch

# The predicted memory of a microbatch may be at most this share of the free memory. An accelerator's allocator
# fragments its memory, and raises an error when it runs out; a processor's system kills the process instead.
_SHARE_ON_CUDA, _SHARE_ON_PROCESSOR = 0.8, 0.25
# A processor gains nothing from more examples at once, and a container's memory limit is not visible everywhere.
_MOST_ON_PROCESSOR, _MOST_UNMEASURED = 256, 32


class Memory(Protocol):
    """Measures a microbatch of at most ``most`` examples, from ``begin`` on.

    ``fits`` is the free memory over the peak that the microbatch took. After ``ran_out`` the allocator may release what
    it caches before the next one.
    """

    most: float

    def begin(self) -> None: ...
    def fits(self) -> float: ...
    def ran_out(self) -> None: ...


class MeasuredSize:
    """Starts with one example and doubles while twice the memory of the last microbatch is free.

    After memory ran out all the same, no size above half of the one that failed is tried again.
    """

    def __init__(self, memory: Memory) -> None:
        self.now = 1
        self._memory = memory
        self._most = memory.most
        self._in_bucket: dict[int, MeasuredSize] = {0: self}

    def in_bucket(self, bucket: int) -> MeasuredSize:
        return self._in_bucket.setdefault(bucket, MeasuredSize(self._memory))

    def begin(self) -> None:
        self._memory.begin()

    def end(self, examples: int) -> None:
        # The last microbatch of a batch may be smaller, and then tells nothing about the full size.
        if examples == self.now and 2 * examples <= self._most and self._memory.fits() >= 2:
            self.now = 2 * examples

    def halve(self, examples: int) -> bool:
        self._memory.ran_out()
        self.now = self._most = max(1, examples // 2)
        return examples > 1


class CudaMemory:
    """Peak of what PyTorch allocates on each device, against what was free there when the microbatch began.

    Resets the peak statistics of ``torch.cuda`` for each microbatch.
    """

    most: float = math.inf

    def __init__(self, devices: Iterable[torch.device]) -> None:
        self._before: dict[torch.device, tuple[int, int]] = dict.fromkeys(devices, (0, 0))  # allocated and free
        self._fragmented = False

    def begin(self) -> None:
        if self._fragmented:  # the exception that kept tensors alive is gone by now
            torch.cuda.empty_cache()
            self._fragmented = False
        for device in self._before:
            allocated = torch.cuda.memory_allocated(device)
            free = torch.cuda.mem_get_info(device)[0] + torch.cuda.memory_reserved(device) - allocated
            self._before[device] = allocated, free
            torch.cuda.reset_peak_memory_stats(device)

    def fits(self) -> float:
        return min(
            _SHARE_ON_CUDA * free / max(1, torch.cuda.max_memory_allocated(device) - allocated)
            for device, (allocated, free) in self._before.items()
        )

    def ran_out(self) -> None:
        self._fragmented = True


class UnmeasuredMemory:
    """For systems where memory cannot be measured: microbatches grow to 32 examples."""

    most: float = _MOST_UNMEASURED

    def begin(self) -> None: ...

    def fits(self) -> float:
        return math.inf

    def ran_out(self) -> None: ...


class ProcessMemory:
    """Peak of the process's memory, against what the system reports as available; Linux only.

    The peak counts from the start of the process, so an earlier peak makes microbatches smaller, never larger. Growth
    ends at 256 examples.
    """

    most: float = _MOST_ON_PROCESSOR

    def __init__(self) -> None:
        self._at_first = _kilobytes("/proc/self/status", "VmRSS")
        self._free = 0

    def begin(self) -> None:
        held = _kilobytes("/proc/self/status", "VmRSS") - self._at_first
        self._free = _kilobytes("/proc/meminfo", "MemAvailable") + held

    def fits(self) -> float:
        taken = _kilobytes("/proc/self/status", "VmHWM") - self._at_first
        return _SHARE_ON_PROCESSOR * self._free / max(1, taken)

    def ran_out(self) -> None: ...


def memory_of(devices: set[torch.device]) -> Memory:
    """The memory measurement for these devices."""
    kinds = {device.type for device in devices}
    if kinds == {"cuda"}:
        return CudaMemory(devices)
    if kinds == {"cpu"} and Path("/proc/self/status").exists() and Path("/proc/meminfo").exists():
        return ProcessMemory()
    return UnmeasuredMemory()


def _kilobytes(file: str, entry: str) -> int:
    for line in Path(file).read_text().splitlines():
        if line.startswith(f"{entry}:"):
            return int(line.split()[1])
    raise OSError(f"{file} has no entry {entry}")
