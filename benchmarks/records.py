"""Time to draw a batch of many records, and to plan and price such a run, on one thread.

python -m benchmarks.records [--size 1000000000] [--steps 200] [--out DIR]
"""

from __future__ import annotations

import argparse
import json
import platform
import statistics
import time
from importlib.metadata import version
from pathlib import Path
from typing import Any

import torch

from benchmarks.steps.report import hardware
from noisette import epsilon_for, noise_multiplier_for
from noisette.core.batches import PoissonSampler
from noisette.core.noise import SecretKey

_BATCHES = (1_000, 4_000, 100_000)  # expected sizes
_EPSILON, _DELTA, _PLANNED = 3.0, 1e-10, 10_000


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n")[0])
    parser.add_argument("--size", type=int, default=10**9)
    parser.add_argument("--steps", type=int, default=200)
    parser.add_argument("--out", type=Path, default=Path("benchmarks/results"))
    options = parser.parse_args()
    torch.set_num_threads(1)
    cells = [measured(options.size, batch, options.steps) for batch in _BATCHES]
    report = {
        "experiment": "records",
        "records": options.size,
        "hardware": hardware(threads=1),
        "versions": {"python": platform.python_version()} | {n: version(n) for n in ("noisette", "numpy", "torch")},
        "cells": cells,
    }
    (options.out / "records.json").write_text(json.dumps(report, indent=1) + "\n", encoding="utf-8")
    for cell in cells:
        print(cell)


def measured(size: int, batch: int, steps: int) -> dict[str, Any]:
    """Median milliseconds to sample a step, and those of a step if plan and price are spread over all of them."""
    rate = batch / size
    start = time.perf_counter()
    noise = noise_multiplier_for(epsilon=_EPSILON, delta=_DELTA, sampling_rate=rate, steps=_PLANNED)
    planned = time.perf_counter()
    epsilon_for(sampling_rate=rate, noise_multiplier=noise, steps=_PLANNED, delta=_DELTA)
    priced = time.perf_counter()
    sampler, taken = PoissonSampler(size, rate, SecretKey()), []
    for step in range(steps):
        begin = time.perf_counter()
        sampler.indices(step=step)
        taken.append(1000 * (time.perf_counter() - begin))
    sampling = statistics.median(taken)
    return {
        "expected_batch_size": batch,
        "sample_ms": sampling,
        "plan_s": planned - start,
        "price_s": priced - planned,
        "planned_steps": _PLANNED,
        "step_ms": sampling + 1000 * (priced - start) / _PLANNED,
    }


if __name__ == "__main__":
    main()
