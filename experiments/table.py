"""Write the tables of results in README.md (three rows) and experiments/README.md from the committed results.

    python -m experiments.table [--check]

With --check nothing is written, and the exit code is 1 if a page is out of date.
"""

from __future__ import annotations

import argparse
import json
import statistics
import sys
from collections.abc import Iterable
from pathlib import Path
from typing import Any

from experiments.marked import replaced

HERE = Path(__file__).parent
IN_README = ("mnist", "cifar10", "imdb-ranked")
BEGIN, END = "<!-- results: made by `python -m experiments.table` -->", "<!-- end of results -->"

_TRAMER = "Tramèr & Boneh 2021"
_TANG = "Tang et al. 2023, DP-RandP, whose first weights are learned on images of random processes"
_PANDA = "Panda et al. 2022, at epsilon 1, on far larger public networks"
_DAVODY = "Davody et al. 2020, LSTM on GloVe's vectors, 96,000 articles"
_BU = "Bu et al. 2020, quoted by Opacus; epsilon 12 by our accountant for the settings of their code"
_DIFFPRIVLIB = "best of diffprivlib's three classifiers"

# The best accuracies that others print within about the same budget, without records of other people but where it is
# said.
REPORTED_ELSEWHERE = {
    "digits": "",
    "mnist": f"98.7% ({_TRAMER})",
    "mnist-epsilon-1": "",
    "mnist-epsilon-0.5": "",
    "fashion-mnist": f"89.7% ({_TRAMER})",
    "fashion-mnist-epsilon-1": "",
    "fashion-mnist-epsilon-0.5": "",
    "cifar10": f"72.3% ({_TANG}; at epsilon 1)",
    "cifar10-epsilon-1": f"72.3% ({_TANG})",
    **dict.fromkeys([f"cifar10-public-network{end}" for end in ("", "-epsilon-1", "-epsilon-8")], f"99% ({_PANDA})"),
    "ag-news": f"82.5% ({_DAVODY})",
    "ag-news-ranked": f"82.5% ({_DAVODY})",
    "ag-news-ranked-epsilon-1": f"82.0% ({_DAVODY})",
    "ag-news-public-network": f"82.5% ({_DAVODY})",
    "ag-news-public-network-epsilon-1": f"82.0% ({_DAVODY})",
    "sst2": "",
    "sst2-ranked": "",
    "sst2-ranked-epsilon-1": "",
    "imdb": f"84% ({_BU})",
    "imdb-ranked": f"84% ({_BU})",
    "imdb-ranked-epsilon-1": "",
    "adult": f"84.2% ({_DIFFPRIVLIB})",
}
# The copies at hand; published results are on the originals.
DATA = {"cifar10": "cifar10, recompressed as JPEG", "ag-news-words": "ag-news, 18,349 of 120,000 articles"}
MODELS = {
    "cnn": "small CNN",
    "scattering": "linear layer on fixed scattering features",
    "patches": "linear layer on resemblances to patches of synthetic images",
    "patches-and-scattering": "linear layer on resemblances to patches of synthetic images and on scattering features",
    "word-counts": "linear layer on counts of words",
    "ranked-word-counts": "linear layer on counts of words, weighted by public ranks",
    "mlp": "two hidden layers",
}

BACKBONES = {
    "efficientnet-lite0": "linear layer on features of EfficientNet-Lite0, a public ImageNet network",
    "minilm-l6": "linear layer on features of MiniLM, a public network of sentences",
}


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n")[0])
    parser.add_argument("--check", action="store_true")
    options = parser.parse_args()
    for page, names in ((HERE.parent / "README.md", IN_README), (HERE / "README.md", REPORTED_ELSEWHERE)):
        text = page.read_text(encoding="utf-8")
        updated = replaced(text, BEGIN, END, table(names))
        if options.check and updated != text:
            sys.exit(f"{page} is out of date")
        if not options.check:
            page.write_text(updated, encoding="utf-8")


def table(names: Iterable[str]) -> str:
    """One row for each recipe."""
    rows = [
        "| data set | model | epsilon, delta | median test accuracy (range) | time, 1 thread | memory | reported |",
        "|---|---|---|---|---|---|---|",
    ]
    rows += [row(results(name), REPORTED_ELSEWHERE[name]) for name in names]
    return "\n".join(rows)


def results(name: str) -> list[dict[str, Any]]:
    return [json.loads(line) for line in (HERE / "results" / f"{name}.jsonl").read_text().splitlines()]


def row(runs: list[dict[str, Any]], elsewhere: str) -> str:
    recipe, accuracies = runs[0]["recipe"], [run["test_accuracy"] for run in runs]
    spread = (
        f"**{statistics.median(accuracies):.1%}** ({min(accuracies):.1%} to {max(accuracies):.1%}), {len(runs)} seeds"
    )
    epsilon = f"{max(run['epsilon'] for run in runs):.2f}, {recipe['privacy']['delta']:.0e}".replace("e-0", "e-")
    seconds = statistics.median(run["seconds"] for run in runs)
    time = f"{seconds:.0f} s" if seconds < 120 else f"{seconds / 60:.0f} min"
    memory = [run["peak_memory"] / 2**30 for run in runs if "peak_memory" in run]
    peak = f"{statistics.median(memory):.1f} GiB" if memory else ""
    model = BACKBONES.get(recipe["model"].get("backbone")) or MODELS[recipe["model"]["name"]]
    model += ", whitened" if recipe["model"].get("whitened") else ""
    data = DATA.get(recipe["data"]["name"], recipe["data"]["name"])
    return f"| {data} | {model} | {epsilon} | {spread} | {time} | {peak} | {elsewhere or 'none found'} |"


if __name__ == "__main__":
    main()
