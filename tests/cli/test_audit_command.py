import json
from dataclasses import replace
from pathlib import Path

import pytest
import torch
from click.testing import Result
from safetensors.torch import save_file

from command_line import FILES, noisette, refusal, reseal, succeeded, train
from noisette.audit.audited_run import AuditedRun
from noisette.nn.models import build
from noisette.training.recipe import Recipe
from small_loop import scale_noise

RECIPE = """
data.name = "digits"
model.name = "linear"
privacy = {epsilon = 8.0, delta = 1e-4}
training = {epochs = 2, batch_size = 200}
"""


@pytest.fixture(scope="module")
def run(tmp_path_factory):
    place = tmp_path_factory.mktemp("runs") / "digits"
    (place.parent / "quick.toml").write_text(RECIPE)
    succeeded(train(place.parent / "quick.toml", "--out", place))
    return place


def audit(place: Path, *options: str, out: Path) -> Result:
    return noisette("audit", place, "--out", out, *options)


def test_a_run_is_audited_with_its_own_parameters(run, tmp_path):
    done = succeeded(audit(run, out=tmp_path / "a" / "b"))
    assert {file.name for file in (tmp_path / "a" / "b").iterdir()} == {"audit.json"}
    found = json.loads((tmp_path / "a" / "b" / "audit.json").read_text())
    facts = json.loads((run / "run.json").read_text())
    assert found["guarantee"]["event"] == facts["event"]
    assert found["step"]["noise_multiplier"] == facts["noise_multiplier"]
    assert 0.8 * 1e-4 < found["cost"]["least"] <= found["cost"]["delta"] == 1e-4
    assert found["guarantee"]["epsilon"] == facts["epsilon"]
    assert 0 < found["step"]["certified_mu"] < found["step"]["guaranteed_mu"] == 1 / facts["noise_multiplier"]
    assert found["neighbours"]["pairs"] == 30
    assert 0.99 < found["neighbours"]["worst"] < 1 + 2**-13
    for name, check in found["step"]["checks"].items():
        assert f"{name} {check['z']:+.1f} ({check['limit']:.1f})" in done.output
    assert "verdict  consistent" in done.output
    assert {file.name for file in run.iterdir()} == FILES, "the run folder is unchanged"


def test_a_recipe_is_audited_without_a_run(run, tmp_path):
    succeeded(audit(run.parent / "quick.toml", "--whole-run", "--pairs", "0", out=tmp_path))
    found, facts = json.loads((tmp_path / "audit.json").read_text()), json.loads((run / "run.json").read_text())
    assert found["guarantee"]["event"] == facts["event"]
    assert found["guarantee"]["steps"] == facts["steps_planned"]
    assert "neighbours" not in found
    percent, small = found["whole_run"]["points"]
    assert 0 < percent["certified"] < percent["guaranteed"]
    assert small["delta"] == 1e-5


EACH_LAYER = RECIPE.replace("delta = 1e-4", 'delta = 1e-4, clipping = "per-layer"').replace('"linear"', '"mlp"')


def test_a_run_folder_contains_the_whole_recipe(tmp_path):
    recipe, place = tmp_path / "recipe.toml", tmp_path / "run"
    recipe.write_text(EACH_LAYER)
    succeeded(train(recipe, "--out", place))
    told, given = AuditedRun.of_run(place).recipe, Recipe.read(recipe)
    assert replace(told, privacy=given.privacy) == given
    assert told.privacy.max_grad_norm == pytest.approx(given.privacy.max_grad_norm)
    succeeded(audit(place, "--pairs", "4", out=tmp_path / "out"))
    assert json.loads((tmp_path / "out" / "audit.json").read_text())["neighbours"]["worst"] < 1 + 2**-13


def test_a_leak_is_found_and_reported(run, tmp_path, monkeypatch):
    scale_noise(monkeypatch, 0.5)
    done = audit(run, "--pairs", "0", out=tmp_path)
    assert done.exit_code == 1
    assert "Found: one record moves the release by" in done.output
    assert "verdict  violation" in done.output
    assert json.loads((tmp_path / "audit.json").read_text())["step"]["verdict"] == "violation"


def changed(run: Path, place: Path, **facts: object) -> Path:
    place.mkdir()
    for file in run.iterdir():
        (place / file.name).write_bytes(file.read_bytes())
    reseal(place, json.loads((run / "run.json").read_text()) | facts)
    return place


def test_invalid_input_is_reported_and_nothing_is_written(run, tmp_path):
    for place, message in ((run / "nowhere", "there is no"), (run.parent, "contains no run.json")):
        refusal(audit(place, out=tmp_path / "out"), message)
        assert not (tmp_path / "out").exists()


def test_a_run_that_contradicts_its_ledger_is_refused(run, tmp_path):
    quiet = {"event": json.loads((run / "run.json").read_text())["event"] | {"noise_multiplier": 0.01}}
    for facts, message in ((quiet, "contains 0 of them"), ({"steps": 10_000}, "states 10000 releases")):
        refusal(audit(changed(run, tmp_path / message, **facts), out=tmp_path / "out"), message)


def test_a_cost_that_is_too_small_is_found(run, tmp_path):
    epsilon = json.loads((run / "run.json").read_text())["epsilon"]
    done = audit(changed(run, tmp_path / "cheap", epsilon=0.97 * epsilon), "--pairs", "0", "--steps", "2", out=tmp_path)
    assert done.exit_code == 1
    assert f"Found: at epsilon={0.97 * epsilon:.4g} delta is" in done.output


def test_a_run_from_public_weights_is_audited_whole_where_their_file_is(tmp_path, monkeypatch):
    first, linear = tmp_path / "first.safetensors", build("linear", (1, 8, 8), 10)
    save_file({name: torch.ones_like(value) for name, value in linear.state_dict().items()}, first)
    recipe = RECIPE + f"model.weights = {str(first)!r}\nmodel.frozen = []\n"
    (tmp_path / "from.toml").write_text(recipe)
    place = tmp_path / "run"
    done = succeeded(train(tmp_path / "from.toml", "--out", place))
    monkeypatch.chdir(tmp_path)
    done = succeeded(audit(place, "--pairs", "2", "--steps", "2", out=tmp_path / "audit"))
    assert "neighbours" in json.loads((tmp_path / "audit" / "audit.json").read_text())
    save_file({name: torch.zeros_like(value) for name, value in linear.state_dict().items()}, first)
    done = audit(place, "--pairs", "2", "--steps", "2", out=tmp_path / "other")
    assert "does not contain its public weights" in " ".join(done.output.split())
