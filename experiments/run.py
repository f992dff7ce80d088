"""Run recipes with several seeds, and store the results as one JSON line per run.

    python -m experiments.run mnist fashion-mnist [--seeds 0 1 2]

Each run is a `noisette train` command. Its line is appended to results/RECIPE.jsonl; `python -m experiments.table`
makes the README's table from these files.
"""

from __future__ import annotations

import argparse
import json
import os
import platform
import subprocess
import sys
from importlib.metadata import version
from pathlib import Path

import torch

HERE = Path(__file__).parent


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n")[0])
    parser.add_argument("recipes", nargs="+", choices=sorted(path.stem for path in HERE.glob("*.toml")))
    parser.add_argument("--seeds", nargs="+", type=int, default=[0, 1, 2])
    parser.add_argument("--runs", type=Path, default=Path("runs"), help="folder for the run folders")
    options = parser.parse_args()
    for recipe in options.recipes:
        for seed in options.seeds:
            out = options.runs / f"{recipe}-{seed}"
            command = ["-m", "noisette", "train", str(HERE / f"{recipe}.toml"), "--seed", str(seed), "--out", str(out)]
            append(HERE / "results" / f"{recipe}.jsonl", out / "run.json", peak_memory([sys.executable, *command]))


def peak_memory(command: list[str]) -> int:
    """The largest resident memory, in bytes, of a command, which is run.

    Raises:
        CalledProcessError: the command fails.
    """
    _, status, usage = os.wait4(subprocess.Popen(command).pid, 0)
    if code := os.waitstatus_to_exitcode(status):
        raise subprocess.CalledProcessError(code, command)
    return usage.ru_maxrss * (1 if platform.system() == "Darwin" else 1024)


def append(results: Path, run: Path, memory: int) -> None:
    line = json.loads(run.read_text()) | {
        "peak_memory": memory,
        "machine": f"{platform.machine()}, {torch.get_num_threads()} threads",
        "torch": version("torch"),
        "python": platform.python_version(),
    }
    results.parent.mkdir(exist_ok=True)
    with results.open("a") as file:
        file.write(json.dumps(line) + "\n")


if __name__ == "__main__":
    main()
