"""Peak memory of a step, measured in a fresh process: how far it grows beyond the model and the batch."""

from __future__ import annotations

import gc
import json
import os
import signal
import subprocess
import sys
import warnings
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

import torch

from noisette.bench.cell import Cell, Settings, failure
from noisette.bench.methods import METHODS

_STEPS = 3
_HEADROOM = 0.9  # share of the available memory


def peak_memory(
    cell: Cell, methods: Sequence[str], settings: Settings, advance: Callable[[float], None]
) -> dict[str, dict[str, Any]]:
    """Peak bytes of each method; a method that fails gives its error instead."""
    rows = {}
    for name in methods:
        rows[name] = _in_a_process(cell, name, settings)
        advance(1 / len(methods))
    return rows


def _in_a_process(cell: Cell, method: str, settings: Settings) -> dict[str, Any]:
    asked = {"name": cell.name, "batch": cell.batch, "image": cell.image, "method": method, **vars(settings)}
    # Freed blocks go back to the system at once, so that a peak is what is in use and not what is kept for later.
    environment = os.environ | {"MALLOC_MMAP_THRESHOLD_": "65536"}
    done = subprocess.run(
        [sys.executable, "-m", __name__, json.dumps(asked)],
        capture_output=True,
        text=True,
        env=environment,
        check=False,
    )
    if done.returncode == 0:
        return json.loads(done.stdout)
    if done.returncode == -signal.SIGKILL:
        return {"error": "ended by the system, most likely for want of memory"}
    return {"error": (done.stderr.splitlines() or ["no message"])[-1][:240]}


def growth(cell: Cell, method: str, device: str) -> int:
    """Bytes by which this process, or its share of the GPU, grows at most in a few steps of a method."""
    few = replace(cell, batch=2)
    METHODS[method](few.model(device), *few.data(device))()  # loads code, which is not part of what a step needs
    step = METHODS[method](cell.model(device), *cell.data(device))
    gc.collect()
    before = _forget_peak(device)
    for _ in range(_STEPS):
        step()
    return _peak(device) - before


def _forget_peak(device: str) -> int:
    """The peak starts anew from here."""
    if device == "cuda":
        torch.cuda.reset_peak_memory_stats()
    else:
        Path("/proc/self/clear_refs").write_text("5")
    return _peak(device)


def _peak(device: str) -> int:
    """Most bytes held since the peak was last forgotten."""
    return torch.cuda.max_memory_allocated() if device == "cuda" else 1024 * kibibytes("self/status", "VmHWM")


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


def main() -> None:
    """Measure what the first argument says and print the result."""
    asked = json.loads(sys.argv[1])
    device = asked["device"]
    torch.set_num_threads(asked["threads"])
    warnings.simplefilter("ignore")
    try:
        with memory_limit(device):
            result = {"bytes": growth(Cell(asked["name"], asked["batch"], asked["image"]), asked["method"], device)}
    except Exception as error:  # that a method cannot train a model is a result
        result = failure(error)
    print(json.dumps(result))


if __name__ == "__main__":
    main()
