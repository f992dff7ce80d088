"""How good the rule for the learning rate is: accuracy at multiples of its rate, on four public tables.

    python -m experiments.tables_rates [--data-dir DIR]

Writes benchmarks/results/tables-rates.json: medians over the runs, at epsilon 1. With --page it writes the tables of
docs/how-to/choose-settings.md from the committed results.
"""

from __future__ import annotations

import argparse
import json
import re
import sys
from collections.abc import Sequence
from pathlib import Path
from statistics import median
from typing import Any

import numpy as np

from experiments.tables import RESULTS, table_of
from noisette import PrivateClassifier

PAGE = Path(__file__).parent.parent / "docs" / "how-to" / "choose-settings.md"
NAMES = ("adult", "adbench-magic", "adbench-campaign", "digits")
FACTORS = (0.1, 0.3, 1.0, 3.0, 10.0)
EPSILON, SEEDS = 1.0, 2


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


def networks_table(results: Sequence[dict[str, Any]]) -> str:
    """Accuracy and loss of the networks for each clipping rule and reach, in Markdown."""
    settings = list(dict.fromkeys((r["clipping"], r["reach"]) for r in results))
    lines = [
        "| table | " + " | ".join(f"{rule}, {reach:g}" for rule, reach in settings) + " |",
        "|---" * (1 + len(settings)) + "|",
    ]
    for name in dict.fromkeys(r["table"] for r in results):
        found = {(r["clipping"], r["reach"]): r for r in results if r["table"] == name}
        cells = [f"{found[s]['accuracy']:.1%}, {found[s]['loss']:.2f}" for s in settings]
        lines.append(f"| {name} | {' | '.join(cells)} |")
    return "\n".join(lines)


def write_page() -> None:
    """The tables of the page between their marks."""
    page = PAGE.read_text(encoding="utf-8")
    for name, table in (("rates", rates_table), ("networks", networks_table)):
        results = json.loads(RESULTS.with_name(f"tables-{name}.json").read_text())
        pattern = re.compile(rf"(<!-- {name}:[^\n]*-->\n).*?(<!-- end of {name} -->)", re.DOTALL)
        text = table(results)
        page = pattern.sub(lambda marks, text=text: f"{marks[1]}{text}\n{marks[2]}", page)
    PAGE.write_text(page, encoding="utf-8")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--data-dir", type=Path)
    parser.add_argument("--page", action="store_true", help="only write the tables of the page")
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
