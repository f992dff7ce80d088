"""``noisette train`` with norms that replace batch norm, and their public examples."""

from __future__ import annotations

import html
import json
import re
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from click.testing import Result
from typer.testing import CliRunner

from noisette.cli import app

RECIPE = """
[data]
name = "mine.npz"
classes = 2
size = 200
[model]
name = "papers.davody_2020.networks:bn_300_100"
batch_norm = "{norm}"
[public]
data = "others.npz"
examples = 16
classes = 2
[privacy]
delta = 1e-3
{privacy}
[training]
epochs = 1
batch_size = 50
"""
TEXTS = {"privacy.txt", "report.html", "run.json"}


def train(*options: object) -> Result:
    return CliRunner().invoke(app, ["train", *map(str, options)])


def tree(folder: Path) -> set[str]:
    return {str(path.relative_to(folder)) for path in folder.rglob("*")}


def write_images(folder: Path) -> None:
    for name, seed, shape in (("mine", 1, (200, 1, 6, 6)), ("others", 2, (40, 1, 6, 6)), ("larger", 3, (40, 1, 7, 6))):
        random = np.random.default_rng(seed)
        x, y = random.normal(size=shape).astype(np.float32), random.integers(0, 2, shape[0])
        np.savez(folder / f"{name}.npz", x_train=x, y_train=y, x_test=x[:20], y_test=y[:20])


def recipe(norm: str, privacy: str) -> str:
    Path("recipe.toml").write_text(RECIPE.format(norm=norm, privacy=privacy))
    return "recipe.toml"


@pytest.fixture(autouse=True)
def _here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    write_images(tmp_path)


@dataclass(frozen=True)
class Finished:
    """A run folder."""

    folder: Path

    @property
    def facts(self) -> dict[str, Any]:
        return json.loads((self.folder / "run.json").read_text())

    def texts(self) -> dict[str, str]:
        return {name: (self.folder / name).read_text() for name in TEXTS}


def finished(folder: Path, norm: str, privacy: str) -> Finished:
    with pytest.MonkeyPatch.context() as patch:
        patch.chdir(folder)
        write_images(folder)
        shown = train(recipe(norm, privacy), "--out", "run")
    assert shown.exit_code == 0, shown.output
    return Finished(folder / "run")


@pytest.fixture(scope="module")
def public(tmp_path_factory: pytest.TempPathFactory) -> Finished:
    return finished(tmp_path_factory.mktemp("public"), "public", "epsilon = 2.5")


@pytest.fixture(scope="module")
def exact(tmp_path_factory: pytest.TempPathFactory) -> Finished:
    return finished(tmp_path_factory.mktemp("exact"), "per-example-exact", "epsilon = 2.5")


@pytest.fixture(scope="module")
def group(tmp_path_factory: pytest.TempPathFactory) -> Finished:
    """By options alone."""
    folder = tmp_path_factory.mktemp("group")
    write_images(folder)
    data = ["--data", folder / "mine.npz", "--classes", 2, "--size", 200]
    own = [*data, "--model", "papers.davody_2020.networks:bn_300_100"]
    settings = ["--batch-norm", "group", "--epochs", 1, "--batch-size", 50, "--delta", 1e-3, "--out", folder / "run"]
    shown = train(*own, *settings)
    assert shown.exit_code == 0, shown.output
    return Finished(folder / "run")


def test_public_examples_are_named_in_what_a_run_leaves(public: Finished) -> None:
    statement = " ".join(public.texts()["privacy.txt"].split())
    assert 'The norm in the place of batch norm ("public") takes statistics from 16 examples of others.npz' in statement
    assert 0 < public.facts["epsilon"] <= 2.5


@pytest.mark.parametrize("norm", ["public", "group", "exact"])
def test_the_report_says_how_to_load_a_model_with_its_norms(
    norm: str, request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch
) -> None:
    run: Finished = request.getfixturevalue(norm)
    assert run.facts["recipe"]["model"]["batch_norm"] == {"exact": "per-example-exact"}.get(norm, norm)
    monkeypatch.chdir(run.folder)
    code = html.unescape(re.findall(r"<code>(.*?)</code>", run.texts()["report.html"], re.DOTALL)[0])
    names: dict = {}
    exec(code.replace('Path("others.npz")', 'Path("../others.npz")'), names)
    with np.load("../mine.npz") as test, torch.no_grad():
        right = names["model"](torch.as_tensor(test["x_test"])).argmax(1).numpy() == test["y_test"]
    assert right.mean() == pytest.approx(run.facts["test_accuracy"])


@pytest.mark.parametrize(
    ("norm", "privacy", "options", "messages"),
    [
        ("batch", "max_grad_norm = 0.0", [], ["expected batch_norm to be one of public,", "max_grad_norm=0.0"]),
        ("public", "", ["--public", "larger.npz"], ["larger.npz have shape (1, 7, 6), those of mine.npz (1, 6, 6)"]),
        ("public", "", ["--public", "./mine.npz"], ["'./mine.npz' is the set that is trained on"]),
        ("public", "", ["--public-examples", 1], ["fewer have no variance"]),
        ("public", "", ["--batch-norm", "group"], ["not group; leave them out"]),
    ],
)
def test_bad_input_is_a_message_and_leaves_nothing(
    norm: str, privacy: str, options: list[object], messages: list[str]
) -> None:
    text = recipe(norm, privacy)
    before = tree(Path())
    shown = train(text, *options)
    assert shown.exit_code == 2, shown.output
    for message in messages:
        assert message in shown.output.replace("\n", " ")
    assert tree(Path()) == before


def test_batch_norm_that_nobody_asked_to_replace_is_refused() -> None:
    Path("recipe.toml").write_text(re.sub(r"batch_norm = .*\n|\[public\][^[]*", "", RECIPE).format(privacy=""))
    shown = train("recipe.toml")
    assert shown.exit_code == 2
    assert "BatchNorm1d mixes examples" in shown.output
