"""Made-up data sets, and files with made-up results, as finished runs of these plans would leave them."""

import hashlib
import json
import math
from collections.abc import Callable, Iterable, Mapping
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

import numpy as np

from noisette.data import DataSet, Split
from noisette.training.report.facts import Facts
from papers.abadi_2016.setting import Plan


def quiet(share: float, accuracy: float | None) -> None:
    """Nobody is told."""


def drawn(name: str, shape: tuple[int, ...], seed: int, *, classes: int = 10, size: int = 1000) -> DataSet:
    """40 records to train and 20 to test with, of random numbers."""
    rng = np.random.default_rng(seed)
    inputs, targets = rng.random((60, *shape), dtype=np.float32), rng.integers(0, classes, 60)
    return DataSet(name, Split(inputs[:40], targets[:40]), Split(inputs[40:], targets[40:]), classes, size, "")


def line(plan: Plan) -> str:
    steps = [max(1, round(plan.steps * k / 20)) for k in range(1, 21)]
    points = [[step, 0.95 - 0.5 * math.exp(-step / 300) + 0.001 * plan.seed] for step in steps]
    facts = {"data": plan.setting.data, "setting": asdict(plan.setting), "seed": plan.seed, "steps": plan.steps}
    return json.dumps(facts | {"seconds": 60.0, "points": points})


def write(plans: Iterable[Plan], folder: Path) -> Path:
    path = folder / "runs.jsonl"
    path.write_text("".join(line(plan) + "\n" for plan in plans))
    return path


def with_recipe(facts: Facts, **sections: Mapping[str, Any]) -> Facts:
    changed = {name: replace(getattr(facts.recipe, name), **values) for name, values in sections.items()}
    return replace(facts, recipe=replace(facts.recipe, **changed))


def redigested(ledger: Path, change: Callable[[list[dict[str, Any]]], list[dict[str, Any]]]) -> str:
    """Change the lines of a ledger and write all its digests anew, as a forger would; returns the last one."""
    head, lines = "", []
    for number, line in enumerate(change([json.loads(text) for text in ledger.read_text().splitlines()])):
        line = {name: value for name, value in line.items() if name != "digest"}
        line |= {"previous": head, "sequence": number}
        head = hashlib.sha256(json.dumps(line).encode()).hexdigest()
        lines.append(json.dumps(line | {"digest": head}) + "\n")
    ledger.write_text("".join(lines))
    return head
