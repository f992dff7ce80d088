"""Run recipes with several seeds, and store the results as one JSON line per run.

    python -m experiments.run mnist fashion-mnist [--seeds 0 1 2]

Each run is a `noisette train` command. Its line is appended to results/RECIPE.jsonl; `python -m experiments.table`
makes the README's table from these files.
"""

from __future__ import annotations

import argparse
import json
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
            subprocess.run([sys.executable, *command], check=True)
            append(HERE / "results" / f"{recipe}.jsonl", out / "run.json")


def append(results: Path, run: Path) -> None:
    line = json.loads(run.read_text()) | {
        "machine": f"{platform.machine()}, {torch.get_num_threads()} threads",
        "torch": version("torch"),
        "python": platform.python_version(),
    }
    results.parent.mkdir(exist_ok=True)
    with results.open("a") as file:
        file.write(json.dumps(line) + "\n")


if __name__ == "__main__":
    main()
