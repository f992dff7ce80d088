"""A step that needs more memory than there is fails with an error, before the system ends the process for it."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

_HEADROOM = 0.9  # of what is available


@contextmanager
def memory_limit(device: str) -> Iterator[None]:
    """Within the block, this process may grow by what the machine has available, and not more.

    A GPU refuses by itself, and systems other than Linux are left alone.
    """
    if device != "cpu" or not Path("/proc/meminfo").exists():
        yield
        return
    import resource

    soft, hard = resource.getrlimit(resource.RLIMIT_DATA)
    here = 1024 * (kibibytes("self/status", "VmData") + int(_HEADROOM * kibibytes("meminfo", "MemAvailable")))
    lowest = min(limit for limit in (soft, hard, here) if limit != resource.RLIM_INFINITY)
    resource.setrlimit(resource.RLIMIT_DATA, (lowest, hard))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_DATA, (soft, hard))


def kibibytes(file: str, entry: str) -> int:
    """An entry of a file under ``/proc`` that lists sizes in kB."""
    lines = Path("/proc", file).read_text().splitlines()
    return next(int(line.split()[1]) for line in lines if line.startswith(f"{entry}:"))
