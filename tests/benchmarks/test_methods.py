"""The methods that are measured take the same step."""

import copy
import warnings
from functools import partial
from unittest.mock import patch

import pytest
import torch
from torch import Tensor, nn

from benchmarks.steps import private, sgd, whole_run
from benchmarks.steps.cell import Cell
from benchmarks.steps.methods import FASTDP, METHODS, PLAIN
from noisette.capture.captured import CaptureWarning
from noisette.capture.graph import CaptureError
from noisette.clipping import engines

COMPILED = pytest.param("compiled", marks=pytest.mark.slow)
OTHERS = (*PLAIN, "compiled", "Clipless", *FASTDP, *whole_run.METHODS)
CLIPPED = [name for name in METHODS if name not in OTHERS] + [COMPILED]


@pytest.fixture
def nearly_no_noise(monkeypatch):
    monkeypatch.setattr(sgd, "NOISE_MULTIPLIER", 1e-9)


def of_mlp(batch: int) -> tuple[nn.Module, sgd.Data]:
    cell = Cell("mlp", batch=batch)
    return cell.model("cpu"), cell.data("cpu")


def weights_after_a_step(method: str, model: nn.Module, data: sgd.Data) -> dict[str, Tensor]:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        METHODS[method](model, data)()
    return model.state_dict()


def clipped_step(model: nn.Module, data: sgd.Data) -> dict[str, Tensor]:
    """The step of every method that clips, without noise, in plain code."""
    params = list(model.parameters())
    total = [torch.zeros_like(p) for p in params]
    for x, y in zip(data.inputs.split(1), data.targets.split(1), strict=True):
        gradients = torch.autograd.grad(nn.functional.cross_entropy(model(x), y), params)
        norm = sum(g.square().sum() for g in gradients) ** 0.5
        total = [t + g * min(1.0, float(sgd.MAX_GRAD_NORM / norm)) for t, g in zip(total, gradients, strict=True)]
    return {
        name: p.detach() - sgd.LEARNING_RATE * t / data.size
        for (name, p), t in zip(model.named_parameters(), total, strict=True)
    }


@pytest.mark.usefixtures("nearly_no_noise")
@pytest.mark.parametrize("method", CLIPPED)
def test_every_method_that_clips_takes_the_same_step(method):
    model, data = of_mlp(5)
    before = {name: p.clone() for name, p in model.state_dict().items()}
    expected, after = clipped_step(model, data), weights_after_a_step(method, model, data)
    for name, right in expected.items():
        torch.testing.assert_close(after[name] - before[name], right - before[name], rtol=1e-3, atol=1e-7)


@pytest.mark.parametrize("method", CLIPPED)
def test_every_method_that_clips_adds_noise(method):
    model, data = of_mlp(2)
    expected, after = clipped_step(model, data), weights_after_a_step(method, model, data)
    std = sgd.LEARNING_RATE * sgd.MAX_GRAD_NORM * sgd.NOISE_MULTIPLIER / 2
    for name in ("0.weight", "2.weight"):
        assert float((after[name] - expected[name]).std()) == pytest.approx(std, rel=0.1)


@pytest.mark.parametrize("name", ["captured", COMPILED])
def test_a_captured_step_is_no_eager_step(name):
    """After the two steps that make it ready, and the one that compares again."""
    with private.uncaptured_is_an_error():
        step = METHODS[name](*of_mlp(8))
        for _ in range(3):
            step()
        with patch.object(engines.BookKeeping, "clipped_sum", side_effect=AssertionError("eager")):
            step()


@pytest.mark.parametrize("name", ["captured", COMPILED])
def test_a_step_that_cannot_be_captured_is_an_error(name, monkeypatch):
    def no_trace(*_: object) -> None:
        raise CaptureError("there is no graph")

    monkeypatch.setattr("noisette.capture.graph.trace", no_trace)
    step = METHODS[name](*of_mlp(8))
    with private.uncaptured_is_an_error():
        step()
        with pytest.raises(CaptureWarning, match="the step is not captured: there is no graph"):
            step()


def test_compiled_plain_training_is_plain_training_in_a_compiled_function(monkeypatch):
    model, data = of_mlp(5)
    copied, expected = copy.deepcopy(model), weights_after_a_step("plain", model, data)
    compiled: list[int] = []

    def counted(graph: torch.fx.GraphModule, _: list[Tensor]) -> torch.fx.GraphModule:
        compiled.append(len(list(graph.graph.nodes)))
        return graph

    monkeypatch.setattr(torch, "compile", partial(torch.compile, backend=counted))
    torch.testing.assert_close(weights_after_a_step("plain-compiled", copied, data), expected)
    assert len(compiled) == 1, "the model and its loss are one graph"
    assert compiled[0] > 5


@pytest.mark.usefixtures("nearly_no_noise")
def test_a_clipless_step_is_a_plain_step_and_a_projection():
    cell = Cell("lipschitz-dense", batch=5)
    model, data = cell.model("cpu"), cell.data("cpu")
    params = list(model.parameters())
    gradients = torch.autograd.grad(nn.functional.cross_entropy(model(data.inputs), data.targets), params)
    moved = [(p - sgd.LEARNING_RATE * g).detach() for p, g in zip(params, gradients, strict=True)]
    weights_after_a_step("Clipless", model, data)
    for p, free in zip(params, moved, strict=True):
        u, _, vh = torch.linalg.svd(free, full_matrices=False)
        torch.testing.assert_close(p.detach(), u @ vh, rtol=0, atol=1e-5)


def test_a_run_takes_noised_steps_by_its_ledger_and_its_parts_leave_the_weights():
    data = Cell("mlp", batch=8, records=64).data("cpu")
    assert (len(data.targets), data.size, data.sampling_rate) == (64, 8, 1 / 8)
    for name in whole_run.METHODS:
        if name in ("run", "run: clip", "run: noise"):  # they compile
            continue
        model, _ = of_mlp(8)
        before = [p.detach().clone() for p in model.parameters()]
        step = METHODS[name](model, data)
        for _ in range(3):
            step()
        moved = [not torch.equal(p, start) for p, start in zip(model.parameters(), before, strict=True)]
        assert set(moved) == {name == "run-eager"}, name
