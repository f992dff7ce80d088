"""Seconds per epoch of `noisette train` against the same loop in plain PyTorch, evaluation and report included.

    python -m benchmarks.end_to_end [--data mnist] [--model cnn] [--epochs 10] [--rounds 3] [--out DIR]

The baseline is a separate script (plain_loop.py): the same model and batch size, a TensorDataset behind the usual
shuffling DataLoader, the same number of evaluations. The two commands alternate; medians are compared.
"""

from __future__ import annotations

import argparse
import json
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path

from benchmarks.steps.report import hardware


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n")[0])
    parser.add_argument("--data", default="mnist")
    parser.add_argument("--model", default="cnn")
    parser.add_argument("--epochs", default="10")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--out", type=Path, default=Path("benchmarks/results"))
    options = parser.parse_args()
    seconds: dict[str, list[float]] = {"plain": [], "noisette": []}
    with tempfile.TemporaryDirectory() as folder:
        shared = ["--data", options.data, "--model", options.model, "--epochs", options.epochs]
        commands = {
            "plain": ["benchmarks.plain_loop", *shared],
            "noisette": ["noisette", "train", *shared, "--out", f"{folder}/run"],
        }
        for _ in range(options.rounds):
            for name, command in commands.items():
                start = time.perf_counter()
                subprocess.run([sys.executable, "-m", *command], check=True, stdout=subprocess.DEVNULL)
                seconds[name].append(time.perf_counter() - start)
    medians = {name: statistics.median(values) for name, values in seconds.items()}
    report = {
        "hardware": hardware(options.threads),
        "data": options.data,
        "model": options.model,
        "epochs": float(options.epochs),
        "seconds_per_epoch": {name: value / float(options.epochs) for name, value in medians.items()},
        "ratio": medians["noisette"] / medians["plain"],
        "seconds": seconds,
    }
    options.out.mkdir(parents=True, exist_ok=True)
    (options.out / f"end_to_end_{options.model}.json").write_text(json.dumps(report, indent=1) + "\n")
    print(json.dumps(report, indent=1))


if __name__ == "__main__":
    main()
