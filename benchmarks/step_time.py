"""Step time and peak memory of private training against plain training, all methods interleaved in one run.

    python -m benchmarks.step_time [--models mlp-128 cnn] [--methods plain ...] [--rounds 15] [--out DIR]

Writes step_time.json and step_time.svg. Times are medians; what counts is the ratio to plain in the same run. Peak
memory is the growth of the process over its size before the first step, each pair in a process of its own.
"""

from __future__ import annotations

import argparse
import json
import platform
import statistics
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import torch
from rich.console import Console
from rich.progress import Progress
from rich.table import Table

from benchmarks.figure import draw
from benchmarks.methods import METHODS, Step
from benchmarks.models import CASES, Case

WARM_UP = 2
SLOW_SECONDS = 20.0  # a method that is slower than this per step is measured once


def main() -> None:
    options = parse_options()
    torch.set_num_threads(options.threads)
    if options.memory_of:
        print(memory_growth(*options.memory_of))
        return
    results = []
    with Progress() as progress:
        pairs = len(options.models) * len(options.methods)
        times = progress.add_task("step time", total=len(options.models))
        memory = progress.add_task("peak memory", total=pairs)
        for name in options.models:
            rows = measure_times(CASES[name], options.methods, options.rounds)
            progress.advance(times)
            for method, row in rows.items():
                row["peak_mib"] = None if "error" in row else memory_in_process(name, method, options.threads)
                progress.advance(memory)
            results.append({"model": name, "title": CASES[name].title, "methods": rows})
    report = {"hardware": hardware(options.threads), "rounds": options.rounds, "results": results}
    options.out.mkdir(parents=True, exist_ok=True)
    (options.out / "step_time.json").write_text(json.dumps(report, indent=1) + "\n")
    draw(report, options.out / "step_time.svg")
    show(report)
    print(f"written: {options.out / 'step_time.json'}, {options.out / 'step_time.svg'}")


def parse_options() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n")[0])
    parser.add_argument("--models", nargs="+", choices=list(CASES), default=list(CASES), metavar="MODEL")
    parser.add_argument("--methods", nargs="+", choices=list(METHODS), default=list(METHODS), metavar="METHOD")
    parser.add_argument("--rounds", type=int, default=15, help="measured steps of each method")
    parser.add_argument("--threads", type=int, default=torch.get_num_threads())
    parser.add_argument("--out", type=Path, default=Path("benchmarks/results"))
    parser.add_argument("--memory-of", nargs=2, metavar=("MODEL", "METHOD"), help=argparse.SUPPRESS)
    return parser.parse_args()


def measure_times(case: Case, methods: list[str], rounds: int) -> dict[str, dict[str, Any]]:
    """Median seconds per step of each method, one step of each in turn."""
    torch.manual_seed(0)
    inputs, targets = case.data()
    steps: dict[str, Step] = {}
    rows: dict[str, dict[str, Any]] = {}
    seconds: dict[str, list[float]] = {}
    for name in methods:
        try:
            step = METHODS[name](case.model(), inputs, targets)
            warm = [timed(step) for _ in range(WARM_UP)]
        except Exception as error:  # a peer that cannot train a model is a result
            rows[name] = {"error": f"{type(error).__name__}: {error}".splitlines()[0][:200]}
            continue
        seconds[name] = warm[-1:] if warm[-1] > SLOW_SECONDS else []
        steps[name] = step
    for _ in range(rounds):
        for name, step in steps.items():
            if not seconds[name] or seconds[name][0] <= SLOW_SECONDS:
                seconds[name].append(timed(step))
    medians = {name: statistics.median(values) for name, values in seconds.items()}
    for name, median in medians.items():
        rows[name] = {"milliseconds": 1000 * median, "ratio": median / medians["plain"]}
    return {name: rows[name] for name in methods}


def timed(step: Step) -> float:
    start = time.perf_counter()
    step()
    return time.perf_counter() - start


def memory_in_process(model: str, method: str, threads: int) -> float | None:
    """Growth in MiB of a fresh process that takes a few steps."""
    command = [sys.executable, "-W", "ignore", "-m", "benchmarks.step_time", "--memory-of", model, method]
    done = subprocess.run([*command, "--threads", str(threads)], capture_output=True, text=True, check=False)
    return float(done.stdout.split()[-1]) if done.returncode == 0 else None


def memory_growth(model: str, method: str) -> float:
    case = CASES[model]
    step = METHODS[method](case.model(), *case.data())
    Path("/proc/self/clear_refs").write_text("5")  # forget the peak so far
    before = peak_mib()
    for _ in range(3):
        step()
    return peak_mib() - before


def peak_mib() -> float:
    """Largest resident size since it was last forgotten (Linux)."""
    lines = Path("/proc/self/status").read_text().splitlines()
    return next(int(line.split()[1]) for line in lines if line.startswith("VmHWM")) / 1024


def hardware(threads: int) -> dict[str, Any]:
    from importlib.metadata import PackageNotFoundError, version

    versions = {}
    for package in ("torch", "opacus", "numpy", "noisette"):
        try:
            versions[package] = version(package)
        except PackageNotFoundError:
            versions[package] = None
    return {"processor": processor(), "threads": threads, "python": platform.python_version(), "versions": versions}


def processor() -> str:
    cpuinfo = Path("/proc/cpuinfo")
    lines = cpuinfo.read_text().splitlines() if cpuinfo.exists() else []
    return next((line.split(":")[1].strip() for line in lines if line.startswith("model name")), platform.machine())


def show(report: dict[str, Any]) -> None:
    for result in report["results"]:
        table = Table("method", "ms per step", "ratio to plain", "peak MiB", title=result["title"])
        for name, row in result["methods"].items():
            if "error" in row:
                table.add_row(name, "cannot train it", "", row["error"][:60])
            else:
                peak = "" if row["peak_mib"] is None else f"{row['peak_mib']:.0f}"
                table.add_row(name, f"{row['milliseconds']:.2f}", f"{row['ratio']:.2f}", peak)
        Console().print(table)


if __name__ == "__main__":
    main()
