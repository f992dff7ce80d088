"""Processor time of a private step with each norm, against the same network with group norm, in one run.

    python -m benchmarks.norms [--model bn-lenet-5] [--batch 1024] [--public 128] [--rounds 15] [--out DIR]

The networks are those of papers.networks with batch norm behind every layer, converted. Their steps alternate on one
thread; medians are compared. Noise and update are part of a step.
"""

from __future__ import annotations

import argparse
import json
import statistics
import time
from pathlib import Path

import torch
from torch import nn

from benchmarks.steps.private import by_engine
from benchmarks.steps.report import hardware
from benchmarks.steps.sgd import Data
from noisette.clipping.engines import BookKeeping
from noisette.nn import FrozenBatchNorm, PerExampleBatchNorm, PublicBatchNorm, convert_batch_norm
from noisette.nn.models import build
from papers import networks as networks  # which registers those with batch norm behind every layer

_WARM_UP = 3


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n")[0])
    parser.add_argument("--model", default="bn-lenet-5")
    parser.add_argument("--shape", type=int, nargs=3, default=(1, 28, 28))
    parser.add_argument("--batch", type=int, default=1024)
    parser.add_argument("--public", type=int, default=128)
    parser.add_argument("--rounds", type=int, default=15)
    parser.add_argument("--out", type=Path, default=Path("benchmarks/results"))
    options = parser.parse_args()
    torch.set_num_threads(1)
    shape = tuple(options.shape)
    inputs, targets = torch.randn(options.batch, *shape), torch.randint(0, 10, (options.batch,))
    public = torch.randn(options.public, *shape)

    def network(norm: type[nn.Module], every: int = 1) -> nn.Module:
        of_public = issubclass(norm, PublicBatchNorm | PerExampleBatchNorm)
        model = build(options.model, shape, 10)
        return convert_batch_norm(model, to=norm, public=public if of_public else None, every=every)

    networks = {
        "group norm": network(nn.GroupNorm),
        "layer norm": network(nn.LayerNorm),
        "frozen statistics": network(FrozenBatchNorm),
        "public, every 8 steps": network(PublicBatchNorm, every=8),
        "public, every step": network(PublicBatchNorm),
        "per example, closed form": network(PerExampleBatchNorm),
    }
    steps = {name: by_engine(BookKeeping)(model, Data(inputs, targets)) for name, model in networks.items()}
    seconds: dict[str, list[float]] = {name: [] for name in steps}
    for _ in range(_WARM_UP + options.rounds):
        for name, step in steps.items():
            start = time.process_time()
            step()
            seconds[name].append(time.process_time() - start)
    medians = {name: statistics.median(values[_WARM_UP:]) for name, values in seconds.items()}
    report = {
        "hardware": hardware(1),
        "model": options.model,
        "batch": options.batch,
        "public": options.public,
        "rounds": options.rounds,
        "seconds": medians,
        "ratio": {name: value / medians["group norm"] for name, value in medians.items()},
    }
    options.out.mkdir(parents=True, exist_ok=True)
    (options.out / "norms.json").write_text(json.dumps(report, indent=1) + "\n")
    print(json.dumps(report, indent=1))


if __name__ == "__main__":
    main()
