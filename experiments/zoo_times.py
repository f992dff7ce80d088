"""How long the models that go one by one take, against a plain step of the same batch.

    python -m experiments.zoo_times [--only PART]

For batches of 16 and 32 examples: processor times on one thread of the clipped sum, and of a plain step for each
example, as ratios to forward and backward of the whole batch. They are printed, and kept beside the results of the zoo.
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

from experiments.zoo import LIBRARIES, RESULTS, _read, _save, entries
from experiments.zoo_check import WAYS, Entry, one, plain_gradients
from noisette import PerExampleClip

SIZES = 16, 32


def ratios(entry: Entry, size: int) -> tuple[float, float]:
    """Of the clipped sum, and of a plain step for each example."""
    torch.manual_seed(0)
    model, parts = entry.make(False), list[dict[str, Tensor]]()
    with patch.object(torch, "manual_seed"):  # each call draws other examples
        while sum(len(next(iter(part.values()))) for part in parts) < size:
            parts.append(entry.batch(model))
    batch = {name: torch.cat([part[name] for part in parts])[:size] for name in parts[0]}
    clip = PerExampleClip(model, 1.0, capture="eager")

    def private() -> None:
        clip.accumulate(entry.loss, batch)
        clip.pop_sums()

    def each() -> None:
        for k in range(size):
            plain_gradients(model, one(batch, k), entry.loss)

    plain = _seconds(lambda: plain_gradients(model, batch, entry.loss))
    try:
        return round(_seconds(private) / plain, 1), round(_seconds(each) / plain, 1)
    finally:
        clip.close()


def _seconds(step: Callable[[], object]) -> float:
    """The median of five calls, after one."""
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
    for name, entry in {name: entry for library in LIBRARIES for name, entry in entries(library).items()}.items():
        if only in name and _read(RESULTS)["models"].get(name, {}).get("way") == WAYS[1]:
            found = {str(size): ratios(entry, size) for size in SIZES}
            print(f"{name:50}", *found.values(), flush=True)
            held = _read(RESULTS)
            held["models"][name]["times a plain step"] = found
            _save(RESULTS, held)


if __name__ == "__main__":
    main()
