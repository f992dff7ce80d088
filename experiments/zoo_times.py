"""How long the models that go one by one take: the clipped sum of a batch against a plain step of the same batch.

    python -m experiments.zoo_times [--only PART]

Prints one row per model: the ratio of processor times on one thread, for batches of 16 and 32 examples.
"""

from __future__ import annotations

import argparse
import time
import warnings
from collections.abc import Callable
from statistics import median
from unittest.mock import patch

import torch
from torch import Tensor

from experiments.zoo import LIBRARIES, entries, measured
from experiments.zoo_check import WAYS, Entry, plain_gradients
from noisette import PerExampleClip

SIZES = 16, 32


def ratio(entry: Entry, size: int) -> float:
    """Processor time of the clipped sum over that of forward and backward, medians of five after a warm-up."""
    model, parts = entry.make(False), list[dict[str, Tensor]]()
    with patch.object(torch, "manual_seed"):  # each call draws other examples
        while sum(len(next(iter(part.values()))) for part in parts) < size:
            parts.append(entry.batch(model))
    batch = {name: torch.cat([part[name] for part in parts])[:size] for name in parts[0]}
    clip = PerExampleClip(model, 1.0, capture="eager")

    def private() -> None:
        clip.accumulate(entry.loss, batch)
        clip.pop_sums()

    try:
        return _seconds(private) / _seconds(lambda: plain_gradients(model, batch, entry.loss))
    finally:
        clip.close()


def _seconds(step: Callable[[], object]) -> float:
    step()
    found = []
    for _ in range(5):
        start = time.process_time()
        step()
        found.append(time.process_time() - start)
    return median(found)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--only", default="", help="models with this in their name")
    only = parser.parse_args().only
    torch.set_num_threads(1)
    warnings.simplefilter("ignore")
    slow = {name for name, result in measured().items() if result.get("way") == WAYS[1] and only in name}
    for library in {name.partition("/")[0] for name in slow} & LIBRARIES.keys():
        for name, entry in entries(library).items():
            if name in slow:
                print(f"{name:50}", *(f"{ratio(entry, size):6.1f}" for size in SIZES), flush=True)


if __name__ == "__main__":
    main()
