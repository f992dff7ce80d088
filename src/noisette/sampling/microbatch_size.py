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
_SHARE_ON_CUDA = 0.8
_SHARE_ON_PROCESSOR = 0.25
# A processor gains nothing from more examples at once, and a container's memory limit is not visible everywhere.
_MOST_ON_PROCESSOR = 256
# Where memory cannot be measured.
_MOST_UNMEASURED = 32


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


class Memory(Protocol):
    """Measures the memory that a microbatch takes."""

    most: float  # the largest number of examples in a microbatch

    def begin(self) -> None:
        """A microbatch is about to be processed."""
        ...

    def fits(self) -> float:
        """The free memory over the peak that the microbatch took."""
        ...

    def ran_out(self) -> None:
        """Memory ran out; the allocator may release what it caches before the next microbatch."""
        ...


class CudaMemory:
    """Peak of what PyTorch allocates on each device, against what was free there when the microbatch began.

    Resets the peak statistics of ``torch.cuda`` for each microbatch.
    """

    most: float = math.inf

    def __init__(self, devices: Iterable[torch.device]) -> None:
        self._devices = list(devices)
        self._before: dict[torch.device, int] = {}
        self._free: dict[torch.device, int] = {}
        self._fragmented = False

    def begin(self) -> None:
        if self._fragmented:  # the exception that kept tensors alive is gone by now
            torch.cuda.empty_cache()
            self._fragmented = False
        for device in self._devices:
            allocated = torch.cuda.memory_allocated(device)
            self._before[device] = allocated
            self._free[device] = torch.cuda.mem_get_info(device)[0] + torch.cuda.memory_reserved(device) - allocated
            torch.cuda.reset_peak_memory_stats(device)

    def fits(self) -> float:
        taken = {d: torch.cuda.max_memory_allocated(d) - self._before[d] for d in self._devices}
        return min(_SHARE_ON_CUDA * self._free[d] / max(1, taken[d]) for d in self._devices)

    def ran_out(self) -> None:
        self._fragmented = True


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

    def ran_out(self) -> None:
        pass


class UnmeasuredMemory:
    """For systems where memory cannot be measured: microbatches grow to 32 examples."""

    most: float = _MOST_UNMEASURED

    def begin(self) -> None:
        pass

    def fits(self) -> float:
        return math.inf

    def ran_out(self) -> None:
        pass


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
