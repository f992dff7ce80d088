"""How good the rule for the learning rate is: accuracy at multiples of its rate, on four public tables.

    python -m experiments.tables_rates [--data-dir DIR]

Writes benchmarks/results/tables-rates.json: medians over the runs, at epsilon 1. With --page it writes the table of
docs/how-to/choose-settings.md from the committed results.
"""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Sequence
from pathlib import Path
from statistics import median
from typing import Any

import numpy as np

from experiments.marked import replaced
from experiments.tables import RESULTS, table_of
from noisette import PrivateClassifier

PAGE = Path(__file__).parent.parent / "docs" / "how-to" / "choose-settings.md"
NAMES = ("adult", "adbench-magic", "adbench-campaign", "digits")
FACTORS = (0.1, 0.3, 1.0, 3.0, 10.0)
EPSILON, SEEDS = 1.0, 2
BEGIN, END = "<!-- rates: made by `python -m experiments.tables_rates` -->", "<!-- end of rates -->"


def rates_table(results: Sequence[dict[str, Any]]) -> str:
    """Accuracy at each multiple of the rate, in Markdown."""
    lines = [
        "| table | rate | " + " | ".join(f"×{factor:g}" for factor in FACTORS) + " |",
        "|---" * (2 + len(FACTORS)) + "|",
    ]
    for result in results:
        cells = [f"{result['accuracy'][str(factor)]:.1%}" for factor in FACTORS]
        lines.append(f"| {result['table']} | {result['rate']:.2f} | {' | '.join(cells)} |")
    return "\n".join(lines)


def write_page() -> None:
    """The table of the page between its marks."""
    results = json.loads(RESULTS.with_name("tables-rates.json").read_text())
    page = replaced(PAGE.read_text(encoding="utf-8"), BEGIN, END, rates_table(results))
    PAGE.write_text(page, encoding="utf-8")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--data-dir", type=Path)
    parser.add_argument("--page", action="store_true", help="only write the table of the page")
    given = parser.parse_args()
    if given.page:
        write_page()
        return
    data_dir = given.data_dir
    results = []
    for name in NAMES:
        table = table_of(name, data_dir)
        declared: dict[str, Any] = {"bounds": (table.low, table.high), "classes": np.unique(table.y)}
        rates: dict[float, float | None] = {1.0: None}  # by rule; the others are multiples of the rate that it gave
        scores: dict[float, list[float]] = {}
        for factor in sorted(FACTORS, key=lambda factor: factor != 1.0):
            for _ in range(SEEDS):
                model = PrivateClassifier(EPSILON, size=len(table.x), learning_rate=rates.get(factor), **declared)
                scores.setdefault(factor, []).append(float(model.fit(table.x, table.y).score(table.xt, table.yt)))
                if factor == 1.0:
                    rates = {f: model.learning_rate_ * f if f != 1.0 else None for f in FACTORS}
                    rate = model.learning_rate_
        found = {str(factor): round(median(scores[factor]), 4) for factor in FACTORS}
        results.append({"table": name, "epsilon": EPSILON, "rate": round(rate, 3), "accuracy": found})
        print(results[-1], file=sys.stderr, flush=True)
    place = RESULTS.with_name("tables-rates.json")
    place.write_text("[\n " + ",\n ".join(map(json.dumps, results)) + "\n]\n")


if __name__ == "__main__":
    main()
