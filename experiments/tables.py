"""Accuracy on tables against epsilon: the private estimators with default settings, diffprivlib, and no privacy.

    python -m experiments.tables [--peers PYTHON] [--seeds 3] [--data-dir DIR]
    python -m experiments.tables --draw

PYTHON is that of an environment with diffprivlib and a scikit-learn that it supports. Every score is appended to
benchmarks/results/tables.json; what stands there is not computed again. The picture is tables.svg beside it.
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import numpy as np
from sklearn.ensemble import HistGradientBoostingClassifier, HistGradientBoostingRegressor
from sklearn.linear_model import LinearRegression, LogisticRegression

from experiments.tables_picture import picture
from noisette import PrivateClassifier, PrivateRegressor
from noisette.data import load
from noisette.data.built_in_tables import ATTRIBUTES
from papers.bethune_2024 import adbench

RESULTS = Path(__file__).parent.parent / "benchmarks" / "results" / "tables.json"
EPSILONS = (0.5, 1.0, 3.0, 8.0)
OURS = "noisette"


@dataclass(frozen=True)
class Table:
    """Training and test rows, and what is declared about them.

    low, high: of each feature. norm: the largest norm of a row whose features are scaled to [0, 1]. target: bounds of
    the number to predict; empty where classes are predicted.
    """

    x: np.ndarray
    y: np.ndarray
    xt: np.ndarray
    yt: np.ndarray
    low: np.ndarray
    high: np.ndarray
    norm: float
    target: np.ndarray


def adult(data_dir: Path | None, *, age: bool) -> Table:
    """Adult: the income, or the age from everything else but the income."""
    data = load("adult", data_dir=data_dir)
    low = np.concatenate(
        [
            [-1.0] if not isinstance(declared, str) else np.zeros(len(declared.split()) + 1)
            for declared in ATTRIBUTES.values()
        ]
    )
    columns = np.arange(len(low))[1 if age else 0 :]
    x, xt = data.train.inputs[:, columns], data.test.inputs[:, columns]
    norm = float(np.sqrt(len(ATTRIBUTES) - age))  # a category is one indicator, a number at most 1
    if not age:
        return Table(x, data.train.targets, xt, data.test.targets, low, np.ones_like(low), norm, np.zeros(0))
    years = [(split.inputs[:, 0].astype(float) + 1) * (90 - 17) / 2 + 17 for split in (data.train, data.test)]
    return Table(x, years[0], xt, years[1], low[1:], np.ones(len(columns)), norm, np.array([17.0, 90.0]))


def table_of(name: str, data_dir: Path | None) -> Table:
    """The table of this name, with bounds that follow from what its columns mean or how they were published."""
    if name.startswith("adult"):
        return adult(data_dir, age=name == "adult-age")
    data = adbench.load(name, data_dir) if name.startswith(adbench.PREFIX) else load(name, data_dir=data_dir)
    rows = [split.inputs.reshape(len(split.inputs), -1) for split in (data.train, data.test)]
    features = rows[0].shape[1]
    bound = {"adbench-magic": (-4.0, 4.0)}.get(name, (0.0, 1.0))  # magic was published in standard deviations
    low, high = (np.full(features, value) for value in bound)
    norm = float(np.sqrt(features))
    return Table(rows[0], data.train.targets, rows[1], data.test.targets, low, high, norm, np.zeros(0))


NAMES = ("adult", "adbench-magic", "adbench-campaign", "digits", "adult-age")


def ours(table: Table, seed: int, epsilon: float) -> float:
    """The score of the private estimator with its default settings."""
    declared: dict[str, Any] = {"size": len(table.x), "bounds": (table.low, table.high), "random_state": seed}
    if len(table.target):
        model: Any = PrivateRegressor(epsilon, target_bounds=tuple(table.target), **declared)
    else:
        model = PrivateClassifier(epsilon, classes=np.unique(table.y), **declared)
    return float(model.fit(table.x, table.y).score(table.xt, table.yt))


def without_privacy(table: Table) -> dict[str, float]:
    """Scores of scikit-learn's estimators."""
    if len(table.target):
        plain: dict[str, Any] = {"linear": LinearRegression(), "boosted trees": HistGradientBoostingRegressor()}
    else:
        plain = {"linear": LogisticRegression(max_iter=2000), "boosted trees": HistGradientBoostingClassifier()}
    return {
        f"not private: {name}": float(m.fit(table.x, table.y).score(table.xt, table.yt)) for name, m in plain.items()
    }


def peers(python: str, table: Table, seed: int) -> Iterator[dict[str, Any]]:
    """Results of diffprivlib, computed by another Python."""
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "table.npz"
        np.savez(path, **asdict(table))
        script = Path(__file__).with_name("tables_peers.py")
        command = [python, str(script), str(path), str(seed), *map(str, EPSILONS)]
        lines = subprocess.run(command, check=True, capture_output=True, text=True).stdout.splitlines()
    yield from map(json.loads, lines)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--peers", help="Python of an environment with diffprivlib")
    parser.add_argument("--seeds", type=int, default=3)
    parser.add_argument("--data-dir", type=Path)
    parser.add_argument("--draw", action="store_true", help="only draw what was computed")
    given = parser.parse_args()
    results = json.loads(RESULTS.read_text()) if RESULTS.exists() else []

    def keep(name: str, found: dict[str, Any]) -> None:
        results.append({"table": name, **found})
        RESULTS.write_text("[\n " + ",\n ".join(map(json.dumps, results)) + "\n]\n")
        print(results[-1], file=sys.stderr, flush=True)

    def known(name: str, method: str, seed: int | None) -> bool:
        return any((r["table"], r["method"], r["seed"]) == (name, method, seed) for r in results)

    for name in () if given.draw else NAMES:
        table = table_of(name, given.data_dir)
        if not known(name, "not private: linear", None):
            for method, score in without_privacy(table).items():
                keep(name, {"method": method, "epsilon": None, "seed": None, "score": round(score, 4)})
        for seed in range(given.seeds):
            for epsilon in EPSILONS:
                if not any(
                    r["table"] == name and r["seed"] == seed and r["epsilon"] == epsilon and r["method"] == OURS
                    for r in results
                ):
                    score = ours(table, seed, epsilon)
                    keep(name, {"method": OURS, "epsilon": epsilon, "seed": seed, "score": round(score, 4)})
            first = "diffprivlib LinearRegression" if len(table.target) else "diffprivlib LogisticRegression"
            if given.peers and not known(name, first, seed):
                for found in peers(given.peers, table, seed):
                    keep(name, {**found, "score": round(found["score"], 4)})
    RESULTS.with_suffix(".svg").write_text(picture(results), encoding="utf-8")


if __name__ == "__main__":
    main()
