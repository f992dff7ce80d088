from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from finished_runs import line, write
from noisette.data import DataSet, Split
from papers.abadi_2016.mnist import Mnist
from papers.abadi_2016.runs import Run, make, missing, read
from papers.abadi_2016.setting import Plan, Setting
from papers.abadi_2016.spread import of_setting, within

SHORT = Plan(Mnist(), 0, 2.0, "moments")
LONG = Plan(Mnist(), 0, 2.0, "pld")


def run(*points: tuple[int, float], seed: int = 0, setting: Setting | None = None) -> Run:
    return Run(setting or Mnist(), seed, points[-1][0], 1.0, points)


def test_a_longer_run_replaces_a_shorter_plan_and_not_the_reverse(tmp_path: Path) -> None:
    assert missing([SHORT], read(write([LONG], tmp_path))) == []
    assert missing([LONG], read(write([SHORT], tmp_path))) == [LONG]


def test_another_seed_or_setting_is_missing(tmp_path: Path) -> None:
    others = [replace(SHORT, seed=1), replace(SHORT, setting=Mnist(clip=8.0))]
    assert missing([SHORT, *others], read(write([SHORT], tmp_path))) == others


@pytest.mark.parametrize("broken", ['{"setting": {"colour": 1}}', "{"])
def test_a_line_that_is_not_a_run_is_named(tmp_path: Path, broken: str) -> None:
    path = tmp_path / "runs.jsonl"
    path.write_text(line(SHORT) + "\n" + broken + "\n")
    with pytest.raises(ValueError, match=r"line 2 of .*runs.jsonl is not a finished run"):
        read(path)


def test_seeds_are_summarised_by_median_and_range() -> None:
    spread = within([run((10, accuracy), seed=seed) for seed, accuracy in enumerate((0.9, 0.95, 0.91))], 10)
    assert spread is not None
    assert str(spread) == "91.0 % (90.0 to 95.0, 3 seeds)"
    assert str(within([run((10, 0.9))], 10)) == "90.0 % (1 seed)"
    assert within([run((10, 0.9))], 9) is None


def test_of_each_seed_the_longest_run_is_taken() -> None:
    short, long, other = run((10, 0.9)), run((10, 0.9), (20, 0.95)), run((15, 0.9), seed=1)
    assert of_setting([long, short, other], Mnist()) == [long, other]
    assert of_setting([long, short, other], Mnist(), steps=16) == [long]
    assert of_setting([short], Mnist(clip=1.0)) == []


@pytest.fixture
def images() -> DataSet:
    rng = np.random.default_rng(0)
    inputs, targets = rng.random((400, 1, 28, 28), dtype=np.float32), rng.integers(0, 10, 400)
    return DataSet("mnist", Split(inputs[:300], targets[:300]), Split(inputs[300:], targets[300:]), 10, 60_000, "")


def test_a_run_writes_one_line_of_public_values(tmp_path: Path, images: DataSet) -> None:
    plan = Plan(Mnist(units=1000, pca_noise=40.0, noise=40.0), 1, 0.1, "moments")
    path, steps = tmp_path / "runs.jsonl", []
    plan = replace(plan, epsilon=_just_above_projection(plan))
    path.write_text(line(SHORT) + "\n")
    make(plan, images, path, lambda share, accuracy: steps.append(share))
    first, second = path.read_text().splitlines()
    assert first == line(SHORT)
    facts = json.loads(second)
    assert set(facts) == {
        "data", "setting", "seed", "budget", "steps", "epsilon", "noise_multiplier", "seconds", "points", "made_with",
    }  # fmt: skip
    assert facts["steps"] == plan.steps == len(steps)
    assert steps[-1] == 1.0
    assert facts["epsilon"] <= plan.epsilon
    assert facts["points"][-1][0] == plan.steps
    assert all(0 <= accuracy <= 1 for _, accuracy in facts["points"])
    assert missing([plan, SHORT], read(path)) == []


def _just_above_projection(plan: Plan) -> float:
    from noisette.training.recipe import ACCOUNTANTS

    return 1.0005 * plan.setting.compose(5, ACCOUNTANTS[plan.accountant]).epsilon(delta=0.99e-5)
