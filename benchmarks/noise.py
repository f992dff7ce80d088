"""Time of the noise of a step, by the number of values, and whether a GPU gives the bits that the processor gives.

    python -m benchmarks.noise [--device cuda] [--values 1000000,100000000,1000000000]

Prints a line of JSON for each number of values, as soon as it is measured.
"""

from __future__ import annotations

import argparse
import json
import statistics
import time
from typing import Any

import torch

from noisette.core.noise import GaussianNoise, SecretKey
from noisette.noise.device import CompiledNoise

_STEPS = 5
_COMPARED = 300_000


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n")[0])
    parser.add_argument("--device", default="cuda" if torch.cuda.is_available() else "cpu")
    parser.add_argument("--values", default="1000000,100000000,1000000000")
    options = parser.parse_args()
    print(json.dumps({"bits are those of the processor": equal_bits(options.device)}), flush=True)
    for values in map(int, options.values.split(",")):
        print(json.dumps(measured(options.device, values)), flush=True)


def equal_bits(device: str) -> bool:
    """Whether both devices turn the same sums into the same noised sums."""
    sums = torch.linspace(-3, 3, _COMPARED)
    here, there = sums.clone(), sums.to(device)
    for tensor in (here, there):
        GaussianNoise(SecretKey(bytes(32)), CompiledNoise(None, lambda: 0.0)).add_(
            {"weight": tensor}, step=3, std=0.7, divisor=41.0
        )
    return torch.equal(here, there.cpu())


def measured(device: str, values: int) -> dict[str, Any]:
    """Seconds of one step's noise: the first, which may compile, and the median of those that follow."""
    sums = {"weight": torch.zeros(values, device=device)}
    noise, seconds = GaussianNoise(SecretKey(), CompiledNoise(None, lambda: 0.0)), []
    for step in range(1 + _STEPS):
        wait(device)
        start = time.perf_counter()
        noise.add_(sums, step=step)
        wait(device)
        seconds.append(time.perf_counter() - start)
    median = statistics.median(seconds[1:])
    return {"values": values, "first": seconds[0], "seconds": median, "picoseconds a value": 1e12 * median / values}


def wait(device: str) -> None:
    if device == "cuda":
        torch.cuda.synchronize()


if __name__ == "__main__":
    main()
