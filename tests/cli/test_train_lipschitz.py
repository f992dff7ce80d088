"""``noisette train`` with Lipschitz networks: what is published, and how it is loaded again."""

from __future__ import annotations

import math
from pathlib import Path

import numpy as np
import pytest
import torch

from command_line import facts, train, words
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


def test_a_run_is_published_with_the_bounds_of_its_layers_and_is_loaded_again() -> None:
    for name, seed, examples in (("own", 0, 300), ("public", 1, 60)):
        random = np.random.default_rng(seed)
        targets = random.integers(0, 2, examples)
        inputs = random.random((examples, 1, 12, 12)).astype(np.float32)
        inputs[:, :, :6] += targets[:, None, None, None]
        np.savez(f"{name}.npz", x_train=inputs, y_train=targets, x_test=inputs, y_test=targets)
    Path("recipe.toml").write_text(RECIPE)
    shown = train("recipe.toml", "--out", "run")
    assert shown.exit_code == 0, shown.output
    run = facts("run")
    assert run["max_grad_norm"] is None
    assert run["recipe"]["lipschitz"]["logit_clip"] == 0.1
    [(name, sensitivity)] = run["lipschitz"]["sensitivities"].items()
    assert sensitivity == pytest.approx(0.1, rel=1e-3), "scores within 0.1 and inputs of norm one"
    assert run["lipschitz"]["deviations"][name] == pytest.approx(run["noise_multiplier"] * sensitivity)
    assert "the layers bound it" in words("run/privacy.txt")
    report = Path("run/report.html").read_text()
    with torch.no_grad(), np.load("own.npz") as test:
        scores = SavedModel.of_run(Path("run")).model(torch.as_tensor(test["x_test"]))
        right = scores.argmax(1).numpy() == test["y_test"]
    assert math.isclose(right.mean(), run["test_accuracy"])
    distances, shares = zip(*run["certified"], strict=True)
    assert distances[0] == 0
    assert math.isclose(shares[0], run["test_accuracy"], abs_tol=0.01), "ties are certified at no distance"
    assert list(shares) == sorted(shares, reverse=True)
    assert "Certified robustness" in report
