"""Check finished runs: their epsilon without noisette, and what membership inference finds about their records.

    python -m experiments.run_checks RUN...
    python -m experiments.run_checks --check

For each run folder, docs/reprice.py recomputes epsilon from the ledger, and experiments/membership.py attacks the
model. A run whose ledger is not the one that its run.json names, or has another epsilon, is refused. Results are
appended to results/run-checks.jsonl, where a newer line replaces an older one of the same name; docs/assurance.md gets
a summary. With --check nothing is run or written, and the exit code is 1 if the page is out of date. The attacks are
not private; use public data sets.
"""

from __future__ import annotations

import argparse
import json
import runpy
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from experiments.marked import replaced
from experiments.membership import membership_of
from noisette.training.recipe import load_data
from noisette.training.saved_model import SavedModel

ROOT = Path(__file__).parents[1]
RESULTS, PAGE = Path(__file__).parent / "results" / "run-checks.jsonl", ROOT / "docs" / "assurance.md"
BEGIN, END = "<!-- made: runs -->", "<!-- end of runs -->"
RATE = "0.01"  # of false positives, at which the attacks are compared
APART = 0.01  # the largest relative difference of two upper bounds on the same epsilon


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n")[0])
    parser.add_argument("runs", nargs="*", type=Path, help="folders of finished runs")
    parser.add_argument("--check", action="store_true")
    options = parser.parse_args()
    if options.check:
        sys.exit(page() != PAGE.read_text())
    if absent := [str(run) for run in options.runs if not (run / "run.json").exists()]:
        parser.error(f"these folders hold no finished run: {', '.join(absent)}")
    for run in options.runs:
        line = {"run": run.name, **checked(run)}
        with RESULTS.open("a") as file:
            file.write(json.dumps(line) + "\n")
    PAGE.write_text(page())


def checked(run: Path) -> dict[str, Any]:
    """What the table says of a run."""
    facts = json.loads((run / "run.json").read_text())
    delta = facts["recipe"]["privacy"]["delta"]
    repriced = epsilon_of_ledger(run, facts)
    saved = SavedModel.of_run(run)
    if saved.recipe.data.holdout is not None:
        sys.exit(f"{run}: which records it held out was forgotten when it ended, so members cannot be told from others")
    attacked = membership_of(saved.model, load_data(saved.recipe, None), epsilon=facts["epsilon"], delta=delta)
    return {
        "data": facts["data"],
        "model": facts["recipe"]["model"]["name"],
        "components": facts["recipe"]["projection"]["components"],
        "delta": delta,
        "epsilon": facts["epsilon"],
        "repriced": repriced,
        "test_accuracy": facts["test_accuracy"],
        "membership": attacked.facts(),
    }


def epsilon_of_ledger(run: Path, facts: Mapping[str, Any]) -> float:
    """Epsilon from the ledger of a run, whose facts are those of run.json.

    The digests of a ledger show that a line was altered, but not that its end was cut or all of it written anew: the
    last digest does, which run.json has.

    Raises:
        SystemExit: the ledger was altered, or its epsilon is not the stated one.
    """
    ledger, delta = run / "ledger.jsonl", facts["recipe"]["privacy"]["delta"]
    script = runpy.run_path(str(ROOT / "docs" / "reprice.py"))
    try:
        repriced = script["epsilon_of"](ledger, delta)
    except SystemExit as refusal:
        sys.exit(f"{ledger}: {refusal}")
    lines = ledger.read_text().splitlines()
    if not lines or json.loads(lines[-1])["digest"] != facts["ledger_head"]:
        sys.exit(f"{ledger} does not end with the digest that run.json has: it is not the whole ledger of the run")
    if abs(repriced - facts["epsilon"]) > APART * facts["epsilon"]:
        sys.exit(f"{ledger} has epsilon {repriced:.4f}, and run.json states {facts['epsilon']:.4f}")
    return repriced


def page() -> str:
    """The page with its summary of runs updated."""
    newest = {line["run"]: line for line in map(json.loads, RESULTS.read_text().splitlines())}
    return replaced(PAGE.read_text(), BEGIN, END, summary(list(newest.values())))


def summary(lines: Sequence[Mapping[str, Any]]) -> str:
    """The worst of all runs: the largest difference of two epsilons, and the best attack beside what epsilon allows."""
    attacks = [attack for line in lines for attack in line["membership"]["attacks"].values()]
    epsilon = max(line["epsilon"] for line in lines)
    apart = max(abs(line["repriced"] - line["epsilon"]) for line in lines)
    auc = max(attack["auc"] for attack in attacks)
    caught = max(attack[f"caught at {RATE}"] or 0.0 for attack in attacks)
    allowed = min(line["membership"]["allowed"][RATE] for line in lines)
    return (
        f"{len(lines)} runs at epsilon {epsilon:.2f}: recomputed without noisette, epsilon differs by at most "
        f"{apart:.4f}.\nThe best attack has AUC {auc:.3f} and finds {caught:.1%} of the members at 1 % false "
        f"positives, where epsilon allows\n{allowed:.1%}."
    )


if __name__ == "__main__":
    main()
