from __future__ import annotations

from pathlib import Path

import pytest
from click.testing import Result
from typer.testing import CliRunner

from models_by_key import BY_KEY
from noisette.cli import app

MODELS = (
    """
import torch
from torch import nn


def mlp():
    return nn.Sequential(nn.Linear(6, 5), nn.ReLU(), nn.Linear(5, 3))

def tokens():
    return nn.Embedding(11, 4), torch.zeros(2, 7, dtype=torch.long)

class ByName(nn.Module):
    def __init__(self):
        super().__init__()
        self.layer = nn.Linear(4, 3)

    def forward(self, *, values, mask):
        return self.layer(values * mask)

def inputs_by_name():
    return ByName(), {"values": torch.ones(2, 4), "mask": torch.ones(2, 4)}

def normed():
    return nn.Sequential(nn.Linear(6, 5), nn.BatchNorm1d(5))

class Determined(nn.Module):
    def __init__(self):
        super().__init__()
        self.matrix = nn.Parameter(torch.eye(6))
        self.idle = nn.Parameter(torch.zeros(2))

    def forward(self, x):
        return x * torch.cdist(x, self.matrix)

def no_rule():
    return Determined()

def like_a_recipe(shape, classes):
    return nn.Sequential(nn.Flatten(), nn.Linear(shape[0] * shape[1], classes))

def clipless():
    from noisette import LipschitzBound
    from noisette.nn.lipschitz import BoundedInput, GroupSort2, SpectralLinear, TauCrossEntropy
    model = nn.Sequential(BoundedInput(2.0), SpectralLinear(4, 4), GroupSort2(), SpectralLinear(4, 3))
    return LipschitzBound(model, loss=TauCrossEntropy(tau=1.0), input_shape=(4,), slack=0.0)

def three(a, b, c): ...

def number():
    return 7

constant = 7
"""
    + BY_KEY
)


@pytest.fixture
def explain(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    (tmp_path / "explained_models.py").write_text(MODELS)
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.setenv("COLUMNS", "160")

    def run(name: str, shape: str | None = None, *options: str) -> Result:
        target = name if ":" in name else f"explained_models:{name}"
        return CliRunner().invoke(app, ["explain", target, *(["--input-shape", shape] if shape else []), *options])

    return run


def test_inputs_by_name_are_given_by_name(explain) -> None:
    shown = explain("inputs_by_name")
    assert shown.exit_code == 0, shown.output
    assert "layer.weight" in shown.output
    assert "The step is captured as one graph" in shown.output


def test_each_use_is_listed_with_its_rule_and_size(explain) -> None:
    shown = explain("mlp", "6")
    assert shown.exit_code == 0
    rows = [line.split() for line in shown.output.splitlines()]
    assert ["0.weight", "linear", "(weight)", "2", "×", "6", "linear_weight", "30"] in rows
    assert ["2.bias", "linear", "(bias)", "2", "×", "5", "linear_bias", "3"] in rows
    assert "Accepted" in shown.output


def test_example_inputs_are_returned_with_the_model(explain) -> None:
    shown = explain("tokens")
    assert shown.exit_code == 0
    assert "embedding_weight" in shown.output


def test_a_callable_of_a_recipe_is_called_as_training_does(explain) -> None:
    shown = explain("like_a_recipe", "4,2")
    assert shown.exit_code == 0
    assert " 80" in shown.output


def test_a_model_that_mixes_examples_is_refused(explain) -> None:
    shown = explain("normed", "6")
    assert shown.exit_code == 1
    assert "BatchNorm1d mixes examples: put PublicBatchNorm or GroupNorm" in shown.output


@pytest.mark.parametrize("name", ["public", "per-example", "per-example-exact", "frozen", "group", "layer"])
def test_a_replacement_of_batch_norm_is_accepted(name: str, explain) -> None:
    shown = explain("normed", "6", "--batch-norm", name)
    assert shown.exit_code == 0, shown.output
    assert "Accepted" in shown.output


def test_an_unknown_norm_in_the_place_of_batch_norm_is_refused(explain) -> None:
    shown = explain("normed", "6", "--batch-norm", "batch")
    assert shown.exit_code == 2
    assert "expected --batch-norm to be one of public, per-example" in shown.output
    shown = explain("mlp", "6", "--batch-norm", "public")
    assert shown.exit_code == 2
    assert "no batch norm" in shown.output


def test_an_operation_without_a_rule_is_refused_and_an_idle_parameter_named(explain) -> None:
    shown = explain("no_rule", "6")
    assert shown.exit_code == 1
    assert "matrix" in shown.output
    assert "idle: not used in this call" in shown.output
    assert "Refused, for" in shown.output


@pytest.mark.parametrize(
    ("name", "shape", "message"),
    [
        ("mlp", None, "--input-shape"),
        ("mlp", "7", "does not accept its inputs"),
        ("by_key", "6", "or a dictionary of arguments by name. For a dictionary as the one argument"),
        ("mlp", "3,x", "expected --input-shape as whole numbers"),
        ("mlp", "0", "expected --input-shape as whole numbers"),
        ("like_a_recipe", None, "--input-shape"),
        ("three", None, "has 3 required arguments"),
        ("number", "3", "returned a int"),
        ("constant", "3", "expected a function that returns a model"),
        ("missing", "3", "there is no explained_models:missing"),
        ("no_such_module:x", "3", "there is no no_such_module:x"),
    ],
)
def test_invalid_input_is_one_message_and_exit_code_2(name: str, shape: str | None, message: str, explain) -> None:
    shown = explain(name, shape)
    assert shown.exit_code == 2
    assert message in shown.output
    assert shown.output.startswith("Error: ")
    assert "Traceback" not in shown.output


def test_a_target_without_a_colon_is_refused() -> None:
    shown = CliRunner().invoke(app, ["explain", "mlp"])
    assert shown.exit_code == 2
    assert "expected MODULE:CALLABLE" in shown.output


def test_a_lipschitz_bound_is_shown_layer_by_layer(explain) -> None:
    result = explain("clipless")
    assert result.exit_code == 0
    [head, *rows] = [line.split() for line in result.output.splitlines() if line.strip()][:5]
    assert " ".join(head) == "layer input norm gradient at output sensitivity"
    assert rows[0][:3] == ["0", "BoundedInput", "inf"]
    assert rows[1] == ["1", "SpectralLinear", "2", "1.414", "1.weight", "2.828"]
    assert rows[3] == ["3", "SpectralLinear", "2", "1.414", "3.weight", "2.828"]
