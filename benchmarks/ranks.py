"""Two processes of one thread each against one: examples a second, and what noise and ledger cost.

    python -m benchmarks.ranks [--steps 12] [--out benchmarks/results]

The same step is taken in turn by rank 0 alone and by both ranks; ratios are of medians. The second part has a network
of 1e8 parameters on sequences, where each rank draws half of the noise.
"""

from __future__ import annotations

import argparse
import json
import os
import platform
import statistics
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor, nn, optim
from torch.multiprocessing.spawn import spawn
from torch.nn import functional as F

from benchmarks.steps.models import MODELS
from noisette import Alone, PerExampleClip, PrivateRun, Ranks, privatize
from noisette.accounting import ledger as ledger_module
from noisette.capture.captured import Capture
from noisette.core.noise import GaussianNoise

BATCH, STEPS = 64, 12
WIDE, SEQUENCES, POSITIONS = 5000, 4, 256


def images() -> tuple[nn.Module, Any]:
    torch.manual_seed(0)
    return MODELS["resnet18-cifar"].build(), (torch.randn(BATCH, 3, 32, 32), torch.randint(10, (BATCH,)))


def sequences() -> tuple[nn.Module, Any]:
    """1e8 parameters, each used at every position."""
    torch.manual_seed(0)
    layers = [layer for _ in range(4) for layer in (nn.Linear(WIDE, WIDE), nn.ReLU())]
    return nn.Sequential(*layers), (torch.randn(SEQUENCES, POSITIONS, WIDE), torch.zeros(SEQUENCES))


def image_loss(model: nn.Module, x: Tensor, y: Tensor) -> Tensor:
    return F.cross_entropy(model(x), y)


def sequence_loss(model: nn.Module, x: Tensor, y: Tensor) -> Tensor:
    return model(x).square().mean() + y.sum()


class Clock:
    """Adds up the time within some methods."""

    def __init__(self) -> None:
        self.seconds = 0.0

    def around(self, owner: Any, name: str) -> None:
        whole = getattr(owner, name)

        def timed(*args: Any, **kwargs: Any) -> Any:
            begun = time.perf_counter()
            try:
                return whole(*args, **kwargs)
            finally:
                self.seconds += time.perf_counter() - begun

        setattr(owner, name, timed)


def started(
    ranks: Any, parts: Callable[[], tuple[nn.Module, Any]], folder: Path, capture: Capture = "eager"
) -> PrivateRun:
    """A run whose batches have all records, so that every step has the same work."""
    model, data = parts()
    return privatize(
        PerExampleClip(model, 1.0, capture=capture),
        optim.SGD(model.parameters(), lr=0.01),
        data,
        sampling_rate=1.0,
        expected_batch_size=float(len(data[1])),
        steps=1000,
        noise_multiplier=100.0,
        ledger=folder / "ledger.jsonl",
        ranks=ranks,
    )


def step(run: PrivateRun, batches: Any, loss: Callable[..., Tensor], size: int) -> float:
    begun = time.perf_counter()
    for x, y in next(batches).microbatches(size):
        run.accumulate(loss, x, y)
    run.optimizer.step()
    return time.perf_counter() - begun


def rank(number: int, place: str, steps: int) -> None:
    torch.set_num_threads(1)
    dist.init_process_group("gloo", init_method=f"file://{place}/store", rank=number, world_size=2)
    folder = Path(place, str(number))
    (folder / "alone").mkdir(parents=True)
    (folder / "both").mkdir()
    results = _throughput(number, folder, steps)
    clock = Clock()
    for method in ("reserve", "commit"):
        clock.around(ledger_module.Ledger, method)
    clock.around(GaussianNoise, "add_")
    results |= _share_of_noise(clock, folder)
    if number == 0:
        Path(place, "results.json").write_text(json.dumps(results))
    dist.destroy_process_group()


def _throughput(number: int, folder: Path, steps: int) -> dict[str, float]:
    """Examples a second of one rank and of two, in turn."""
    both = started(Ranks(), images, folder / "both")
    alone = started(Alone(), images, folder / "alone")
    of_both, of_alone = both.batches(), alone.batches()
    times: dict[str, list[float]] = {"alone": [], "both": []}
    for _ in range(steps):
        dist.barrier()
        if number == 0:
            times["alone"].append(step(alone, of_alone, image_loss, BATCH))
        dist.barrier()
        times["both"].append(step(both, of_both, image_loss, BATCH))
    both.close()
    alone.close()
    if number:
        return {}
    one, two = (statistics.median(times[name][2:]) for name in ("alone", "both"))
    return {"one rank, seconds a step": one, "two ranks, seconds a step": two, "ratio": one / two}


def _share_of_noise(clock: Clock, folder: Path) -> dict[str, float]:
    """The part of a step with 1e8 parameters that noise and ledger take on one of two ranks."""
    (folder / "large").mkdir()
    run = started(Ranks(), sequences, folder / "large", "compiled")
    batches = run.batches()
    seconds, parts = [], []
    for _ in range(3):
        clock.seconds = 0.0
        seconds.append(step(run, batches, sequence_loss, SEQUENCES))
        parts.append(clock.seconds)
    run.close()
    whole, part = statistics.median(seconds), statistics.median(parts)
    return {"1e8 parameters, seconds a step": whole, "noise and ledger, seconds": part, "share": part / whole}


def main() -> None:
    arguments = argparse.ArgumentParser(description=__doc__)
    arguments.add_argument("--steps", type=int, default=STEPS)
    arguments.add_argument("--out", type=Path, default=Path("benchmarks/results"))
    given = arguments.parse_args()
    with tempfile.TemporaryDirectory() as place:
        spawn(rank, (place, given.steps), nprocs=2)
        results = json.loads(Path(place, "results.json").read_text())
    machine = {"torch": torch.__version__, "python": platform.python_version(), "cores": os.cpu_count()}
    shape = {"batch": BATCH, "threads of a rank": 1, "positions": SEQUENCES * POSITIONS, "width": WIDE}
    report = {"machine": machine, "shape": shape, **results}
    print(json.dumps(report, indent=2))
    (given.out / "ranks.json").write_text(json.dumps(report, indent=2) + "\n")


if __name__ == "__main__":
    main()
