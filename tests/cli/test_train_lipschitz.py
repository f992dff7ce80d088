"""``noisette train`` with Lipschitz networks: what is published, and how it is loaded again."""

from __future__ import annotations

import json
import math
from pathlib import Path

import numpy as np
import pytest
import torch
from typer.testing import CliRunner

from noisette.cli import app
from noisette.training.saved_model import SavedModel

RECIPE = """
[data]
name = "own.npz"
classes = 2
size = 300
[model]
name = "scattering-lipschitz-linear"
standardised = true
[public]
data = "public.npz"
classes = 2
examples = 40
[privacy]
epsilon = 8.0
delta = 1e-3
accountant = "rdp"
[lipschitz]
tau = 300.0
logit_clip = 0.1
[training]
epochs = 2
batch_size = 60
lr = 1.0
momentum = 0.9
averaging = 0.9
"""


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    for name, seed, examples in (("own", 0, 300), ("public", 1, 60)):
        random = np.random.default_rng(seed)
        targets = random.integers(0, 2, examples)
        inputs = random.random((examples, 1, 12, 12)).astype(np.float32)
        inputs[:, :, :6] += targets[:, None, None, None]
        np.savez(tmp_path / f"{name}.npz", x_train=inputs, y_train=targets, x_test=inputs, y_test=targets)
    (tmp_path / "recipe.toml").write_text(RECIPE)
    return tmp_path


def test_a_run_is_published_with_the_bounds_of_its_layers_and_is_loaded_again(folder: Path) -> None:
    shown = CliRunner().invoke(app, ["train", "recipe.toml", "--out", "run"])
    assert shown.exit_code == 0, shown.output
    facts = json.loads((folder / "run/run.json").read_text())
    assert facts["max_grad_norm"] is None
    assert facts["recipe"]["lipschitz"]["logit_clip"] == 0.1
    [(name, sensitivity)] = facts["lipschitz"]["sensitivities"].items()
    assert sensitivity == pytest.approx(0.1, rel=1e-3), "scores within 0.1 and inputs of norm one"
    assert facts["lipschitz"]["deviations"][name] == pytest.approx(facts["noise_multiplier"] * sensitivity)
    assert "the layers bound it" in " ".join((folder / "run/privacy.txt").read_text().split())
    report = (folder / "run/report.html").read_text()
    with torch.no_grad(), np.load(folder / "own.npz") as test:
        scores = SavedModel.of_run(folder / "run").model(torch.as_tensor(test["x_test"]))
        right = scores.argmax(1).numpy() == test["y_test"]
    assert math.isclose(right.mean(), facts["test_accuracy"])
    distances, shares = zip(*facts["certified"], strict=True)
    assert distances[0] == 0
    assert math.isclose(shares[0], facts["test_accuracy"], abs_tol=0.01), "ties are certified at no distance"
    assert list(shares) == sorted(shares, reverse=True)
    assert "Certified robustness" in report


@pytest.mark.parametrize(
    ("old", "new", "told"),
    [
        ("tau = 300.0", "", "give lipschitz.tau"),
        ("[lipschitz]", "max_grad_norm = 0.5\n[lipschitz]", "leave out max_grad_norm"),
        ("scattering-lipschitz-linear", "scattering", "Linear"),
        ('[public]\ndata = "public.npz"\nclasses = 2\nexamples = 40', "", "name their set"),
    ],
)
def test_what_does_not_fit_is_refused_and_leaves_nothing(folder: Path, old: str, new: str, told: str) -> None:
    assert old in RECIPE
    (folder / "recipe.toml").write_text(RECIPE.replace(old, new))
    shown = CliRunner().invoke(app, ["train", "recipe.toml", "--out", "run"])
    assert shown.exit_code == 2, shown.output
    assert told in shown.stderr
    assert sorted(path.name for path in folder.iterdir()) == ["own.npz", "public.npz", "recipe.toml"]
