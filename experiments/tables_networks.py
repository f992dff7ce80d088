"""The rules for one's own model: accuracy of an MLP with each clipping rule and reach, on four public tables.

    python -m experiments.tables_networks [--data-dir DIR]

Writes benchmarks/results/tables-networks.json: one run each, at epsilon 1, by a loop as in the README.
"""

from __future__ import annotations

import argparse
import json
import sys
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn import functional as F
from torch.optim.swa_utils import AveragedModel

from experiments.tables import RESULTS, Table, table_of
from experiments.tables_rates import NAMES
from noisette import AutomaticClipping, FlatClipping, PerExampleClip, privatize
from noisette.core.clip import ClippingRule
from noisette.nn import models
from noisette.training.defaults import MAX_GRAD_NORM, batches_for, learning_rate_for

RULES: dict[str, Any] = {"automatic": AutomaticClipping, "flat": FlatClipping}
REACHES = (10.0, 30.0, 100.0)


def inputs(table: Table, rows: np.ndarray) -> Tensor:
    """Rows whose numbers are from -1 to 1; indicators stay 0 or 1."""
    scaled = 2 * (np.clip(rows, table.low, table.high) - table.low) / (table.high - table.low) - 1
    indicators = (table.low == 0) & (table.high == 1) & np.isin(rows, (0, 1)).all(axis=0)
    return torch.as_tensor(np.where(indicators, rows, scaled), dtype=torch.float32)


def loss(model: nn.Module, x: Tensor, y: Tensor) -> Tensor:
    return F.cross_entropy(model(x), y)


def trained(table: Table, clipping: ClippingRule, reach: float) -> dict[str, float]:
    """Accuracy and mean loss on the test rows after a run with settings by rule."""
    torch.manual_seed(0)
    x, y = inputs(table, table.x), torch.as_tensor(table.y)
    model = models.build("mlp", x.shape[1:], int(table.y.max()) + 1)
    optimizer = torch.optim.SGD(model.parameters(), lr=1.0)
    batches, averaged = batches_for(len(x)), AveragedModel(model)
    size = batches.expected_batch_size
    clip = PerExampleClip(model, clipping=clipping)
    with privatize(
        clip,
        optimizer,
        (x, y),
        expected_batch_size=size,
        public_size=len(x),
        epochs=batches.epochs,
        epsilon=1,
        delta=1e-5,
    ) as run:
        optimizer.param_groups[0]["lr"] = learning_rate_for(
            dimensions=sum(p.numel() for p in model.parameters()),
            noise_multiplier=run.noise_multiplier,
            expected_batch_size=size,
            steps=run.steps,
            reach=reach,
        )
        for batch in run.batches():
            for inputs_, targets in batch.microbatches(4096):
                run.accumulate(loss, inputs_, targets)
            optimizer.step()
            optimizer.zero_grad()
            if 2 * run.steps_spent >= run.steps:
                averaged.update_parameters(model)
    with torch.no_grad():
        scores, right = averaged.module(inputs(table, table.xt)), torch.as_tensor(table.yt)
    accuracy = (scores.argmax(1) == right).float().mean().item()
    return {"accuracy": round(accuracy, 4), "loss": round(F.cross_entropy(scores, right).item(), 3)}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--data-dir", type=Path)
    data_dir = parser.parse_args().data_dir
    results = []
    for name in NAMES:
        table = table_of(name, data_dir)
        for rule, make in RULES.items():
            for reach in REACHES:
                results.append(
                    {"table": name, "clipping": rule, "reach": reach, **trained(table, make(MAX_GRAD_NORM), reach)}
                )
                print(results[-1], file=sys.stderr, flush=True)
    RESULTS.with_name("tables-networks.json").write_text("[\n " + ",\n ".join(map(json.dumps, results)) + "\n]\n")


if __name__ == "__main__":
    main()
