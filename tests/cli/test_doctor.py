"""The command that says whether a model can be trained privately: accepted and refused models, and wrong targets."""

import pytest
from click.testing import Result

from command_line import noisette, refusal, succeeded

MODELS = """
import torch
import torch.nn.functional as F
from torch import nn


def mlp():
    return nn.Sequential(nn.Flatten(), nn.Linear(64, 16), nn.ReLU(), nn.Linear(16, 10))

def with_loss():
    return mlp(), lambda model, x, y: F.cross_entropy(model(x), y), (torch.randn(5, 64), torch.arange(5))

def batch_norm():
    return nn.Sequential(nn.Flatten(), nn.Linear(64, 6), nn.BatchNorm1d(6), nn.Linear(6, 10))

def batch_norm_asleep():
    model = batch_norm()
    model[2].eval()
    return model

def batch_norm_replaced():
    from noisette.nn import convert_batch_norm

    model = batch_norm()
    convert_batch_norm(model, to=nn.GroupNorm)
    return model

class ByName(nn.Module):
    def __init__(self):
        super().__init__()
        self.layer = nn.Linear(4, 3)

    def forward(self, *, values, mask, scale=1.0):
        return self.layer(values * mask.unsqueeze(-1)) * scale

def inputs_by_name():
    return ByName(), {"values": torch.randn(2, 4), "mask": torch.ones(2), "scale": 2.0}

def like_a_recipe(shape, classes):
    return nn.Sequential(nn.Flatten(), nn.Linear(shape[0] * shape[1] * shape[2], classes))

def with_defaults(shape=(3,), classes=2):
    return nn.Sequential(nn.Flatten(), nn.Linear(torch.Size(shape).numel(), classes))

def lipschitz(shape, classes):
    from noisette import LipschitzBound
    from noisette.nn.lipschitz import BoundedInput, GroupSort2, SpectralLinear, TauCrossEntropy

    layers = BoundedInput(2.0), nn.Flatten(), SpectralLinear(64, 8), GroupSort2(), SpectralLinear(8, classes)
    model = nn.Sequential(*layers)
    loss = TauCrossEntropy(tau=1.0)
    bound = LipschitzBound(model, loss=loss, input_shape=shape, slack=0.0)
    return bound, lambda model, x, y: loss(model(x), y), (torch.randn(4, *shape), torch.arange(4))

constant = 7

class ByKey(nn.Module):
    def __init__(self):
        super().__init__()
        self.net = nn.Linear(6, 3)

    def forward(self, batch):
        return self.net(dict(batch.items())["x"])

def by_key():
    return ByKey()

def with_a_dictionary():
    return ByKey(), ({"x": torch.zeros(2, 6)},)

def raises():
    return {}["width"]
"""


@pytest.fixture
def doctor(tmp_path, monkeypatch):
    (tmp_path / "patients.py").write_text(MODELS)
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.setenv("COLUMNS", "400")

    def run(name: str, *options: str) -> Result:
        return noisette("doctor", f"patients:{name}" if name and ":" not in name else name or "mlp", *options)

    return run


def rows(shown: Result) -> list[list[str]]:
    return [line.split() for line in shown.output.splitlines()]


def test_an_mlp_is_accepted_with_its_rules_and_cost(doctor):
    shown = succeeded(doctor("mlp", "--data", "digits", "--examples", "7"))
    [weight] = [row for row in rows(shown) if row[:1] == ["1.weight"]]
    assert (weight[1:3], weight[-2:]) == (["linear", "(weight)"], ["linear_weight", "1,024"])
    said = ["A private step of these 7 examples takes", "a plain one", "It ran as one graph of", "Accepted: its loss"]
    said.append("train --model patients:mlp would call it with (shape of an example, number")
    assert [words for words in said if words not in shown.output] == []


def test_batch_norm_is_refused_and_each_remedy_works(doctor):
    shown = doctor("batch_norm", "--data", "digits")
    assert shown.exit_code == 1
    assert "2  BatchNorm1d mixes examples: call .eval() on it, or put GroupNorm or PublicBatchNorm in" in shown.output
    for cured in ("batch_norm_asleep", "batch_norm_replaced"):
        assert doctor(cured, "--data", "digits").exit_code == 0


def test_inputs_are_given_in_each_form(doctor):
    for name, options in [
        ("with_loss", ()),
        ("inputs_by_name", ()),
        ("with_a_dictionary", ()),
        ("like_a_recipe", ("--input-shape", "1,8,8")),
        ("like_a_recipe", ("--data", "digits")),
        ("with_defaults", ("--data", "digits")),
        ("lipschitz", ("--input-shape", "1,8,8")),
        ("mlp", ("--data", "digits", "--bf16")),
    ]:
        succeeded(doctor(name, *options))


@pytest.mark.parametrize(
    ("name", "options", "message"),
    [
        ("mlp", (), "give the shape of one example"),
        ("mlp", ("--input-shape", "9"), "does not accept its inputs"),
        ("by_key", ("--input-shape", "6"), "For a dictionary as the one argument"),
        ("constant", ("--data", "digits"), "expected a function that returns a model"),
        ("lipschitz", (), "takes the shape of an example"),
        ("", (), "expected MODULE:CALLABLE"),
        ("raises", (), "patients.py, line 72: KeyError: 'width'"),
    ],
)
def test_invalid_input_is_one_message_without_a_traceback(doctor, name, options, message):
    refusal(doctor(name, *options), message)
