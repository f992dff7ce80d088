"""diffprivlib's models on one table; run by ``experiments.tables`` in an environment that has diffprivlib.

    PYTHON experiments/tables_peers.py TABLE.npz SEED EPSILON...

The file holds the arrays of ``experiments.tables.Table``. One line of JSON for each model and epsilon: its score on the
test rows. Nothing is imported from noisette.
"""

from __future__ import annotations

import json
import sys
import warnings
from typing import Any

import numpy as np
from diffprivlib import models  # pyright: ignore[reportMissingImports]


def main(path: str, seed: int, epsilons: list[float]) -> None:
    with np.load(path) as arrays:
        x, y, xt, yt, target = (arrays[k] for k in ("x", "y", "xt", "yt", "target"))
        low, high, norm = arrays["low"], arrays["high"], float(arrays["norm"])
    x, xt = ((np.clip(rows, low, high) - low) / (high - low) for rows in (x, xt))  # declared bounds, as for ours
    for epsilon in epsilons:
        for name, model in candidates(epsilon, seed, x.shape[1], norm, target, y).items():
            with warnings.catch_warnings():
                warnings.simplefilter("ignore")
                score = model.fit(x, y).score(xt, yt)
            print(json.dumps({"method": name, "epsilon": epsilon, "seed": seed, "score": float(score)}), flush=True)


def candidates(
    epsilon: float, seed: int, features: int, norm: float, target: np.ndarray, y: np.ndarray
) -> dict[str, Any]:
    """The models with what is declared about the table; all other settings are diffprivlib's own."""
    box = (np.zeros(features), np.ones(features))
    common = {"epsilon": epsilon, "random_state": seed}
    if len(target):
        return {"diffprivlib LinearRegression": models.LinearRegression(bounds_X=box, bounds_y=tuple(target), **common)}
    return {
        "diffprivlib LogisticRegression": models.LogisticRegression(data_norm=norm, max_iter=1000, **common),
        "diffprivlib GaussianNB": models.GaussianNB(bounds=box, **common),
        "diffprivlib RandomForest": models.RandomForestClassifier(bounds=box, classes=np.unique(y), **common),
    }


if __name__ == "__main__":
    main(sys.argv[1], int(sys.argv[2]), [float(epsilon) for epsilon in sys.argv[3:]])
