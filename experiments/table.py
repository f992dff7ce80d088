"""Write the README's results table from the committed results.

    python -m experiments.table [--check]

With --check nothing is written, and the exit code says whether the README is up to date.
"""

from __future__ import annotations

import argparse
import json
import statistics
import sys
from pathlib import Path
from typing import Any

HERE = Path(__file__).parent
README = HERE.parent / "README.md"
BEGIN, END = "<!-- results: made by `python -m experiments.table` -->", "<!-- end of results -->"

# What others report at about the same budget, training a network from its first layer.
COMPARED = {
    "digits": "",
    "mnist": "96.8 % at 2.91 (Opacus' example), 98.1 % (best published end-to-end CNN)",
    "fashion-mnist": "",
}
MODELS = {"cnn": "small CNN", "scattering": "fixed wavelets, one linear layer"}


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n")[0])
    parser.add_argument("--check", action="store_true")
    options = parser.parse_args()
    text = README.read_text()
    head, _, rest = text.partition(BEGIN)
    _, _, tail = rest.partition(END)
    updated = f"{head}{BEGIN}\n{table()}\n{END}{tail}"
    if options.check:
        sys.exit(updated != text)
    README.write_text(updated)


def table() -> str:
    rows = [
        "| data set | model | epsilon, delta | test accuracy: median (range) of seeds | time, 1 thread | others |",
        "|---|---|---|---|---|---|",
    ]
    for name, others in COMPARED.items():
        runs = results(name)
        if runs:
            rows.append(row(name, runs, others))
    return "\n".join(rows)


def results(name: str) -> list[dict[str, Any]]:
    path = HERE / "results" / f"{name}.jsonl"
    return [json.loads(line) for line in path.read_text().splitlines()] if path.exists() else []


def row(name: str, runs: list[dict[str, Any]], others: str) -> str:
    recipe, accuracies = runs[0]["recipe"], [run["test_accuracy"] for run in runs]
    spread = f"**{statistics.median(accuracies):.1%}** ({min(accuracies):.1%} to {max(accuracies):.1%}) of {len(runs)}"
    epsilon = f"{max(run['epsilon'] for run in runs):.2f}, {recipe['privacy']['delta']:.0e}".replace("e-0", "e-")
    seconds = statistics.median(run["seconds"] for run in runs)
    time = f"{seconds:.0f} s" if seconds < 120 else f"{seconds / 60:.0f} min"
    return f"| {name} | {MODELS[recipe['model']['name']]} | {epsilon} | {spread} | {time} | {others} |"


if __name__ == "__main__":
    main()
