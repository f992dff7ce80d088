"""Private cells of the paper's tables: their noise, their guarantees, and two steps of each."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from safetensors.torch import save_file

from finished_runs import drawn, quiet
from noisette.data import DataSet, Split
from noisette.nn import models
from papers.davody_2020 import norms, table_6, table_7
from papers.davody_2020.networks import lenet
from papers.davody_2020.private import Private
from papers.davody_2020.runs import Cell


def two_steps(setting: Private) -> Private:
    return replace(setting, lot=10, epochs=0.02, public_examples=8)


def made(setting: Private, data: list[DataSet], folder: Path, weights: str | None = None) -> dict[str, Any]:
    """The line that a run leaves."""
    path = folder / "runs.jsonl"
    Cell(setting, 0, 1.0, weights).make({one.name: one for one in data}, path, quiet)
    return json.loads(path.read_text().splitlines()[-1])


@pytest.fixture
def digits() -> list[DataSet]:
    return [drawn("mnist", (1, 28, 28), 0), drawn("kmnist", (1, 28, 28), 1)]


def test_the_mixture_has_the_noise_of_the_others_and_no_epsilon(digits: list[DataSet], tmp_path: Path) -> None:
    settings = [norm.setting(1.0) for norm in (norms.PUBLIC_BATCH, norms.MIXTURE)]
    public, mixture = (made(two_steps(setting), digits, tmp_path) for setting in settings if setting)
    assert public["noise_multiplier"] == mixture["noise_multiplier"]
    assert public["steps"] == mixture["steps"] == 2
    assert 0.9 < public["epsilon"] <= 1.0
    assert mixture["epsilon"] is None


@pytest.mark.parametrize(
    ("norm", "tanh", "normalised_scores"), [("plain", True, False), ("bn", False, True), ("ln", True, False)]
)
def test_every_network_has_its_activation_and_its_norms(norm: str, tanh: bool, normalised_scores: bool) -> None:
    model = models.build(lenet(norm, tanh=tanh, normalised_scores=normalised_scores), (1, 28, 28), 10)
    kinds = [type(part).__name__ for part in model.modules()]
    assert ("Tanh" in kinds, "ReLU" in kinds) == (tanh, not tanh)
    found = sum("Norm" in kind for kind in kinds)
    assert found == (0 if norm == "plain" else 4 + normalised_scores)
    weights = sum(p.numel() for name, p in model.named_parameters() if "norm" not in name)
    assert weights == 61_706


def test_the_head_of_a_pretrained_network_is_trained(tmp_path: Path) -> None:
    data = drawn("cifar10", (3, 32, 32), 0)
    setting = table_6.GRID.rows[2].whole(8.0)
    assert isinstance(setting, Private)
    weights = tmp_path / "public.safetensors"
    state = models.build(setting.model, (3, 32, 32), 10).state_dict()
    save_file({name: value for name, value in state.items() if name.startswith("features")}, weights)
    line = made(two_steps(setting), [data], tmp_path, str(weights))
    assert line["steps"] == 2
    assert line["made_with"]["public_weights"] is not None


@pytest.mark.parametrize("row", table_7.GRID.rows, ids=lambda row: row.name)
def test_a_cell_of_table_7_runs(row: Any, tmp_path: Path) -> None:
    rng = np.random.default_rng(0)
    words, targets = rng.integers(0, 30, (40, 6)), rng.integers(0, 4, 40)
    vectors = rng.normal(size=(30, 8)).astype(np.float32)
    data = DataSet("ag-news", Split(words, targets), Split(words, targets), 4, 1000, "", vectors)
    line = made(two_steps(row.whole(1.0)), [data], tmp_path)
    assert line["epsilon"] <= 1.0
    assert line["records"] == 1000
