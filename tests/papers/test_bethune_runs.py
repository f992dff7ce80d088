"""Runs without clipping: two steps of each kind of network, and their measured results."""

from __future__ import annotations

import json
import math
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from scipy.fft import dctn
from torch import nn

from finished_runs import drawn, quiet
from noisette.data import DataSet, Split
from noisette.lipschitz import NormBound
from papers.bethune_2024 import figure_pareto, figure_robustness, networks, table_tabular
from papers.bethune_2024.anomalies import area_under_roc
from papers.bethune_2024.runs import Cell, read
from papers.bethune_2024.setting import Setting


def made(setting: Setting, data: list[DataSet], folder: Path) -> dict[str, Any]:
    """Run two steps of a setting and return the line that they write."""
    path, short = folder / "runs.jsonl", replace(setting, lot=100, epochs=0.2, public_examples=20)
    Cell(short, 0, 1.0).make({one.name: one for one in data}, path, quiet)
    line = json.loads(path.read_text().splitlines()[-1])
    assert read(path)[-1].setting == short
    assert line["steps"] == 2
    assert line["epsilon"] <= setting.epsilon
    return line


def of(row: str) -> Setting:
    [setting] = [r.whole(3.0) for r in figure_pareto.GRID.rows if r.name == row]
    assert setting is not None
    return setting


@pytest.mark.parametrize(
    ("network", "size"),
    [
        *(("pixels", 28), ("frequencies", 28), ("cosines", 28), ("scattering", 12)),
        pytest.param("scattering", 28, marks=pytest.mark.slow),  # the Lipschitz constant takes most of the time
    ],
)
def test_a_network_of_grey_images_is_trained_and_tested(network: str, size: int, tmp_path: Path) -> None:
    data = [drawn("mnist", (1, size, size), 0), drawn("kmnist", (1, size, size), 1)]
    line = made(of(f"mnist-{network}"), data, tmp_path)
    assert 0 <= line["reached"] <= 1
    assert line["certified"] == []
    assert line["records"] == 1000


def test_certified_accuracy_is_measured_at_the_radii(tmp_path: Path) -> None:
    at = figure_robustness.GRID.rows[0].whole(1)
    assert at is not None
    line = made(at[0], [drawn("mnist", (1, 28, 28), 0)], tmp_path)
    assert len(line["certified"]) == len(at[0].radii)
    assert line["certified"] == sorted(line["certified"], reverse=True)
    assert line["certified"][0] <= line["reached"] + 1e-9


@pytest.mark.parametrize("method", table_tabular.METHODS)
@pytest.mark.parametrize("name", ["yeast", "donors"])
def test_a_table_of_any_size_is_trained_by_both_methods(
    name: str, method: table_tabular.Method, tmp_path: Path
) -> None:
    [setting] = [row.whole(method) for row in table_tabular.GRID.rows if row.name == name]
    assert setting
    line = made(setting, [drawn(f"adbench-{name}", (10,), 0, classes=2)], tmp_path)
    assert 0 <= line["reached"] <= 1


def test_the_area_under_the_curve_is_the_share_of_ordered_pairs() -> None:
    scores, targets = torch.tensor([0.1, 0.9, 0.4, 0.35, 0.9]), np.array([0, 1, 0, 1, 0])
    model = nn.Linear(1, 2, bias=False)
    model.weight.data = torch.tensor([[0.0], [2.0]])
    pairs = [(a, b) for a in scores[targets == 1] for b in scores[targets == 0]]
    expected = sum(float(a > b) + 0.5 * float(a == b) for a, b in pairs) / len(pairs)
    assert area_under_roc(model, Split(scores.unsqueeze(1).numpy(), targets)) == pytest.approx(expected)


def test_products_of_random_cosines_approximate_a_gaussian_kernel() -> None:
    torch.manual_seed(0)
    cosines = networks.RandomCosines(3, cosines=200_000, breadth=0.5)
    one, other = cosines(torch.tensor([[0.0, 1.0, 2.0], [1.0, 1.0, 0.0]]))
    assert 2 * (one * other).mean().item() == pytest.approx(math.exp(-0.5 * 0.25 * 5), abs=0.01)
    assert not list(cosines.parameters())


def test_low_frequencies_are_those_of_scipy_and_a_flat_image_keeps_its_norm() -> None:
    images = torch.rand(2, 3, 7, 5, dtype=torch.float64)
    expected = dctn(images.numpy(), axes=(2, 3), norm="ortho")[:, :, :4, :4]
    torch.testing.assert_close(networks.DctCut(4)(images), torch.as_tensor(expected))
    with pytest.raises(ValueError, match="expected images of 5 x 5 pixels or more"):
        networks.DctCut(5).bound_forward(NormBound(1.0, (64,)))
