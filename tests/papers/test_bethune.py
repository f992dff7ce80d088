"""Bethune et al. 2024: ADBench, figures and tables from invented runs, and two steps of each kind of network."""

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
from noisette.data import DataError, DataSet, Split, names
from noisette.lipschitz import NormBound
from noisette.nn import models
from papers.bethune_2024 import figure_pareto, figure_robustness, networks, table_tabular
from papers.bethune_2024.adbench import ANOMALIES, PREFIX, Anomalies, load
from papers.bethune_2024.anomalies import area_under_roc
from papers.bethune_2024.parts import PAPER
from papers.bethune_2024.runs import Cell, Run, median_of, read
from papers.bethune_2024.setting import Setting
from papers.bethune_2024.table_tabular import PRINTED
from papers.paper import Asked

X, Y = np.arange(20.0).reshape(10, 2), np.array([0, 1] * 5)


@pytest.fixture
def small(tmp_path, monkeypatch):
    """Writes a set of ten rows that replaces yeast, and returns the folder of data sets."""

    def write(**arrays: np.ndarray) -> Path:
        (tmp_path / "adbench").mkdir()
        np.savez(tmp_path / "adbench/47_yeast.npz", **arrays)  # pyright: ignore[reportArgumentType]
        monkeypatch.setitem(ANOMALIES, "yeast", Anomalies("47_yeast.npz", "0", 10, 2))
        return tmp_path

    return write


def test_sizes_are_those_of_the_paper_and_transforms_do_not_depend_on_the_data():
    assert {name: ANOMALIES[name].size for name in PRINTED} == {name: size for name, (size, *_) in PRINTED.items()}
    shares, counts = ANOMALIES["aloi"].transform, ANOMALIES["shuttle"].transform
    np.testing.assert_allclose(shares(np.array([0.0, 0.25, 1.0, -0.1])), [0, 0.5, 1, 0])
    np.testing.assert_allclose(counts(np.array([0, 100, -100])), [0, np.log(1 + 2**0.5), -np.log(1 + 2**0.5)])
    assert ANOMALIES["magic"].transform(X) is X


def test_four_fifths_are_for_training_and_the_split_is_always_the_same(small):
    folder = small(X=X, y=Y)
    found, again = (load("adbench-yeast", folder) for _ in range(2))
    assert (found.classes, found.declared_size) == (2, 8)
    assert (len(found.train.inputs), len(found.test.inputs)) == (8, 2)
    assert sorted(map(tuple, np.concatenate([found.train.inputs, found.test.inputs]))) == sorted(map(tuple, X))
    assert (found.train.targets == (found.train.inputs[:, 0] / 2 % 2)).all(), "labels stay with their rows"
    assert "fixed shuffle" in found.note
    assert (found.train.inputs == again.train.inputs).all()
    assert found.train.inputs[:, 0].tolist() != sorted(found.train.inputs[:, 0])


@pytest.mark.parametrize(
    ("arrays", "told"),
    [
        ({"X": X[:9], "y": Y[:9]}, r"rows of shape \(9, 2\).*publishes 10 rows of 2 numbers"),
        ({"X": X, "y": Y[:9]}, r"labels of shape \(9,\)"),
        ({"X": X}, "damaged or not the published file"),
        ({"X": X, "y": Y + 1}, "labels outside 0..1"),
    ],
)
def test_other_contents_are_refused(small, arrays, told):
    folder = small(**arrays)
    with pytest.raises(DataError, match=told):
        load("adbench-yeast", folder)


def finished(setting: Setting, reached: float = 0.9, seed: int = 0, certified: tuple[float, ...] = ()) -> Run:
    return Run(setting, seed, 1.0, 100, setting.epsilon, 2.0, reached, certified)


def setting(row: str, epsilon: float) -> Setting:
    [found] = [row_.whole(epsilon) for row_ in figure_pareto.GRID.rows if row_.name == row]
    return found


def test_the_median_of_the_seeds_is_shown_with_their_range():
    mnist = setting("mnist-pixels", 3.0)
    runs = [finished(mnist, reached, seed) for seed, reached in enumerate((0.951, 0.97, 0.953))]
    assert str(median_of(runs, mnist)) == "95.3 (95.1 to 97.0)"
    assert str(median_of(runs[:1], mnist)) == "95.1 (1 seed)"
    assert median_of(runs, setting("mnist-pixels", 1.0)) is None
    again = [*runs, finished(mnist, 0.98, seed=2)]
    assert str(median_of(again, mnist)) == "97.0 (95.1 to 98.0)", "a seed that was run again counts once"


def test_every_setting_is_a_recipe_of_known_sets_and_models():
    for part in PAPER.parts.values():
        for job in part.missing(Asked((0,), full=True), []):
            assert isinstance(job, Cell)
            recipe = job.setting.recipe(seed=4)
            assert set(job.sets) <= {*names(), *(f"{PREFIX}{name}" for name in ANOMALIES)}
            assert recipe.training.seed == 4
            assert recipe.lipschitz.used == (job.setting.tau is not None)
            assert recipe.model.standardised == (job.setting.public is not None)
            assert recipe.privacy.epsilon == job.setting.epsilon
            assert job.setting.model in models.names() or "networks:" in job.setting.model


def made(setting: Setting, data: list[DataSet], folder: Path) -> dict[str, Any]:
    """Run two steps of a setting and return the line that they write."""
    path, short = folder / "runs.jsonl", replace(setting, lot=100, epochs=0.2, public_examples=20)
    Cell(short, 0, 1.0).make({one.name: one for one in data}, path, quiet)
    line = json.loads(path.read_text().splitlines()[-1])
    assert (read(path)[-1].setting, line["steps"]) == (short, 2)
    assert line["epsilon"] <= setting.epsilon
    return line


# The Lipschitz constant of the large one takes most of the time.
NETWORKS = [("pixels", 28), ("frequencies", 28), ("cosines", 28), ("scattering", 12)]
LARGE = pytest.param("scattering", 28, marks=pytest.mark.slow)


@pytest.mark.parametrize(("network", "size"), [*NETWORKS, LARGE])
def test_a_network_of_grey_images_is_trained_and_tested(network, size, tmp_path):
    data = [drawn("mnist", (1, size, size), 0), drawn("kmnist", (1, size, size), 1)]
    line = made(setting(f"mnist-{network}", 3.0), data, tmp_path)
    assert 0 <= line["reached"] <= 1
    assert (line["certified"], line["records"]) == ([], 1000)


def test_certified_accuracy_is_measured_at_the_radii(tmp_path):
    at = figure_robustness.GRID.rows[0].whole(1)
    line = made(at[0], [drawn("mnist", (1, 28, 28), 0)], tmp_path)
    assert len(line["certified"]) == len(at[0].radii)
    assert line["certified"] == sorted(line["certified"], reverse=True)
    assert line["certified"][0] <= line["reached"] + 1e-9


@pytest.mark.parametrize(("name", "method"), [("yeast", "DP-SGD"), ("donors", "clipless")])
def test_a_table_of_any_size_is_trained_by_both_methods(name, method, tmp_path):
    [setting] = [row.whole(method) for row in table_tabular.GRID.rows if row.name == name]
    assert setting
    assert 0 <= made(setting, [drawn(f"adbench-{name}", (10,), 0, classes=2)], tmp_path)["reached"] <= 1


def test_the_area_under_the_curve_is_the_share_of_ordered_pairs():
    scores, targets = torch.tensor([0.1, 0.9, 0.4, 0.35, 0.9]), np.array([0, 1, 0, 1, 0])
    model = nn.Linear(1, 2, bias=False)
    model.weight.data = torch.tensor([[0.0], [2.0]])
    pairs = [(a, b) for a in scores[targets == 1] for b in scores[targets == 0]]
    expected = sum(float(a > b) + 0.5 * float(a == b) for a, b in pairs) / len(pairs)
    assert area_under_roc(model, Split(scores.unsqueeze(1).numpy(), targets)) == pytest.approx(expected)


def test_products_of_random_cosines_approximate_a_gaussian_kernel():
    torch.manual_seed(0)
    cosines = networks.RandomCosines(3, cosines=200_000, breadth=0.5)
    one, other = cosines(torch.tensor([[0.0, 1.0, 2.0], [1.0, 1.0, 0.0]]))
    assert 2 * (one * other).mean().item() == pytest.approx(math.exp(-0.5 * 0.25 * 5), abs=0.01)
    assert not list(cosines.parameters())


def test_low_frequencies_are_those_of_scipy_and_a_flat_image_keeps_its_norm():
    images = torch.rand(2, 3, 7, 5, dtype=torch.float64)
    expected = dctn(images.numpy(), axes=(2, 3), norm="ortho")[:, :, :4, :4]
    torch.testing.assert_close(networks.DctCut(4)(images), torch.as_tensor(expected))
    with pytest.raises(ValueError, match="expected images of 5 x 5 pixels or more"):
        networks.DctCut(5).bound_forward(NormBound(1.0, (64,)))


def test_the_mixer_cuts_images_into_patches_of_four_pixels():
    mixer = models.build("lipschitz-mixer", (3, 32, 32), 10)
    assert sum(p.numel() for p in mixer.parameters()) == 48 * 64 + 2 * 64 * 64 + 2 * 64 * 64 + 64 * 64 * 10
    with pytest.raises(ValueError, match=r"patches of 4 x 4 pixels, got .3, 32, 30."):
        models.build("lipschitz-mixer", (3, 32, 30), 10)
