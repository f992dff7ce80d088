import json
import os
import re
import shutil
import signal
from pathlib import Path

import dp_accounting
import numpy as np
import pytest
from dp_accounting.pld import PLDAccountant

from command_line import FILES, facts, full_disk, noisette, refusal, succeeded, train, tree
from noisette.nn import models

QUICK = ("--epochs", 3, "--batch-size", 1437)  # three steps over all examples
MODELS = """
import torch
from torch import nn

def linear(shape, classes):
    return nn.Sequential(nn.Flatten(), nn.Linear(64, classes))

def wrong_output(shape, classes):
    return nn.Sequential(nn.Flatten(), nn.Linear(64, classes + 1))

def broken(shape, classes):
    return nn.Linear({}["width"], classes)

def normed(shape, classes):
    return nn.Sequential(nn.Flatten(), nn.BatchNorm1d(64), nn.Linear(64, classes))
"""


@pytest.fixture(scope="module")
def short_run(tmp_path_factory):
    out = tmp_path_factory.mktemp("runs") / "digits"
    return out, train("--epochs", 2, "--epsilon", 1, "--delta", 2e-4, "--seed", 3, "--out", out)


def test_a_run_leaves_its_folder_and_says_so(short_run):
    out, shown = short_run
    assert shown.exit_code == 0, shown.output
    assert tree(out) == FILES
    assert tree(out.parent) == {out.name} | {f"{out.name}/{name}" for name in FILES}
    assert f"{facts(out)['test_accuracy']:.1%}".replace("%", " %") in shown.output
    assert "epsilon 1.00, delta 2e-4" in shown.output
    assert "Warning" not in shown.output
    assert "report.html" in shown.output
    before = os.umask(0)
    os.umask(before)
    assert (out / "report.html").stat().st_mode & 0o777 == 0o666 & ~before
    assert (out / "ledger.jsonl").stat().st_mode & 0o777 == 0o600


def test_run_json_holds_what_was_asked_and_what_came_of_it(short_run):
    run = facts(short_run[0])
    recipe = run["recipe"]
    assert (run["data"], recipe["model"]["name"], run["private"]) == ("digits", "cnn", True)
    assert (recipe["privacy"]["epsilon"], recipe["privacy"]["delta"]) == (1, 2e-4)
    assert (recipe["training"]["epochs"], recipe["training"]["seed"]) == (2, 3)
    assert run["sampling_rate"] == recipe["training"]["batch_size"] / run["declared_size"]
    assert run["steps"] == run["steps_taken"] == round(2 / run["sampling_rate"])
    assert 0.99 < run["epsilon"] <= 1
    assert run["points"][-1]["test_accuracy"] == run["test_accuracy"]


def test_epsilon_follows_from_the_ledger_alone(short_run):
    lines = [json.loads(line) for line in (short_run[0] / "ledger.jsonl").read_text().splitlines()]
    sign, independent = {"reserve": 1, "release": -1, "commit": 0}, PLDAccountant()
    for line in lines:
        noise = dp_accounting.GaussianDpEvent(line["noise_multiplier"])
        times = sign[line["kind"]] * line["steps"]
        if times:
            assert times > 0, "nothing was given back"
            independent.compose(dp_accounting.PoissonSampledDpEvent(line["sampling_rate"], noise), times)
    assert independent.get_epsilon(2e-4) == pytest.approx(facts(short_run[0])["epsilon"], rel=0.005)


def own_data(path: Path, *, records: int) -> list[object]:
    random = np.random.default_rng(0)
    inputs, targets = random.normal(size=(records, 4)).astype(np.float32), random.integers(0, 2, records)
    np.savez(path, x_train=inputs, y_train=targets)
    return ["--data", path, "--classes", 2, "--size", 500, "--epsilon", 1, "--epochs", 2, "--batch-size", 50]


def test_nothing_published_follows_the_number_of_records(tmp_path):
    published, changing = [], ("seconds", "ledger_head", "sealed")
    for records in (347, 401):
        out = tmp_path / f"out{records}"
        shown = succeeded(train(*own_data(tmp_path / "own.npz", records=records), "--model", "linear", "--out", out))
        texts = [shown.output, *((out / name).read_text() for name in FILES - {"model.safetensors"})]
        assert not any(re.search(rf"\b{records}\b", text) for text in texts)
        published.append({k: v for k, v in facts(out).items() if k not in changing})
    assert published[0] == published[1]


RECIPE = """
model.name = "trained_models:linear"
privacy = {epsilon = 0.7, delta = 1e-4}
training = {epochs = 1, lr = 0.5}
"""


@pytest.mark.usefixtures("own_models")
def test_options_go_before_the_recipe_and_the_recipe_before_the_defaults(tmp_path):
    (tmp_path / "recipe.toml").write_text(RECIPE)
    given = ("--clipping", "automatic", "--engine", "reweight-gp", "--epsilon", 1e9)
    shown = succeeded(train("recipe.toml", "--lr", 0.25, "--batch-size", 300, *given))
    assert "Warning: epsilon 1e+09 lets a record" in shown.stderr
    run = facts(tmp_path / "runs" / "digits")
    recipe = run["recipe"]
    assert (recipe["model"]["name"], run["parameters"]) == ("trained_models:linear", 650)
    assert (recipe["privacy"]["epsilon"], recipe["privacy"]["delta"], recipe["training"]["epochs"]) == (1e9, 1e-4, 1)
    assert (recipe["training"]["lr"], recipe["training"]["batch_size"]) == (0.25, 300)
    assert (recipe["privacy"]["clipping"], recipe["privacy"]["engine"]) == ("automatic", "reweight-gp")


@pytest.fixture
def own_models(tmp_path, monkeypatch):
    folder = tmp_path.with_name(tmp_path.name + "_models")
    folder.mkdir()
    (folder / "trained_models.py").write_text(MODELS)
    monkeypatch.syspath_prepend(folder)


@pytest.mark.usefixtures("own_models")
@pytest.mark.parametrize(
    ("options", "message"),
    [
        (["--model", "trained_models:absent"], "no model 'trained_models:absent'"),
        (["--model", "trained_models:wrong_output"], "does not fit the labels"),
        (["--model", "trained_models:normed"], "BatchNorm1d mixes examples"),
        (["--classes", 3], "takes no declaration"),
        (["--data", "digit"], "did you mean 'digits'?"),
        (["--class-weights", ",".join(f"{k}=1" for k in range(9)) + ",x=2"], "; 'x' is no class, '9' has none"),
        (["--class-weights", "0"], "--class-weights as NAME=NUMBER for each class"),
        (["--model", "trained_models:broken"], "but: trained_models.py, line 12: KeyError: 'width'"),
    ],
)
def test_bad_input_is_a_message_and_exit_code_2_and_leaves_nothing(options, message, tmp_path):
    refusal(train(*QUICK, *options), message)
    assert tree(tmp_path) == set()


def test_a_run_without_privacy_is_called_so_and_leaves_no_ledger(tmp_path):
    shown = succeeded(train("--epochs", 5, "--model", "linear", "--without-privacy"))
    assert "NOT PRIVATE" in shown.output
    assert "epsilon" not in shown.output
    out = tmp_path / "runs" / "digits-not-private"
    assert tree(out) == {"model.safetensors", "report.html", "run.json"}
    run = facts(out)
    assert (run["private"], run["recipe"].get("privacy"), run["steps_taken"]) == (False, None, 20)
    assert run["test_accuracy"] > 0.85
    refusal(noisette("audit", out), "without privacy")
    assert noisette("ledger", "price", out, "--delta", 1e-5).exit_code == 2
    assert train("--resume", out).exit_code == 2


def test_a_disk_too_full_to_save_the_run_stops_it_before_the_first_step(short_run, tmp_path):
    shutil.copytree(short_run[0], tmp_path / "run")
    before = tree(tmp_path)
    with full_disk(after=50_000):  # the weights take more
        shown = refusal(train(*QUICK, "--out", "run"), "checkpoint")
    assert "older run" not in shown.output
    assert tree(tmp_path) == before


def test_a_disk_too_full_for_the_report_leaves_the_older_run_and_what_can_be_gone_on_with(short_run, tmp_path):
    shutil.copytree(short_run[0], tmp_path / "run")
    older = (tmp_path / "run" / "run.json").read_text()
    with full_disk(after=15_000):  # the report takes more, the weights less
        shown = refusal(train(*QUICK, "--model", "linear", "--out", "run"))
    assert (tmp_path / "run" / "run.json").read_text() == older
    assert tree(tmp_path / "run.unfinished-1") >= {"ledger.jsonl", "checkpoint/checkpoint.safetensors"}
    assert "report.html" not in tree(tmp_path / "run.unfinished-1")
    assert "run.unfinished-1/ledger.jsonl" in shown.output
    assert f"noisette train --resume {tmp_path}/run.unfinished-1" in shown.output.replace("\n", "")
    shown = succeeded(train("--resume", "run"))
    assert f"The older run is now {tmp_path}/run.replaced-1." in shown.stderr.replace("\n", " ")
    assert tree(tmp_path / "run") == tree(tmp_path / "run.replaced-1") == FILES
    assert (tmp_path / "run.replaced-1" / "run.json").read_text() == older
    run = facts(tmp_path / "run")
    assert (run["steps_taken"], run["steps_lost"], run["resumed"]) == (3, 0, 1)
    assert run["recipe"]["model"]["name"] == "linear"
    assert run["test_accuracy"] is not None


@pytest.mark.parametrize(("number", "code"), [(signal.SIGINT, 130), (signal.SIGTERM, 143)])
def test_a_signal_before_the_first_step_leaves_nothing(number, code, tmp_path, monkeypatch):
    monkeypatch.setattr(models, "build", lambda *_: signal.raise_signal(number))
    shown = train()
    assert shown.exit_code == code
    assert "This command has spent nothing" in shown.output
    assert tree(tmp_path) == set()
