"""How many examples are at work at once: given, or grown from the memory that a piece was measured to take.

A size bounds memory and nothing else. The sum over a batch is the same however the batch is cut.
"""

from __future__ import annotations

import math
from collections.abc import Iterable
from pathlib import Path
from typing import Protocol

import torch

from noisette._internal import checks

# A piece may be predicted to take this share of the memory that is free. An accelerator's allocator scatters what it
# holds, and says when it has run out; a processor's system ends the process instead.
_SHARE_ON_CUDA = 0.8
_SHARE_ON_PROCESSOR = 0.25
# More examples at once make a processor no faster, and a container's own limit cannot be seen in every system.
_MOST_ON_PROCESSOR = 256
# Where memory cannot be measured.
_MOST_UNMEASURED = 32


class MicrobatchSize(Protocol):
    """Says how large the next piece is, and hears how the last one went."""

    @property
    def now(self) -> int:
        """Examples in the next piece, at most."""
        ...

    def begin(self) -> None:
        """A piece is about to be at work."""
        ...

    def end(self, examples: int) -> None:
        """The piece, of so many examples, went through its backward pass."""
        ...

    def halve(self, examples: int) -> bool:
        """Memory ran out in a piece of so many examples; whether there is a smaller size to try."""
        ...


class FixedSize:
    """The size that was asked for.

    Raises:
        TypeError, ValueError: it is no whole number of at least one.
    """

    def __init__(self, size: int) -> None:
        checks.count(size=size)
        self.now = size

    def begin(self) -> None:
        pass

    def end(self, examples: int) -> None:
        pass

    def halve(self, examples: int) -> bool:
        return False


class MeasuredSize:
    """Begins with one example and doubles while twice the memory of the last piece would fit.

    Where memory ran out all the same, half the examples are the most that is tried from then on.
    """

    def __init__(self, memory: Memory) -> None:
        self.now = 1
        self._memory = memory
        self._most = memory.most

    def begin(self) -> None:
        self._memory.begin()

    def end(self, examples: int) -> None:
        # The rest of a batch is smaller and says nothing about the size it was cut by.
        if examples == self.now and 2 * examples <= self._most and self._memory.fits() >= 2:
            self.now = 2 * examples

    def halve(self, examples: int) -> bool:
        self._memory.retry_smaller()
        self.now = self._most = max(1, examples // 2)
        return examples > 1


class Memory(Protocol):
    """Measures the memory that a piece takes."""

    most: float  # examples beyond which no piece should grow

    def begin(self) -> None:
        """A piece is about to be at work."""
        ...

    def fits(self) -> float:
        """How many times over the memory that it took at most would have found a place."""
        ...

    def retry_smaller(self) -> None:
        """Memory that ran out is no longer needed and may be put together anew."""
        ...


class CudaMemory:
    """Peak of what PyTorch allocates on each device, against what was free there when the piece began.

    The peak statistics of ``torch.cuda`` start anew with each piece.
    """

    most: float = math.inf

    def __init__(self, devices: Iterable[torch.device]) -> None:
        self._devices = list(devices)
        self._before: dict[torch.device, int] = {}
        self._free: dict[torch.device, int] = {}
        self._scattered = False

    def begin(self) -> None:
        if self._scattered:  # by now the error that the memory hung on is gone
            torch.cuda.empty_cache()
            self._scattered = False
        for device in self._devices:
            allocated = torch.cuda.memory_allocated(device)
            self._before[device] = allocated
            self._free[device] = torch.cuda.mem_get_info(device)[0] + torch.cuda.memory_reserved(device) - allocated
            torch.cuda.reset_peak_memory_stats(device)

    def fits(self) -> float:
        taken = {d: torch.cuda.max_memory_allocated(d) - self._before[d] for d in self._devices}
        return min(_SHARE_ON_CUDA * self._free[d] / max(1, taken[d]) for d in self._devices)

    def retry_smaller(self) -> None:
        self._scattered = True


class ProcessMemory:
    """Peak of what the process holds, against what the system says is available; Linux alone tells.

    The peak counts from the start of the process, so an earlier one of something else makes pieces smaller, never
    larger. Growth ends at 256 examples.
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

    def retry_smaller(self) -> None:
        pass


class UnmeasuredMemory:
    """Stands in where nothing tells what a piece takes: pieces grow to 32 examples."""

    most: float = _MOST_UNMEASURED

    def begin(self) -> None:
        pass

    def fits(self) -> float:
        return math.inf

    def retry_smaller(self) -> None:
        pass


def memory_of(devices: set[torch.device]) -> Memory:
    """What measures the memory of these devices."""
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
