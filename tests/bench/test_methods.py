from __future__ import annotations

import warnings

import pytest
import torch
from torch import Tensor, nn

from noisette.bench import methods
from noisette.bench.cell import Cell
from noisette.bench.methods import ENGINES, METHODS

CLIPPED = [name for name in METHODS if name not in ("plain", "Clipless")]


@pytest.fixture
def nearly_no_noise(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(methods, "NOISE_MULTIPLIER", 1e-9)


def weights_after_a_step(method: str, model: nn.Module, inputs: Tensor, targets: Tensor) -> dict[str, Tensor]:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        METHODS[method](model, inputs, targets)()
    return model.state_dict()


def clipped_step(model: nn.Module, inputs: Tensor, targets: Tensor) -> dict[str, Tensor]:
    """The step of every method that clips, without noise, in plain code."""
    params = list(model.parameters())
    total = [torch.zeros_like(p) for p in params]
    for x, y in zip(inputs.split(1), targets.split(1), strict=True):
        gradients = torch.autograd.grad(nn.functional.cross_entropy(model(x), y), params)
        norm = sum(g.square().sum() for g in gradients) ** 0.5
        total = [t + g * min(1.0, float(methods.MAX_GRAD_NORM / norm)) for t, g in zip(total, gradients, strict=True)]
    return {
        name: p.detach() - methods.LEARNING_RATE * t / len(targets)
        for (name, p), t in zip(model.named_parameters(), total, strict=True)
    }


@pytest.mark.usefixtures("nearly_no_noise")
@pytest.mark.parametrize("method", CLIPPED)
def test_every_method_that_clips_takes_the_same_step(method: str) -> None:
    cell = Cell("mlp", batch=5)
    model = cell.model("cpu")
    inputs, targets = cell.data("cpu")
    before = {name: p.clone() for name, p in model.state_dict().items()}
    expected = clipped_step(model, inputs, targets)
    after = weights_after_a_step(method, model, inputs, targets)
    for name, right in expected.items():
        torch.testing.assert_close(after[name] - before[name], right - before[name], rtol=1e-3, atol=1e-7)


@pytest.mark.usefixtures("nearly_no_noise")
@pytest.mark.parametrize("method", [name for name in METHODS if name.startswith("Opacus")])
def test_opacus_trains_recurrent_models_from_the_same_weights(method: str) -> None:
    cell = Cell("rnn", batch=3)
    model = cell.model("cpu")
    inputs, targets = cell.data("cpu")
    expected = clipped_step(model, inputs, targets)
    after = weights_after_a_step(method, model, inputs, targets)
    torch.testing.assert_close({name: after[name] for name in expected}, expected)


@pytest.mark.parametrize("method", CLIPPED)
def test_every_method_that_clips_adds_noise(method: str) -> None:
    cell = Cell("mlp", batch=2)
    model = cell.model("cpu")
    inputs, targets = cell.data("cpu")
    expected = clipped_step(model, inputs, targets)
    after = weights_after_a_step(method, model, inputs, targets)
    std = methods.LEARNING_RATE * methods.MAX_GRAD_NORM * methods.NOISE_MULTIPLIER / 2
    for name in ("0.weight", "2.weight"):
        assert float((after[name] - expected[name]).std()) == pytest.approx(std, rel=0.1)


def test_all_engines_of_noisette_are_measured() -> None:
    assert {"BookKeeping", "TwoPass", "PerExampleLoop"} <= set(ENGINES) <= set(METHODS)


@pytest.mark.usefixtures("nearly_no_noise")
def test_a_clipless_step_is_a_plain_step_and_a_projection() -> None:
    cell = Cell("lipschitz-dense", batch=5)
    model = cell.model("cpu")
    inputs, targets = cell.data("cpu")
    params = list(model.parameters())
    gradients = torch.autograd.grad(nn.functional.cross_entropy(model(inputs), targets), params)
    moved = [(p - methods.LEARNING_RATE * g).detach() for p, g in zip(params, gradients, strict=True)]
    weights_after_a_step("Clipless", model, inputs, targets)
    for p, free in zip(params, moved, strict=True):
        u, _, vh = torch.linalg.svd(free, full_matrices=False)
        torch.testing.assert_close(p.detach(), u @ vh, rtol=0, atol=1e-5)
