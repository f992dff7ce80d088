"""``noisette train`` with norms that stand for batch norm: public examples, and runs that have no claim."""

from __future__ import annotations

import html
import json
import re
import signal
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from click.testing import Result
from rich.progress import Progress
from typer.testing import CliRunner

from noisette.cli import app
from noisette.cli.watch import Watch

RECIPE = """
[data]
name = "mine.npz"
classes = 2
size = 200
[model]
name = "bn-lenet-300-100"
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
FILES = {"model.safetensors", "privacy.txt", "report.html", "run.json"}


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
    """A run folder, what the terminal said at the end, and what the progress bar said on the way."""

    folder: Path
    shown: str
    status: list[str]

    @property
    def facts(self) -> dict[str, Any]:
        return json.loads((self.folder / "run.json").read_text())

    def texts(self) -> dict[str, str]:
        return {name: (self.folder / name).read_text() for name in FILES - {"model.safetensors"}}


def finished(folder: Path, norm: str, privacy: str, *options: object) -> Finished:
    status: list[str] = []
    update = Progress.update

    def spy(progress: Progress, *args: Any, **changes: Any) -> None:
        status.append(str(changes.get("status")))
        update(progress, *args, **changes)

    with pytest.MonkeyPatch.context() as patch:
        patch.chdir(folder)
        patch.setattr(Progress, "update", spy)
        write_images(folder)
        shown = train(recipe(norm, privacy), "--out", "run", *options)
    assert shown.exit_code == 0, shown.output
    return Finished(folder / "run", shown.output, status)


@pytest.fixture(scope="module")
def mixture(tmp_path_factory: pytest.TempPathFactory) -> Finished:
    return finished(tmp_path_factory.mktemp("mixture"), "mixture", "noise_multiplier = 1.7")


@pytest.fixture(scope="module")
def public(tmp_path_factory: pytest.TempPathFactory) -> Finished:
    return finished(tmp_path_factory.mktemp("public"), "public", "epsilon = 2.5")


@pytest.fixture(scope="module")
def group(tmp_path_factory: pytest.TempPathFactory) -> Finished:
    """By options alone."""
    folder = tmp_path_factory.mktemp("group")
    write_images(folder)
    own = ["--data", folder / "mine.npz", "--classes", 2, "--size", 200, "--model", "bn-lenet-300-100"]
    settings = ["--batch-norm", "group", "--epochs", 1, "--batch-size", 50, "--delta", 1e-3, "--out", folder / "run"]
    shown = train(*own, *settings)
    assert shown.exit_code == 0, shown.output
    return Finished(folder / "run", shown.output, [])


def prices(text: str) -> list[str]:
    """Whatever looks like the price of a run: an epsilon or a delta with a number."""
    return re.findall(r"(?:epsilon|delta|budget|ε|δ)\W{0,12}\d", html.unescape(text), re.IGNORECASE)


def test_a_run_without_a_claim_says_so_everywhere_and_nowhere_an_epsilon(mixture: Finished, public: Finished) -> None:
    assert tree(mixture.folder) == FILES
    run = mixture.facts
    assert run["claim"] is False
    assert "batch_norm" in run["no_claim_because"]
    names = ("epsilon", "delta", "budget", "accountant", "tail_delta", "steps", "ledger_head")
    assert [run[name] for name in names] == [None] * 7
    assert {point["epsilon"] for point in run["points"]} == {None}
    assert (run["batch_norm"], run["public_data"], run["public_examples"]) == ("mixture", "others.npz", 16)
    assert run["steps_taken"] == run["steps_planned"] == 4
    texts = mixture.texts()
    assert "no claim" in mixture.shown
    assert "Nothing. This run has no privacy claim." in texts["privacy.txt"]
    assert "no privacy claim" in texts["report.html"].partition("</h1>")[0]
    assert mixture.status
    assert all("no privacy claim" in status for status in mixture.status)
    weights = (mixture.folder / "model.safetensors").read_bytes().decode("latin1")
    assert [prices(text) for text in (mixture.shown, *mixture.status, *texts.values(), weights)] == [[]] * (
        5 + len(mixture.status)
    )
    with_prices = [public.shown, *public.status, *public.texts().values()]
    assert all(prices(text) for text in with_prices), "the search finds what there is to find"


def test_public_examples_are_named_in_what_a_run_leaves(public: Finished) -> None:
    statement = " ".join(public.texts()["privacy.txt"].split())
    assert 'Batch norm ("public") takes statistics from 16 examples of others.npz' in statement
    assert public.facts["claim"] is True
    assert 0 < public.facts["epsilon"] <= 2.5


@pytest.mark.parametrize("norm", ["public", "group", "mixture"])
def test_the_report_says_how_to_load_a_model_with_its_norms(norm: str, request: pytest.FixtureRequest) -> None:
    run: Finished = request.getfixturevalue(norm)
    assert run.facts["batch_norm"] == norm
    code = html.unescape(re.findall(r"<code>(.*?)</code>", run.texts()["report.html"], re.DOTALL)[0])
    code = code.replace("classes=..., size=...", "classes=2, size=40").replace('"model.', f'"{run.folder}/model.')
    names: dict = {}
    exec(code, names)
    with np.load("mine.npz") as test, torch.no_grad():
        right = names["model"](torch.as_tensor(test["x_test"])).argmax(1).numpy() == test["y_test"]
    assert right.mean() == pytest.approx(run.facts["test_accuracy"])


@pytest.mark.parametrize(
    ("norm", "privacy", "options", "messages"),
    [
        ("mixture", "epsilon = 2.0", [], ["no privacy claim", "leave out epsilon=2", "give privacy.noise_multiplier"]),
        ("mixture", "noise_multiplier = 1.0", ["--epsilon", 2], ["leave out epsilon=2"]),
        ("batch", "max_grad_norm = 0.0", [], ["expected batch_norm to be one of public,", "max_grad_norm=0.0"]),
        ("public", "", ["--public", "larger.npz"], ["larger.npz have shape (1, 7, 6), those of mine.npz (1, 6, 6)"]),
        ("public", "", ["--public", "./mine.npz"], ["'./mine.npz' is the set that is trained on"]),
        ("public", "", ["--public", "absent"], ["there is no data set and no file 'absent'"]),
        ("public", "", ["--public-examples", 41], ["others.npz has 40 examples, fewer than the 41"]),
        ("public", "", ["--public-examples", 1], ["fewer have no variance"]),
        ("public", "", ["--batch-norm", "group"], ["not group; leave them out"]),
        ("public", "", ["--model", "linear"], ["no batch norm that batch_norm"]),
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


def stop_at(step: int, number: signal.Signals, monkeypatch: pytest.MonkeyPatch) -> None:
    shown = Watch.on_step

    def on_step(watch, run, point) -> None:
        shown(watch, run, point)
        if point.step == step:
            signal.raise_signal(number)

    monkeypatch.setattr(Watch, "on_step", on_step)


def test_a_run_with_public_examples_is_put_off_and_goes_on(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    text = recipe("public", "epsilon = 2.5")
    with monkeypatch.context() as patch:
        stop_at(2, signal.SIGTERM, patch)
        assert train(text, "--out", "run").exit_code == 143
    monkeypatch.chdir("/")
    shown = train("--resume", tmp_path / "run")
    assert shown.exit_code == 0, shown.output
    run = json.loads((tmp_path / "run" / "run.json").read_text())
    assert (run["steps_taken"], run["resumed"], run["public_examples"]) == (4, 1, 16)


def test_a_run_without_a_claim_cannot_be_gone_on_with(monkeypatch: pytest.MonkeyPatch) -> None:
    text = recipe("mixture", "noise_multiplier = 1.7")
    before = tree(Path())
    with monkeypatch.context() as patch:
        during: list[set[str]] = []
        stop_at(2, signal.SIGTERM, patch)
        leave = Watch.__exit__

        def leave_looking_around(watch: Watch, *error: Any) -> None:
            during.append(tree(Path("run.unfinished-1")))
            leave(watch, *error)

        patch.setattr(Watch, "__exit__", leave_looking_around)
        shown = train(text, "--out", "run")
    assert shown.exit_code == 143
    assert "Nothing was kept" in shown.output
    assert during == [set()], "nothing is written before the run is whole"
    assert tree(Path()) == before
    shown = train("--resume", "run")
    assert shown.exit_code == 2
    assert "there is no such run" in shown.output
