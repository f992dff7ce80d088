"""Log loss and mean prediction of a rarer class on twenty tables, for the default settings of tables and for others.

    python -m experiments.calibration [--ways WAY ...] [--candidates NAME ...] [--tables NAME ...] [--summary]

Every result is appended to benchmarks/results/calibration.jsonl; what stands there is not computed again. "train" is
what `noisette train` makes of a table, "classifier" is PrivateClassifier.
"""

from __future__ import annotations

import argparse
import json
import sys
from dataclasses import replace
from itertools import product
from typing import Any
from unittest.mock import patch

import numpy as np
import pandas as pd
import torch
from sklearn.datasets import make_classification
from sklearn.metrics import log_loss, roc_auc_score
from torch import nn

from experiments import tables
from experiments.tables_networks import inputs
from noisette import PrivateClassifier
from noisette.data import DataSet, Split
from noisette.nn.models import networks
from noisette.training import defaults, loop
from noisette.training.recipe import Recipe, default_recipe

RESULTS = tables.RESULTS.with_name("calibration.jsonl")
KEYS = ["way", "candidate", "table", "epsilon", "seed"]
# Bounds of tables that were published in other units than [0, 1]; at most this many rows of a table are for training.
BOUNDS = {"mammography": (-1.0, 8.0), "shuttle": (-6.0, 6.0), "yeast": (-4.0, 6.0), "skin": (-2.5, 2.5)}
ROWS: dict[str, int] = dict.fromkeys(("mammography", "shuttle", "donors", "celeba", "skin", "aloi"), 6000)
# Of generated tables: rows for training, features, rate of class 1 in percent, and distance of the classes.
GENERATED = (
    *((6000, 10, 1, 1.5), (4000, 20, 2, 1.0), (6000, 30, 3, 0.7), (4000, 8, 5, 1.0), (2000, 15, 8, 1.0)),
    *((6000, 40, 10, 0.7), (3000, 12, 15, 0.7), (4000, 25, 20, 0.5), (2000, 10, 30, 1.0), (4000, 20, 50, 0.7)),
)
NAMES = ["adult", *(f"adbench-{name}" for name in ("magic", "campaign", "yeast", *ROWS))]
NAMES += [f"generated-{percent}" for _, _, percent, _ in GENERATED]
# The norm; fields of the recipe's training, the reach, more passes, or a first bias by the rate, as if declared; or the
# signal from which on PrivateClassifier takes the norm. "norm 2" is what both had before.
LAST = {"cosine": False, "average_last": 0.5}
CANDIDATES: dict[str, dict[str, Any]] = {
    **{f"norm {norm:g}": {"norm": norm} for norm in (2.0, 3.0, 4.0, 6.0)},
    **{f"norm {norm:g}, rate of norm 2": {"norm": norm, "reach": 15 * norm} for norm in (3.0, 4.0, 6.0)},
    "norm 2, whatever the signal": {"norm": 2.0, "signal": 0.0},
    "norm 2, twice the rate": {"norm": 2.0, "reach": 60.0},
    "norm 2, twice the passes": {"norm": 2.0, "passes": 2.0},
    "norm 2, first bias at the rate": {"norm": 2.0, "biased": True},
    "norm 3, rate of norm 2, mean of the last half": {"norm": 3.0, "reach": 45.0, **LAST},
}


def table_of(name: str) -> tables.Table:
    """The table of this name, with public bounds and at most ``ROWS`` rows."""
    if name.startswith("generated"):
        rows, features, percent, apart = next(g for g in GENERATED if name == f"generated-{g[2]}")
        rates = {"weights": [1 - percent / 100], "class_sep": apart, "flip_y": 0.0, "random_state": percent}
        drawn: Any = make_classification(rows + 10_000, features, n_informative=features // 2, **rates)
        x, y = drawn
        low, high = np.full(features, -4.0), np.full(features, 4.0)
        return tables.Table(x[:rows], y[:rows], x[rows:], y[rows:], low, high, 0.0, np.zeros(0))
    table, short = tables.table_of(name, None), name.removeprefix("adbench-")
    rows = ROWS.get(short, len(table.x))
    low, high = (np.full_like(table.low, bound) for bound in BOUNDS.get(short, (table.low, table.high)))
    return replace(table, x=table.x[:rows], y=table.y[:rows], low=low, high=high)


def by_train(table: tables.Table, epsilon: float, seed: int, norm: float, **changed: Any) -> np.ndarray:
    """Probabilities of class 1 by the model that `noisette train` takes for a table of one's own."""
    reach, passes = changed.pop("reach", defaults.NETWORK_REACH), changed.pop("passes", 1.0)
    biased, plain, size = changed.pop("biased", False), networks.table, len(table.x)

    def network(shape: Any, classes: int) -> nn.Module:
        made: Any = plain(shape, classes)
        made[-1].bias.data += biased * torch.tensor([1 - table.y.mean(), table.y.mean()]).log().float()
        return made

    x, known = inputs(table, np.concatenate([table.x, table.xt])), default_recipe({"name": "own.csv", "size": size})
    training = replace(known.training, epochs=known.training.epochs * passes, seed=seed, microbatch_size=4096)
    privacy, training = replace(known.privacy, epsilon=epsilon, max_grad_norm=norm), replace(training, compile="no")
    recipe = Recipe(known.data, known.model, privacy, replace(training, **changed))
    splits = Split(x[:size].numpy(), table.y.astype(np.int64)), Split(x[size:].numpy(), table.yt.astype(np.int64))
    data = DataSet("table", *splits, classes=2, declared_size=size)
    with patch.object(networks, "table", network), patch.multiple(loop, NETWORK_REACH=reach, TABLE_NORM=norm):
        outcome = loop.train(recipe, data, ledger_path=None, on_step=lambda run, point: None, points=1)
    return outcome.model(x[size:]).detach().double().softmax(1)[:, 1].numpy()


def by_classifier(table: tables.Table, epsilon: float, seed: int, norm: float, signal: float = 1e3) -> np.ndarray:
    """Probabilities of class 1 by ``PrivateClassifier``."""
    declared: Any = {"size": len(table.x), "bounds": (table.low, table.high), "classes": 2}
    with patch.multiple(defaults, TABLE_NORM=norm, SIGNAL=signal):
        model = PrivateClassifier(epsilon, **declared, random_state=seed)
        return model.fit(table.x, table.y).predict_proba(table.xt)[:, 1]


WAYS = {"train": by_train, "classifier": by_classifier}


def figures(probability: np.ndarray, actual: np.ndarray) -> dict[str, float]:
    """Log loss and mean prediction, as shares of those of the base rate; accuracy and AUC."""
    base = np.full(len(actual), actual.mean())
    found = {"log_loss": log_loss(actual, probability) / log_loss(actual, base), "mean": probability.mean() / base[0]}
    found |= {"accuracy": ((probability > 0.5) == actual).mean(), "auc": roc_auc_score(actual, probability)}
    return {key: round(float(value), 4) for key, value in found.items()}


def kept() -> Any:
    """All results, a row for each."""
    return pd.read_json(RESULTS, lines=True) if RESULTS.is_file() else pd.DataFrame({"way": []})


def summary() -> str:
    """Over the tables for each way, epsilon and candidate: the mean prediction, and means, also of norm 2."""
    runs = ["way", "epsilon", "candidate"]
    of = kept().groupby([*runs, "table"]).mean(numeric_only=True).reset_index()
    both = of.merge(of[of.candidate == "norm 2"], on=["way", "epsilon", "table"], suffixes=("", "_norm_2"))
    columns = {"tables": ("table", "count"), **{how: ("mean", how) for how in ("min", "median", "max")}}
    columns |= {f"{n}{end}": (f"{n}{end}", "mean") for n in ("log_loss", "accuracy", "auc") for end in ("", "_norm_2")}
    return both.groupby(runs).agg(**columns).round(4).to_string()


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n")[0])
    parser.add_argument("--ways", nargs="+", choices=WAYS, default=["classifier", "train"])
    parser.add_argument("--candidates", nargs="+", choices=CANDIDATES, default=list(CANDIDATES)[:4])
    parser.add_argument("--tables", nargs="+", choices=NAMES, default=NAMES)
    parser.add_argument("--epsilons", nargs="+", type=float, default=[3.0, 1.0])
    parser.add_argument("--seeds", type=int, default=2)
    parser.add_argument("--summary", action="store_true", help="only print the summary")
    given = parser.parse_args()
    runs: Any = product(range(given.seeds), given.epsilons, given.ways, given.candidates, given.tables)
    done = {tuple(row) for row in kept().reindex(columns=KEYS).itertuples(index=False)}
    for seed, epsilon, way, candidate, name in () if given.summary else runs:
        key = dict(zip(KEYS, (way, candidate, name, epsilon, seed), strict=True))
        if tuple(key[name] for name in KEYS) in done:
            continue
        table = table_of(name)
        found = figures(WAYS[way](table, epsilon, seed, **CANDIDATES[candidate]), table.yt)
        line = key | {"rows": len(table.x), "rate": round(float(table.yt.mean()), 4)} | found
        with RESULTS.open("a") as file:
            file.write(json.dumps(line) + "\n")
        print(key, found, file=sys.stderr, flush=True)
    print(summary())


if __name__ == "__main__":
    main()
