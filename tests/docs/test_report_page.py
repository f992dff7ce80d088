"""What the page on reporting states is what the committed results say."""

import json
import re
from pathlib import Path
from statistics import median
from typing import Any

from experiments.marked import replaced

ROOT = Path(__file__).parents[2]
PAGE = ROOT / "docs" / "how-to" / "report-a-result.md"
BEGIN, END = "<!-- costs: from the committed results, by the test of this page -->", "<!-- end of costs -->"
TABLES = {"adult": "income (Adult)", "adbench-magic": "gamma rays (Magic)", "adbench-campaign": "bank campaign"}
TABLES |= {"digits": "digits", "adult-age": "age (Adult)"}


def lines_of(name: str) -> list[dict[str, Any]]:
    return [json.loads(line) for line in (ROOT / "experiments/results" / f"{name}.jsonl").read_text().splitlines()]


def costs() -> str:
    """The table: a row for each data set, without privacy and at each budget."""
    scores: dict[tuple[str, str, float | None], list[float]] = {}
    for row in json.loads((ROOT / "benchmarks/results/tables.json").read_text()):
        scores.setdefault((row["table"], row["method"], row["epsilon"]), []).append(row["score"])
    lines = ["| data | linear, not private | boosted trees, not private | epsilon 1 | 3 | 8 |", "|---" * 6 + "|"]
    for table, title in TABLES.items():
        plain = [scores[table, f"not private: {name}", None] for name in ("linear", "boosted trees")]
        ours = [scores[table, "noisette", epsilon] for epsilon in (1.0, 3.0, 8.0)]
        lines.append(f"| {title} | {' | '.join(f'{median(of):.1%}' for of in (*plain, *ours))} |")
    of_images = [lines_of(f"cifar10-public-network{name}") for name in ("-epsilon-1", "", "-epsilon-8")]
    cells = [f"{median(run['test_accuracy'] for run in runs):.1%}" for runs in of_images]
    lines.append(f"| CIFAR-10 | 86% | | {' | '.join(cells)} |")
    return "\n".join(lines)


def test_the_table_of_costs_is_that_of_the_results():
    text = PAGE.read_text(encoding="utf-8")
    assert replaced(text, BEGIN, END, costs()) == text
    assert "without privacy has 86 % on these features" in (PAGE.parent / "public-networks.md").read_text()
    whole = re.search(r"takes (\S+) of plain eager training", (ROOT / "docs/benchmarks.md").read_text())
    assert whole
    assert f"[{whole[1]} times]" in text


def test_the_example_is_that_of_the_results_on_mnist():
    text = " ".join(PAGE.read_text(encoding="utf-8").replace("\n>", "\n").split())
    runs = lines_of("mnist")
    run, accuracies = runs[0], [run["test_accuracy"] for run in runs]
    recipe = run["recipe"]
    reached = f"{min(accuracies):.1%} to {max(accuracies):.1%}".replace("%", "", 1)
    stated = [
        f"{run['steps']:,} steps of DP-SGD",
        f"{run['sampling']} sampling at rate {run['sampling_rate']:.4f}",
        f"noise multiplier {run['noise_multiplier']:.2f}",
        f"clipping norm {run['max_grad_norm']}",
        f"({max(run['epsilon'] for run in runs):.2f}, 1e-5)-differentially private",
        f"for {run['neighbouring'].replace('add or remove', 'adding or removing')}",
        f"({recipe['privacy']['accountant'].upper()} accountant, {run['accountant_version']})",
        f"{median(accuracies):.1%}".replace("%", " %"),
        f"median of {len(runs)} seeds, {reached}".replace("%", " %"),
    ]
    assert recipe["privacy"]["delta"] == 1e-5
    assert [part for part in stated if part not in text] == []
    assert "each chosen by the figures of the other" in (ROOT / "experiments/mnist.toml").read_text()
