"""The preflight as a table: many models that couple examples are refused with the module, valid ones accepted."""

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
import torch.nn.functional as F


class With(nn.Module):
    def __init__(self, forward, **parts):
        super().__init__()
        self._forward = forward
        for name, part in parts.items():
            setattr(self, name, part)

    def forward(self, x):
        return self._forward(self, x)


def then(kind, forward, **parts):
    named = type(kind, (With,), {})
    return nn.Sequential(nn.Flatten(), nn.Linear(64, 6), named(forward, **parts), nn.Linear(6, 10))


def batch_norm():
    return nn.Sequential(nn.Flatten(), nn.Linear(64, 6), nn.BatchNorm1d(6), nn.Linear(6, 10))

class ByName(nn.Module):
    def __init__(self, mixing):
        super().__init__()
        self.layer, self.mixing = nn.Linear(4, 3), mixing

    def forward(self, *, values, mask, scale=1.0):
        x = self.layer(values * mask.unsqueeze(-1)) * scale
        return x - x.mean(0) if self.mixing else x

def inputs_by_name():
    return ByName(False), {"values": torch.randn(2, 4), "mask": torch.ones(2)}

def mixing_inputs_by_name():
    return ByName(True), {"values": torch.randn(2, 4), "mask": torch.ones(2), "scale": 2.0}

def frozen_affine_batch_norm():
    model = batch_norm()
    model[2].requires_grad_(False)
    return model

def hidden_centring():
    return then("Centring", lambda m, x: x - x.mean(0))

def in_batch_softmax():
    return then("Softmax", lambda m, x: (x @ x.t()).softmax(1) @ x)

def sorting_by_length():
    return then("Sorting", lambda m, x: x[x.abs().sum(1).argsort()])

def accumulating_buffer():
    model = then("Running", _running)
    model[2].register_buffer("mean", torch.zeros(6))
    return model

def _running(m, x):
    with torch.no_grad():
        m.mean.mul_(0.9).add_(0.1 * x.mean(0))
    return x - m.mean

def expert_capacity():
    return then("Experts", _experts, gate=nn.Linear(6, 2), a=nn.Linear(6, 6), b=nn.Linear(6, 6))

def _experts(m, x):
    chosen, capacity, y = m.gate(x).argmax(1), -(-5 * len(x) // 8), 0
    for k, expert in enumerate((m.a, m.b)):
        served = (chosen == k) & ((chosen == k).cumsum(0) <= capacity)
        y = y + expert(x) * served.unsqueeze(1)
    return y

def global_counter():
    model = then("Counter", _counted)
    model[2].calls = 0
    return model

def _counted(m, x):
    m.calls += 1
    return x * m.calls

def counts_records():
    model = then("Census", _census)
    model[2].register_buffer("seen", torch.zeros(()))
    return model

def _census(m, x):
    m.seen += len(x)
    return x

def determined():
    class Determined(nn.Module):
        def __init__(self):
            super().__init__()
            self.matrix = nn.Parameter(torch.eye(64))

        def forward(self, x):
            return torch.cdist(x.flatten(1), self.matrix)

    return Determined()



def mlp():
    return nn.Sequential(nn.Flatten(), nn.Linear(64, 16), nn.ReLU(), nn.Linear(16, 10))

def like_a_recipe(shape, classes):
    return nn.Sequential(nn.Flatten(), nn.Linear(shape[0] * shape[1] * shape[2], classes))

def with_inputs():
    return nn.Embedding(11, 4), torch.zeros(2, 7, dtype=torch.long)

def idle():
    model = mlp()
    model.spare = nn.Parameter(torch.zeros(3))
    model.forward = lambda x: nn.Sequential.forward(nn.Sequential(*[model[k] for k in range(4)]), x)
    return model

def lipschitz(shape, classes):
    from noisette import LipschitzBound
    from noisette.nn.lipschitz import BoundedInput, GroupSort2, SpectralLinear, TauCrossEntropy

    layers = BoundedInput(1.0), nn.Flatten(), SpectralLinear(64, 8), GroupSort2(), SpectralLinear(8, classes)
    return LipschitzBound(nn.Sequential(*layers), loss=TauCrossEntropy(tau=1.0), input_shape=shape)

def number():
    return 7

def conv(*then, **kwargs):
    model = nn.Sequential(nn.Conv2d(1, 4, 3, **kwargs), *then, nn.ReLU(), nn.Flatten(), nn.LazyLinear(10))
    model(torch.zeros(1, 1, 8, 8))
    return model

def flat(*then, out=8):
    return nn.Sequential(nn.Flatten(), nn.Linear(64, out), *then)

HARMLESS = {
    "mlp": mlp,
    "plain_conv": lambda: conv(),
    "conv_group_norm": lambda: conv(nn.GroupNorm(2, 4)),
    "conv_instance_norm": lambda: conv(nn.InstanceNorm2d(4)),
    "conv_batch_norm_asleep": lambda: conv(nn.BatchNorm2d(4).eval().requires_grad_(False)),
    "conv_of_uneven_axes": lambda: conv(stride=(2, 1), padding=(0, 1)),
    "conv_groups": lambda: conv(nn.Conv2d(4, 4, 3, groups=2)),
    "conv_max_pool": lambda: conv(nn.MaxPool2d(2)),
    "conv_average_pool": lambda: conv(nn.AdaptiveAvgPool2d(1)),
    "dropout": lambda: flat(nn.Dropout(0.5), nn.Linear(8, 10)),
    "layer_norm": lambda: flat(nn.LayerNorm(8), nn.GELU(), nn.Linear(8, 10)),
    "rms_norm": lambda: flat(nn.RMSNorm(8), nn.Linear(8, 10)),
    "prelu": lambda: flat(nn.PReLU(8), nn.Linear(8, 10)),
    "residual": lambda: then("Residual", lambda m, x: x + m.body(x), body=nn.Linear(6, 6)),
    "twice": lambda: then("Twice", lambda m, x: m.body(m.body(x).tanh()), body=nn.Linear(6, 6)),
    "experts_without_capacity": lambda: then(
        "Mixture", lambda m, x: m.gate(x).softmax(1)[:, :1] * m.a(x) + m.gate(x).softmax(1)[:, 1:] * m.b(x),
        gate=nn.Linear(6, 2), a=nn.Linear(6, 6), b=nn.Linear(6, 6)),
    "sorting_within": lambda: then("SortsWithin", lambda m, x: x.sort(1).values),
    "softmax_within": lambda: then("SoftmaxWithin", lambda m, x: x.softmax(1)),
    "attention_within": lambda: then("Attends", lambda m, x: _attend(m, x), q=nn.Linear(2, 2), k=nn.Linear(2, 2)),
    "frozen_part": lambda: nn.Sequential(flat(nn.Tanh()).requires_grad_(False), nn.Linear(8, 10)),
    "recurrent": lambda: Rows(nn.GRU(8, 5, batch_first=True)),
    "spectral_norm_asleep": lambda: flat(nn.utils.parametrizations.spectral_norm(nn.Linear(8, 10)).eval()),
}

def _attend(m, x):
    y = x.view(-1, 3, 2)
    return F.scaled_dot_product_attention(m.q(y), m.k(y), y).flatten(1)

class Rows(nn.Module):
    def __init__(self, body):
        super().__init__()
        self.body, self.out = body, nn.Linear(5, 10)

    def forward(self, x):
        return self.out(self.body(x.squeeze(1))[0][:, -1])

globals().update(HARMLESS)
"""
    + BY_KEY
)

COUPLED = {
    "batch_norm": r"2  BatchNorm1d mixes examples",
    "frozen_affine_batch_norm": r"2  BatchNorm1d mixes examples",
    "hidden_centring": "2 (Centring) changes the output of an example",
    "in_batch_softmax": "2 (Softmax) changes the output of an example",
    "sorting_by_length": "2 (Sorting) changes the output of an example",
    "accumulating_buffer": "2 (Running) changes the output of an example",
    "expert_capacity": "2 (Experts) changes the output of an example",
    "global_counter": "2 (Counter) changes the output of an example",
    "counts_records": "stores information about its inputs in 2.seen",
}


@pytest.fixture
def doctor(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    (tmp_path / "patients.py").write_text(MODELS)
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.setenv("COLUMNS", "400")

    def run(name: str, *options: str) -> Result:
        target = name if ":" in name else f"patients:{name}"
        return CliRunner().invoke(app, ["doctor", target, *options])

    return run


def harmless() -> list[str]:
    found: dict[str, object] = {"__name__": "patients"}
    exec(MODELS, found)
    return list(found["HARMLESS"])  # type: ignore[call-overload]


@pytest.mark.parametrize("name", COUPLED)
def test_models_that_couple_examples_are_refused_by_name(doctor, name: str) -> None:
    seen = doctor(name, "--data", "digits")
    assert COUPLED[name] in seen.output
    assert "run.backward: refused" in seen.output
    assert seen.exit_code == ("run.accumulate: accepted" not in seen.output)


def test_there_are_twenty_harmless_models() -> None:
    assert len(harmless()) >= 20


@pytest.mark.filterwarnings("ignore:Lazy modules")
@pytest.mark.parametrize("name", harmless())
def test_harmless_models_are_accepted(doctor, name: str) -> None:
    seen = doctor(name, "--data", "digits")
    assert seen.exit_code == 0, seen.output
    assert "run.backward: accepted, where you assert separability" in seen.output
    assert "run.accumulate: accepted" in seen.output
    assert "refused" not in seen.output


def test_every_check_has_a_line_and_trained_parameters_are_counted(doctor) -> None:
    seen = doctor("mlp", "--data", "digits")
    lines = [line for line in seen.output.splitlines() if "passed" in line]
    assert len(lines) == 7
    assert "4 tensors, 1,210 parameters" in lines[1]


def test_all_failures_are_reported_at_once_with_their_remedies(doctor) -> None:
    seen = doctor("determined", "--data", "digits")
    assert seen.exit_code == 0, "a copy of the weight for each example needs no rule"
    assert "matrix: cdist has no rule for its operand" in seen.output
    assert "engine=noisette.engines.PerExampleLoop() needs none" in seen.output
    normed = doctor("batch_norm", "--data", "digits")
    assert "noisette.nn.convert_batch_norm" in normed.output
    assert normed.exit_code == 1
    assert "run.backward: refused (1 of 6 checks failed)" in normed.output
    assert normed.output.count("made once the refused checks pass") == 4


def test_unused_parameters_are_reported(doctor) -> None:
    seen = doctor("idle", "--data", "digits")
    assert seen.exit_code == 0, seen.output
    assert "not used in this call, but noise is added to them: spare" in seen.output


def test_lipschitz_bounds_are_checked(doctor) -> None:
    seen = doctor("lipschitz", "--data", "digits")
    assert seen.exit_code == 0, seen.output
    assert "2 tensors, 592 parameters" in seen.output


def test_inputs_are_returned_with_the_model_or_given_by_shape(doctor) -> None:
    assert doctor("with_inputs").exit_code == 0
    assert doctor("like_a_recipe", "--input-shape", "1,8,8").exit_code == 0
    assert doctor("like_a_recipe", "--data", "digits").exit_code == 0


def test_inputs_by_name_are_given_by_name(doctor) -> None:
    shown = doctor("inputs_by_name")
    assert shown.exit_code == 0, shown.output
    assert "run.accumulate: accepted" in shown.output
    assert "run.backward: accepted" in shown.output
    mixing = doctor("mixing_inputs_by_name")
    assert "run.backward: refused" in mixing.output


def test_a_dictionary_as_the_one_argument(doctor) -> None:
    assert "run.accumulate: accepted" in doctor("with_a_dictionary").output


def test_training_in_half_precision_is_checked_as_such(doctor) -> None:
    assert doctor("mlp", "--data", "digits", "--bf16").exit_code == 0
    assert "run.backward: refused" in doctor("hidden_centring", "--data", "digits", "--bf16").output


@pytest.mark.parametrize(
    ("name", "options", "message"),
    [
        ("mlp", (), "give the shape of one example"),
        ("mlp", ("--data", "nothing"), "expected --data as one of digits"),
        ("mlp", ("--data", "digits", "--input-shape", "8"), "give one of them"),
        ("mlp", ("--input-shape", "9"), "does not accept its inputs"),
        (
            "by_key",
            ("--input-shape", "6"),
            "or a dictionary of arguments by name. For a dictionary as the one argument",
        ),
        ("number", ("--data", "digits"), "returned a int"),
        ("lipschitz", (), "takes the shape of an example"),
        ("nowhere:model", ("--data", "digits"), "there is no nowhere:model"),
        ("patients:none", ("--data", "digits"), "there is no patients:none"),
    ],
)
def test_invalid_input_is_one_message_without_a_traceback(
    doctor, name: str, options: tuple[str, ...], message: str
) -> None:
    seen = doctor(name, *options)
    assert seen.exit_code == 2
    assert message in seen.stderr
    assert "Traceback" not in seen.output
