"""Accuracy with correlated and with independent noise at the same epsilon, by learning rate, on AG News.

    python -m experiments.correlated_runs [--seeds 0 1 2]
    python -m experiments.correlated_runs --check

Runs are those of correlated-noise.toml and independent-noise.toml at other budgets and learning rates. Each finished
run is a line of results/correlated-runs.jsonl, and a command that was stopped goes on with the missing ones. Writes
docs/correlated-noise/accuracy.svg. The numbers of bands are the best ones by `python -m experiments.correlated_noise`.
"""

from __future__ import annotations

import argparse
import json
import statistics
import sys
from collections.abc import Iterator, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import matplotlib
from matplotlib.figure import Figure

from noisette.training.recipe import Recipe
from noisette.training.report.figures import BLUE, ORANGE, STYLE, svg
from papers.drawing import end_label, log_scale, spread, standalone
from papers.recipe_run import carry_out
from papers.run_file import append, made_with

HERE = Path(__file__).parent
RESULTS = HERE / "results" / "correlated-runs.jsonl"
FIGURE = HERE.parent / "docs" / "correlated-noise" / "accuracy.svg"
BANDS = {1.0: 4, 3.0: 12, 8.0: 32}  # by epsilon
RATES = (1.25, 2.5, 5.0, 10.0, 20.0)
KINDS = {"banded": ("correlated-noise", BLUE), "independent": ("independent-noise", ORANGE)}


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n")[0])
    parser.add_argument("--seeds", nargs="+", type=int, default=[0, 1, 2])
    parser.add_argument("--check", action="store_true", help="run nothing; exit with 1 if the figure is out of date")
    options = parser.parse_args()
    if options.check:
        sys.exit(figure(finished()) != FIGURE.read_text())
    run_missing(options.seeds)
    FIGURE.write_text(figure(finished()))


def recipe(kind: str, epsilon: float, rate: float, seed: int) -> Recipe:
    """The recipe of a run."""
    read = Recipe.read(HERE / f"{KINDS[kind][0]}.toml")
    bands = {"bands": BANDS[epsilon]} if kind == "banded" else {}
    return replace(
        read,
        privacy=replace(read.privacy, epsilon=epsilon),
        training=replace(read.training, lr=rate, seed=seed, **bands),
    )


def run_missing(seeds: list[int]) -> None:
    """Carry out the runs that are not finished, one line each."""
    from noisette.training.recipe import load_data

    done = {_key(run) for run in finished()}
    asked = [(kind, epsilon, rate, seed) for seed in seeds for rate in RATES for epsilon in BANDS for kind in KINDS]
    missing = [run for run in asked if run not in done]
    data = load_data(recipe(*asked[0]), None)
    for number, run in enumerate(missing, start=1):
        result = carry_out(recipe(*run), data, None, lambda share, accuracy: None, points=1)
        names = dict(zip(("kind", "epsilon", "lr", "seed"), run, strict=True))
        accuracy = result["points"][-1][1]
        append(RESULTS, {**names, "test_accuracy": accuracy, "seconds": result["seconds"], "made_with": made_with()})
        print(f"{number} of {len(missing)}: {names}, test accuracy {accuracy:.1%}", flush=True)


def finished() -> list[dict[str, Any]]:
    """The finished runs."""
    return [json.loads(line) for line in RESULTS.read_text().splitlines()] if RESULTS.exists() else []


def figure(runs: list[dict[str, Any]]) -> str:
    """One panel for each epsilon: test accuracy by learning rate, median and range of the seeds."""
    with matplotlib.rc_context(STYLE):
        drawn = Figure(figsize=(8.6, 3.0))
        for axes, epsilon in zip(drawn.subplots(1, 3, sharey=True), BANDS, strict=True):
            axes.set_title(f"epsilon {epsilon:g}, {BANDS[epsilon]} bands", fontsize=9, loc="left")
            ends = {}
            for kind, (_, colour) in KINDS.items():
                by_rate = dict(accuracies(runs, kind, epsilon))
                medians = [statistics.median(found) for found in by_rate.values()]
                lowest, highest = zip(*((min(found), max(found)) for found in by_rate.values()), strict=True)
                axes.fill_between(list(by_rate), lowest, highest, color=colour, alpha=0.2)
                axes.plot(list(by_rate), medians, color=colour, marker="o", markersize=3)
                ends[kind] = list(by_rate)[-1], medians[-1]
            heights = spread([height for _, height in ends.values()], apart=1.0)
            for (kind, (rate, _)), height in zip(ends.items(), heights, strict=True):
                end_label(axes, kind, (rate, height), KINDS[kind][1])
            log_scale(axes.xaxis, axes.set_xscale, "{:g}".format)
            axes.set_xticks(RATES)
            axes.set(xlabel="learning rate")
            axes.tick_params(length=0)
        drawn.axes[0].set_ylabel("test accuracy, %")
        drawn.subplots_adjust(left=0.08, right=0.89, bottom=0.17, top=0.88, wspace=0.5)
        return standalone(svg(drawn, title="Accuracy with correlated noise"))


def accuracies(runs: list[dict[str, Any]], kind: str, epsilon: float) -> Iterator[tuple[float, list[float]]]:
    """By learning rate: the test accuracies of the seeds, in per cent."""
    for rate in RATES:
        found = [100 * run["test_accuracy"] for run in runs if _key(run)[:3] == (kind, epsilon, rate)]
        if found:
            yield rate, found


def _key(run: Mapping[str, Any]) -> tuple[str, float, float, int]:
    return run["kind"], run["epsilon"], run["lr"], run["seed"]


if __name__ == "__main__":
    main()
