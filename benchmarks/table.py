"""Write the table of docs/benchmarks.md from the committed results.

    python -m benchmarks.table [--check]

With --check nothing is written, and the exit code is 1 if the page is out of date.
"""

from __future__ import annotations

import argparse
import itertools
import json
import statistics
import sys
import textwrap
from pathlib import Path
from typing import Any

from benchmarks.growth import LLAMAS, weights_of
from benchmarks.steps.comparison import ahead, best_of, overhead, summary
from benchmarks.steps.methods import OURS, is_peer
from benchmarks.steps.results import read
from experiments.marked import replaced

HERE = Path(__file__).parent
PAGE = HERE.parent / "docs" / "benchmarks.md"
BEGIN, END = "<!-- made by `python -m benchmarks.table` -->", "<!-- end of the table -->"
RUN_BEGIN, RUN_END = "<!-- runs, made by `python -m benchmarks.table` -->", "<!-- end of the table of runs -->"
GROWTH_BEGIN, GROWTH_END = (
    "<!-- growth, made by `python -m benchmarks.table` -->",
    "<!-- end of the table of growth -->",
)
LANGUAGE_BEGIN, LANGUAGE_END = (
    "<!-- language models, made by `python -m benchmarks.table` -->",
    "<!-- end of the table of language models -->",
)
PARTS = ("sample", "load", "clip", "noise", "ledger", "optimizer")
_NONE = "–"


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n")[0])
    parser.add_argument("--check", action="store_true")
    options = parser.parse_args()
    text = PAGE.read_text(encoding="utf-8")
    if options.check:
        sys.exit(updated(text) != text)
    PAGE.write_text(updated(text), encoding="utf-8")


def updated(text: str) -> str:
    """The text of the page with the tables of the committed results."""
    reports = {report["experiment"]: report for report in read(HERE / "results")}
    text = replaced(text, BEGIN, END, table(reports["targets"]))
    text = replaced(text, RUN_BEGIN, RUN_END, table_of_runs(reports["run"]))
    growth = json.loads((HERE / "results" / "growth.json").read_text(encoding="utf-8"))
    models = growth["cells"].pop("language models")
    text = replaced(text, LANGUAGE_BEGIN, LANGUAGE_END, table_of_language_models(models))
    return replaced(text, GROWTH_BEGIN, GROWTH_END, table_of_growth(growth))


def table(report: dict[str, Any]) -> str:
    """One row for each cell, and what all of them amount to."""
    rows = [
        "| model | batch | plain compiled | noisette to eager | to compiled plain | targets | best peer | ahead |",
        "|---|---|---|---|---|---|---|---|",
    ]
    return "\n".join([*rows, *map(_row, report["cells"]), "", textwrap.fill(" ".join(summary(report)), 120)])


def _row(cell: dict[str, Any]) -> str:
    plain = cell["methods"].get("plain-compiled", {})
    best = best_of(cell, "seconds", OURS)
    ours = cell["methods"][best[0]] if best else {}
    peer = best_of(cell, "seconds", [name for name in cell["methods"] if is_peer(name)])
    lead = ahead(cell, "seconds")
    targets = [cell["target"], cell.get("target_compiled")]
    columns = [
        cell["title"],
        f"{cell['batch']:,}",
        _ratio(plain.get("ratio")),
        f"{_ratio(ours.get('ratio'))} (`{best[0]}`)" if best else _NONE,
        _ratio(ours.get("ratio_compiled")),
        ", ".join(f"{target:g}" for target in targets if target) or _NONE,
        f"{_ratio(cell['methods'][peer[0]].get('ratio'))} (`{peer[0]}`)" if peer else _NONE,
        f"{lead[1]:.2f}" if lead and overhead(cell, "seconds") else _NONE,
    ]
    return f"| {' | '.join(columns)} |"


def table_of_runs(report: dict[str, Any]) -> str:
    """Whole runs and their parts, as ratios to plain eager training."""
    names = ("model", "batch", "plain compiled", "**run**", "run, eager", *PARTS, "best peer", "ahead")
    rows, best = [f"| {' | '.join(names)} |", "|---" * len(names) + "|"], []
    for cell in report["cells"]:
        ratios = {name: row.get("ratio") for name, row in cell["methods"].items()}
        own = min(ratio for name in ("run", "run-eager") if (ratio := ratios.get(name)))
        peers = {name: ratio for name, ratio in ratios.items() if is_peer(name) and ratio}
        peer = min(peers, key=lambda name: peers[name], default=None)
        columns = [ratios.get("plain-compiled"), ratios.get("run"), ratios.get("run-eager")]
        columns += [ratios.get(f"run: {part}") for part in PARTS]
        ends = [_NONE, _NONE] if peer is None else [f"{peers[peer]:.2f} (`{peer}`)", f"{peers[peer] / own:.2f}"]
        rows.append(f"| {' | '.join([cell['title'], format(cell['batch'], ','), *map(_ratio, columns), *ends])} |")
        best.append(own)
    mean = statistics.geometric_mean(best)
    return "\n".join([*rows, "", f"The quicker run takes {mean:.2f} of plain eager training in the geometric mean."])


def table_of_growth(report: dict[str, Any]) -> str:
    """Seconds to start a run and milliseconds of its steps, a row for each thing that grows."""
    rows = ["| of | sizes | start, s | step, ms | plain step, ms |", "|---|---|---|---|---|"]
    for name, cells in report["cells"].items():
        sizes = ", ".join(f"{cell['size']:.1e}".replace(".0e", "e").replace("e+0", "e") for cell in cells)
        figures = [", ".join(f"{cell[key]:.3g}" for cell in cells) for key in ("start_s", "step_ms", "plain_ms")]
        rows.append(f"| {' | '.join([name, sizes, *figures])} |")
    return "\n".join(rows)


def table_of_language_models(cells: list[dict[str, Any]]) -> str:
    """Memory and time of a step; what is not measured is computed from the smallest model with as many texts.

    Memory beside activations and time grow as the weights do, and activations as layers times width.
    """
    measured = {tuple(cell["size"]): cell for cell in cells}
    rows = ["| weights | trained | texts | memory, GiB | step, s | |", "|---|---|---|---|---|---|"]
    small = LLAMAS["100M"]
    for (name, model), trained, texts in itertools.product(LLAMAS.items(), ("all weights", "LoRA"), (1, 4)):
        one, same, four = (measured["100M", trained, number] for number in (1, texts, 4))
        ratio = weights_of(*model) / weights_of(*small)
        of_text = (four["bytes"] - one["bytes"]) / 3
        activations = texts * of_text * model[0] * model[2] / (small[0] * small[2])
        computed = {"bytes": (one["bytes"] - of_text) * ratio + activations, "step_ms": same["step_ms"] * ratio}
        found = measured.get((name, trained, texts))
        of, how = (computed, "computed") if found is None else (found, "measured")
        figures = f"{of['bytes'] / 2**30:.1f} | {of['step_ms'] / 1000:.3g} | {how}"
        rows.append(f"| {weights_of(*model) / 1e6:,.0f} million | {trained} | {texts} | {figures} |")
    return "\n".join(rows)


def _ratio(value: float | None) -> str:
    return _NONE if value is None else f"{value:.2f}"


if __name__ == "__main__":
    main()
