"""How a step grows with records, parameters (trained and frozen), modules, planned steps and language models.

    python -m benchmarks.growth [--only records,parameters,modules] [--steps 30] [--out DIR]

Each figure is processor time of one thread: medians of steps, as the README has them, eager unless it says otherwise,
with a ledger on the disk. Plain training takes the same batches. Memory is the most that the process grows by, with the
model: set MALLOC_MMAP_THRESHOLD_=65536, so that what is freed goes back.
"""

from __future__ import annotations

import argparse
import gc
import json
import statistics
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from benchmarks.steps import memory, sgd
from benchmarks.steps.large_models import llama
from benchmarks.steps.private import by_engine
from benchmarks.steps.report import hardware
from noisette import Ledger, PerExampleClip, privatize
from noisette.capture.captured import Capture
from noisette.clipping.engines import BookKeeping

Cell = dict[str, Any]
_WIDTH = 20  # inputs of an example
_RANK = 8
_EPSILON = 3.0
_TOKENS = 64  # of a text
LLAMAS = {"100M": (768, 2048, 12), "1B": (2048, 5632, 22), "7B": (4096, 11_008, 32)}  # width, inner width, layers


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n")[0])
    parser.add_argument("--only", default=",".join(GROWTHS))
    parser.add_argument("--steps", type=int, default=30, help="that are measured of each run")
    parser.add_argument("--out", type=Path, default=Path("benchmarks/results"))
    options = parser.parse_args()
    torch.set_num_threads(1)
    path = options.out / "growth.json"
    report: dict[str, Any] = json.loads(path.read_text(encoding="utf-8")) if path.is_file() else {"cells": {}}
    report |= {"experiment": "growth", "hardware": hardware(threads=1), "steps": options.steps}
    for name in options.only.split(","):
        report["cells"][name] = []
        for size in GROWTHS[name][0]:
            report["cells"][name].append({"size": size} | GROWTHS[name][1](size, options.steps))
            print(name, report["cells"][name][-1], flush=True)
            path.write_text(json.dumps(report, indent=1) + "\n", encoding="utf-8")


def by_records(records: int, steps: int) -> Cell:
    """A linear layer on so many records, which are rows of one that is stored."""
    return measured(nn.Linear(_WIDTH, 2), records=records, batch=128, planned=10_000, steps=steps)


def by_parameters(parameters: int, steps: int) -> Cell:
    """Four square layers that have so many weights together."""
    width = round((parameters / 4) ** 0.5)
    layers = [nn.Linear(_WIDTH, width), *[nn.Linear(width, width, bias=False) for _ in range(4)], nn.Linear(width, 2)]
    return measured(nn.Sequential(*layers), records=10_000, batch=16, planned=1_000, steps=min(steps, 10))


class LowRank(nn.Module):
    """A frozen square layer and a trained matrix of rank 8 beside it: LoRA, Hu et al. 2022, equation 3."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.frozen = nn.Linear(width, width, bias=False).requires_grad_(False)
        self.down, self.up = nn.Linear(width, _RANK, bias=False), nn.Linear(_RANK, width, bias=False)
        nn.init.zeros_(self.up.weight)

    def forward(self, x: Tensor) -> Tensor:
        return self.frozen(x) + self.up(self.down(x))


def by_frozen_parameters(parameters: int, steps: int) -> Cell:
    """Four frozen square layers that have so many weights together, with matrices of low rank that are trained."""
    width = round((parameters / 4) ** 0.5)
    layers = [nn.Linear(_WIDTH, width), *[LowRank(width) for _ in range(4)], nn.Linear(width, 2)]
    return measured(nn.Sequential(*layers), records=10_000, batch=16, planned=1_000, steps=min(steps, 10))


def by_modules(modules: int, steps: int) -> Cell:
    """So many small layers in a row."""
    return measured(_layers(modules), records=10_000, batch=128, planned=1_000, steps=steps)


def by_modules_in_a_graph(modules: int, steps: int) -> Cell:
    """The same, with a step that is one graph for each size of a batch, after those of most sizes are traced."""
    return measured(_layers(modules), records=10_000, batch=128, planned=1_000, steps=3 * steps, capture="graph")


def _layers(modules: int) -> nn.Module:
    layers = [nn.Linear(_WIDTH, _WIDTH) for _ in range(modules - 1)]
    return nn.Sequential(*layers, nn.Linear(_WIDTH, 2))


def by_planned_steps(planned: int, steps: int) -> Cell:
    """So many planned steps of a small run, of which the first are measured."""
    return measured(nn.Linear(_WIDTH, 2), records=100_000, batch=128, planned=planned, steps=steps)


def by_language_model(what: tuple[str, str, int], steps: int) -> Cell:
    """A microbatch of so many texts, with noise and SGD, where all weights of a Llama are trained or adapters are."""
    name, trained, texts = what
    words = torch.randint(0, 32_000, (texts, _TOKENS + 1))
    found: Cell = {}
    for shape in ((64, 64, 1), LLAMAS[name]):  # a small one first, which loads code
        gc.collect()
        before = memory.reset_peak("cpu")
        model = llama(*shape, rank=_RANK if trained == "LoRA" else 0)
        step = by_engine(BookKeeping)(model, sgd.Data(words[:, :-1], words[:, 1:]))
        found = {"step_ms": _median(step, min(steps, 1)), "bytes": memory.peak("cpu") - before}
        del model, step
    return found


def weights_of(width: int, inner: int, layers: int) -> int:
    """How many weights the matrices of a Llama with 32,000 words have."""
    return layers * width * (4 * width + 3 * inner) + 64_000 * width


def measured(
    model: nn.Module, *, records: int, batch: int, planned: int, steps: int, capture: Capture = "eager"
) -> Cell:
    """Seconds to start a run, and milliseconds of its steps and of those of plain training."""
    inputs, targets = torch.randn(1, _WIDTH).expand(records, -1), torch.zeros(1, dtype=torch.int64).expand(records)
    optimizer = torch.optim.SGD(model.parameters(), lr=sgd.LEARNING_RATE)
    plain = _median(lambda: _plain_step(model, optimizer, inputs[:batch], targets[:batch]), steps)
    with tempfile.TemporaryDirectory() as folder, Ledger(Path(folder, "ledger.jsonl")) as ledger:
        begin = time.process_time()
        run = privatize(
            PerExampleClip(model, sgd.MAX_GRAD_NORM, capture=capture),
            optimizer,
            (inputs, targets),
            public_size=records,
            expected_batch_size=batch,
            steps=planned,
            epsilon=_EPSILON,
            delta=0.1 / records,
            ledger=ledger,
        )
        start = time.process_time() - begin
        with run:
            batches = run.batches()

            def step() -> None:
                for x, y in next(batches).microbatches(2 * batch):
                    run.accumulate(_loss, x, y)
                optimizer.step()
                optimizer.zero_grad()

            for _ in range(0 if capture == "eager" else steps):
                step()
            private = _median(step, steps)
    return {"start_s": start, "step_ms": private, "plain_ms": plain}


def _loss(model: nn.Module, x: Tensor, y: Tensor) -> Tensor:
    return F.cross_entropy(model(x), y)


def _plain_step(model: nn.Module, optimizer: torch.optim.Optimizer, x: Tensor, y: Tensor) -> None:
    _loss(model, x, y).backward()
    optimizer.step()
    optimizer.zero_grad()


def _median(step: Callable[[], None], steps: int) -> float:
    """The median of the milliseconds of processor time that steps take, after a first one."""
    step()
    taken = []
    for _ in range(steps):
        begin = time.process_time()
        step()
        taken.append(1000 * (time.process_time() - begin))
    return statistics.median(taken)


GROWTHS: dict[str, tuple[tuple[Any, ...], Callable[[Any, int], Cell]]] = {
    "records": ((10**4, 10**5, 10**6, 10**7, 10**8, 10**9), by_records),
    "parameters": ((10**5, 10**6, 10**7, 10**8), by_parameters),
    "frozen parameters": ((10**7, 10**8, 1_200_000_000), by_frozen_parameters),
    "modules": ((10, 100, 1_000, 5_000), by_modules),
    "modules in a graph": ((10, 100, 1_000), by_modules_in_a_graph),
    "planned steps": ((10**3, 10**4, 10**5, 10**6), by_planned_steps),
    "language models": (
        (*((("100M", trained, texts) for trained in ("LoRA", "all weights") for texts in (1, 4))), ("1B", "LoRA", 1)),
        by_language_model,
    ),
}


if __name__ == "__main__":
    main()
