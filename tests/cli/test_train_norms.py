"""``noisette train`` with norms that replace batch norm, and with Lipschitz networks: published and loaded again."""

import html
import math
import re
from pathlib import Path

import numpy as np
import pytest
import torch

from command_line import facts, noisette, succeeded, train, words
from noisette.training.saved_model import SavedModel

MODEL = "papers.davody_2020.networks:bn_300_100"
RECIPE = f"""
data = {{name = "mine.npz", classes = 2, size = 200}}
model = {{name = "{MODEL}", batch_norm = "public"}}
public = {{data = "others.npz", classes = 2, examples = 16}}
privacy = {{epsilon = 2.5, delta = 1e-3}}
training = {{epochs = 1, batch_size = 50}}
"""


def write_images(name: str, seed: int, examples: int, side: int) -> None:
    """Two kinds of images that differ in the brightness of one half."""
    random = np.random.default_rng(seed)
    targets = random.integers(0, 2, examples)
    inputs = random.random((examples, 1, side, side)).astype(np.float32)
    inputs[:, :, : side // 2] += targets[:, None, None, None]
    np.savez(f"{name}.npz", x_train=inputs, y_train=targets, x_test=inputs, y_test=targets)


def test_the_code_of_the_report_loads_a_model_with_its_norms(monkeypatch):
    write_images("mine", 1, 200, 6)
    write_images("others", 2, 40, 6)
    Path("recipe.toml").write_text(RECIPE)
    succeeded(train("recipe.toml", "--batch-norm", "public", "--public-examples", 12, "--out", "run"))
    run, report = facts("run"), Path("run/report.html").read_text()
    assert run["recipe"]["model"]["batch_norm"] == "public"
    assert 0 < run["epsilon"] <= 2.5
    assert '("public") takes statistics from 12 examples of others.npz' in words("run/privacy.txt")
    monkeypatch.chdir("run")
    code = html.unescape(re.findall(r"<code>(.*?)</code>", report, re.DOTALL)[0])
    names: dict = {}
    exec(code.replace('of_run(Path("."))', f'of_run(Path("."), "{MODEL}")'), names)
    with np.load("../mine.npz") as test, torch.no_grad():
        right = names["model"](torch.as_tensor(test["x_test"])).argmax(1).numpy() == test["y_test"]
    assert right.mean() == pytest.approx(run["test_accuracy"])


LIPSCHITZ = """
data = {name = "own.npz", classes = 2, size = 300}
model = {name = "scattering-lipschitz-linear", standardised = true}
public = {data = "public.npz", classes = 2, examples = 40}
privacy = {epsilon = 8.0, delta = 1e-3, accountant = "rdp"}
lipschitz = {tau = 300.0, logit_clip = 0.1}
training = {epochs = 2, batch_size = 60, lr = 1.0, momentum = 0.9, averaging = 0.9}
"""


def test_a_run_is_published_with_the_bounds_of_its_layers_and_is_loaded_again():
    write_images("own", 0, 300, 12)
    write_images("public", 1, 60, 12)
    Path("recipe.toml").write_text(LIPSCHITZ)
    succeeded(train("recipe.toml", "--out", "run"))
    run = facts("run")
    assert run["max_grad_norm"] is None
    [(name, sensitivity)] = run["lipschitz"]["sensitivities"].items()
    assert sensitivity == pytest.approx(0.1, rel=1e-3), "scores within 0.1 and inputs of norm one"
    assert run["lipschitz"]["deviations"][name] == pytest.approx(run["noise_multiplier"] * sensitivity)
    assert "the layers bound it" in words("run/privacy.txt")
    succeeded(noisette("audit", "run", "--whole-run", "--pairs", "0", "--steps", "4", "--out", "audit"))
    with torch.no_grad(), np.load("own.npz") as test:
        scores = SavedModel.of_run(Path("run")).model(torch.as_tensor(test["x_test"]))
        right = scores.argmax(1).numpy() == test["y_test"]
    assert math.isclose(right.mean(), run["test_accuracy"])
