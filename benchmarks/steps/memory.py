"""Peak memory of a step in addition to the model and the batch, in a fresh process or on a GPU; a limit on memory."""

from __future__ import annotations

import gc
import json
import os
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace
from importlib import import_module
from pathlib import Path
from typing import Any

import torch

from benchmarks.steps import peer_fastdp
from benchmarks.steps.cell import Cell, Settings, failure
from benchmarks.steps.methods import METHODS
from benchmarks.steps.precision import in_precision
from benchmarks.steps.private import uncaptured_is_an_error
from benchmarks.steps.sgd import Step

_FIRST, _STEPS = 2, 3  # what is compiled is compiled in the first two steps
_HEADROOM = 0.9  # share of the available memory


def peak_memory(
    cell: Cell, methods: Sequence[str], settings: Settings, advance: Callable[[float], None]
) -> dict[str, dict[str, Any]]:
    """Peak bytes of each method, or the error of a method that fails."""
    measure = _in_this_process if settings.device == "cuda" else _in_fresh_process
    rows = {}
    for name in methods:
        rows[name] = measure(cell, name, settings)
        advance(1 / len(methods))
    return rows


def _in_this_process(cell: Cell, method: str, settings: Settings) -> dict[str, Any]:
    """On a GPU, where torch itself knows what is in use."""
    try:
        return {"bytes": growth(cell, method, settings.device, settings.dtype)}
    except Exception as error:  # a method that cannot train a model has its error as a result
        return failure(error)
    finally:
        gc.collect()
        torch.cuda.empty_cache()


def _in_fresh_process(cell: Cell, method: str, settings: Settings) -> dict[str, Any]:
    request = {"name": cell.name, "batch": cell.batch, "image": cell.image, "method": method}
    request |= {"device": settings.device, "threads": settings.threads, "dtype": settings.dtype}
    request |= {"fastdp": str(settings.fastdp) if settings.fastdp else None, "module": METHODS[method].__module__}
    # Freed blocks are returned to the system at once, so that the peak counts memory in use only.
    environment = os.environ | {"MALLOC_MMAP_THRESHOLD_": "65536"}
    command = [sys.executable, "-m", __name__, json.dumps(request)]
    done = subprocess.run(command, capture_output=True, text=True, env=environment, check=False)
    if done.returncode == 0:
        return json.loads(done.stdout)
    if done.returncode == -signal.SIGKILL:
        return {"error": "killed by the system, most likely because memory ran out"}
    return {"error": (done.stderr.splitlines() or ["no message"])[-1][:240]}


def growth(cell: Cell, method: str, device: str, dtype: str = "float32") -> int:
    """Bytes by which the memory of this process, or on the GPU, grows at most during a few steps of a method.

    What compiling needs for a moment does not count; what the first steps leave behind does.
    """
    few = replace(cell, batch=2)
    loads_code = METHODS[method](few.model(device), few.data(device))  # and its memory does not count
    _take(_FIRST, in_precision(dtype, device, loads_code))
    step = in_precision(dtype, device, METHODS[method](cell.model(device), cell.data(device)))
    gc.collect()
    before = reset_peak(device)
    _take(_FIRST, step)
    gc.collect()
    reset_peak(device)
    _take(_STEPS, step)
    return peak(device) - before


def _take(steps: int, step: Step) -> None:
    for _ in range(steps):
        step()


def reset_peak(device: str) -> int:
    """Reset the peak to the memory in use, and return it."""
    if device == "cuda":
        torch.cuda.reset_peak_memory_stats()
    else:
        Path("/proc/self/clear_refs").write_text("5")
    return peak(device)


def peak(device: str) -> int:
    """The most bytes in use since the last reset."""
    return torch.cuda.max_memory_allocated() if device == "cuda" else 1024 * kibibytes("self/status", "VmHWM")


@contextmanager
def memory_limit(device: str) -> Iterator[None]:
    """Limit the memory of this process to what the machine has available, so that a large step fails with an error.

    Without the limit Linux would kill the process. GPUs raise such an error themselves; other systems have no limit.
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
    """The value of an entry in a file under ``/proc`` with sizes in kB."""
    lines = Path("/proc", file).read_text().splitlines()
    return next(int(line.split()[1]) for line in lines if line.startswith(f"{entry}:"))


def main() -> None:
    """Make the measurement that the first argument describes, and print the result as JSON."""
    request = json.loads(sys.argv[1])
    device = request["device"]
    if request["fastdp"]:
        peer_fastdp.look_in(Path(request["fastdp"]))
    import_module(request["module"])  # which may add the method to those that there are
    torch.set_num_threads(request["threads"])
    try:
        with memory_limit(device), uncaptured_is_an_error():
            cell = Cell(request["name"], request["batch"], request["image"])
            result = {"bytes": growth(cell, request["method"], device, request["dtype"])}
    except Exception as error:  # a method that cannot train a model has its error as a result
        result = failure(error)
    print(json.dumps(result))


if __name__ == "__main__":
    main()
