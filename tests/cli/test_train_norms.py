"""``noisette train`` with norms that replace batch norm, and their public examples."""

from __future__ import annotations

import html
import re
from pathlib import Path

import numpy as np
import pytest
import torch

from command_line import facts, train, tree, words

MODEL = "papers.davody_2020.networks:bn_300_100"
RECIPE = f"""
[data]
name = "mine.npz"
classes = 2
size = 200
[model]
name = "{MODEL}"
batch_norm = "per-example"
[public]
data = "others.npz"
examples = 16
classes = 2
[privacy]
epsilon = 2.5
delta = 1e-3
[training]
epochs = 1
batch_size = 50
"""
OPTIONS = ("--data", "mine.npz", "--classes", 2, "--size", 200, "--model", MODEL, "--epochs", 1, "--batch-size", 50)


@pytest.fixture(autouse=True)
def _images(_here: None) -> None:
    for name, seed, shape in (("mine", 1, (200, 1, 6, 6)), ("others", 2, (40, 1, 6, 6)), ("larger", 3, (40, 1, 7, 6))):
        random = np.random.default_rng(seed)
        x, y = random.normal(size=shape).astype(np.float32), random.integers(0, 2, shape[0])
        np.savez(f"{name}.npz", x_train=x, y_train=y, x_test=x[:20], y_test=y[:20])
    Path("recipe.toml").write_text(RECIPE)


@pytest.mark.parametrize(
    ("norm", "options"),
    [
        ("public", ("recipe.toml", "--batch-norm", "public", "--public-examples", 12)),
        ("per-example", ("recipe.toml",)),
        ("group", (*OPTIONS, "--batch-norm", "group", "--delta", 1e-3)),
    ],
)
def test_the_report_says_how_to_load_a_model_with_its_norms(
    norm: str, options: tuple[object, ...], monkeypatch: pytest.MonkeyPatch
) -> None:
    shown = train(*options, "--out", "run")
    assert shown.exit_code == 0, shown.output
    run, report = facts("run"), Path("run/report.html").read_text()
    assert run["recipe"]["model"]["batch_norm"] == norm
    if norm == "public":
        assert 0 < run["epsilon"] <= 2.5
        assert '("public") takes statistics from 12 examples of others.npz' in words("run/privacy.txt")
    monkeypatch.chdir("run")
    code = html.unescape(re.findall(r"<code>(.*?)</code>", report, re.DOTALL)[0])
    names: dict = {}
    exec(code.replace('Path("others.npz")', 'Path("../others.npz")'), names)
    with np.load("../mine.npz") as test, torch.no_grad():
        right = names["model"](torch.as_tensor(test["x_test"])).argmax(1).numpy() == test["y_test"]
    assert right.mean() == pytest.approx(run["test_accuracy"])


@pytest.mark.parametrize(
    ("options", "messages"),
    [
        (["--batch-norm", "batch", "--max-grad-norm", 0], ["batch_norm to be one of public,", "max_grad_norm=0.0"]),
        (["--public", "larger.npz"], ["larger.npz have shape (1, 7, 6), those of mine.npz (1, 6, 6)"]),
        (["--batch-norm", "group"], ["not group; leave them out"]),
    ],
)
def test_bad_input_is_a_message_and_leaves_nothing(options: list[object], messages: list[str]) -> None:
    before = tree(Path())
    shown = train("recipe.toml", *options)
    assert shown.exit_code == 2, shown.output
    for message in messages:
        assert message in shown.output.replace("\n", " ")
    assert tree(Path()) == before


def test_batch_norm_that_nobody_asked_to_replace_is_refused() -> None:
    shown = train(*OPTIONS, "--delta", 1e-3)
    assert shown.exit_code == 2
    assert "BatchNorm1d mixes examples" in shown.output
