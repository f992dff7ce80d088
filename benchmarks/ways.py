"""Time of a clipped sum by the loss of one example (``accumulate``), against the batched way (``backward``).

    python -m benchmarks.ways [--rounds 30] [--threads 1] [--out DIR]

The two alternate on the models of ``noisette bench``; medians are compared. Noise and update are no part of it.
"""

from __future__ import annotations

import argparse
import json
import statistics
import time
from collections.abc import Callable
from pathlib import Path

import torch
from torch import Tensor, nn

import noisette
from noisette.bench.models import MODELS
from noisette.bench.report import hardware

F = nn.functional
_CELLS = [
    *(("mlp", 128), ("mlp", 1024), ("cnn", 128), ("rnn", 128), ("lstm", 128), ("gru", 128), ("transformer", 32)),
    *(("resnet18-cifar", 32), ("vgg16-cifar", 16)),
]
_WARM_UP = 3


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n")[0])
    parser.add_argument("--rounds", type=int, default=30)
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument("--out", type=Path, default=Path("benchmarks/results"))
    options = parser.parse_args()
    torch.set_num_threads(options.threads)
    rows = []
    for name, batch in _CELLS:
        seconds = _measured(name, batch, options.rounds)
        rows.append({"model": name, "batch": batch, **seconds, "ratio": seconds["accumulate"] / seconds["backward"]})
        print(f"{name}@{batch}: accumulate / backward = {rows[-1]['ratio']:.3f}", flush=True)
    result = {"hardware": hardware(options.threads), "cells": rows}
    (options.out / "ways.json").write_text(json.dumps(result, indent=1) + "\n", encoding="utf-8")


def _loss(model: nn.Module, x: Tensor, y: Tensor) -> Tensor:
    return F.cross_entropy(model(x), y)


def _measured(name: str, batch: int, rounds: int) -> dict[str, float]:
    """Median seconds of each way."""
    model = MODELS[name].build()
    x, y = MODELS[name].data(batch, None, "cpu")
    clip = noisette.PerExampleClip(model, 1.0)
    ways: dict[str, Callable[[], None]] = {
        "accumulate": lambda: clip.accumulate(_loss, x, y),
        "backward": lambda: clip.backward(F.cross_entropy(model(x), y, reduction="none")),
    }
    seconds: dict[str, list[float]] = {way: [] for way in ways}
    for k in range(_WARM_UP + rounds):
        for way in sorted(ways, reverse=bool(k % 2)):
            start = time.perf_counter()
            ways[way]()
            seconds[way].append(time.perf_counter() - start)
            clip.pop_sums()
    clip.close()
    return {way: statistics.median(times[_WARM_UP:]) for way, times in seconds.items()}


if __name__ == "__main__":
    main()
