"""Recurrent layers in a graph, unrolled or with known states: per-example gradients against single examples."""

from collections.abc import Callable

import pytest
import torch
from test_recurrent import FEATURES, KINDS, UNITS, T, each_recurrence, every_kind
from torch import Tensor, fx, nn

from bfloat16_lstm import skip_without_bfloat16_lstm
from forward_pass import recorded
from noisette.capture.graph import Graph, trace
from noisette.core.backward import per_example_gradients
from noisette.core.forms import compacted, squared_norms
from noisette.core.loss import Loss
from noisette.rules import recurrent

pytestmark = pytest.mark.filterwarnings("ignore:LSTM with projections is not supported with oneDNN")

B = 5


@pytest.fixture(params=[True, False], ids=["unrolled", "known states"])
def unrolled(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> bool:
    if not request.param:
        monkeypatch.setattr(recurrent, "_UNROLLED_STEPS", 0)
    return request.param


def layer(kind: str, **options: object) -> nn.RNNBase:
    torch.manual_seed(1)
    return KINDS[kind](FEATURES, UNITS, **options).double()


def private_gradients(model: nn.Module, loss: Loss) -> Callable[..., list[Tensor]]:
    def gradients(*batch: Tensor) -> list[Tensor]:
        forward, parameters = recorded(model, loss, *batch)
        forms = per_example_gradients(forward, parameters, compacted)
        squared = squared_norms(forms)
        return [forms[name].explicit() for name in parameters] + [squared[name] for name in parameters]

    return gradients


def traced(gradients: Callable[..., list[Tensor]], *batch: Tensor) -> Graph:
    return trace(gradients, [torch.randn_like(part) for part in batch])


def check(model: nn.Module, loss: Loss, *batch: Tensor) -> fx.Graph:
    graph = traced(private_gradients(model, loss), *batch)
    found = graph(batch)
    params = [p for p in model.parameters() if p.requires_grad]
    for i in range(len(batch[0])):
        expected = torch.autograd.grad(loss(model, *[part[i : i + 1] for part in batch]), params)
        for of_all, squared, gradient in zip(found[: len(params)], found[len(params) :], expected, strict=True):
            torch.testing.assert_close(of_all[i], gradient, rtol=1e-10, atol=1e-12)
            torch.testing.assert_close(squared[i], gradient.square().sum(), rtol=1e-10, atol=1e-20)
    return graph.module.graph


def everything(model: nn.Module, x: Tensor, *states: Tensor) -> Tensor:
    hx = None if not states else states[0] if len(states) == 1 else states
    output, last = model(x, hx)
    parts = [output, *(last if isinstance(last, tuple) else (last,))]
    return torch.stack(
        [k * (part * torch.linspace(0.5, 2, part.shape[-1]).to(part)).square().sum() for k, part in enumerate(parts, 1)]
    ).sum()


@every_kind
def test_stack_in_both_directions(kind: str, unrolled: bool) -> None:
    """One form with biases and the batch first, the other one without and with the time first."""
    model = layer(kind, num_layers=2, bidirectional=True, bias=unrolled, batch_first=unrolled)
    inside = everything if unrolled else lambda model, x: everything(model, x.transpose(0, 1))
    check(model, inside, torch.randn(B, T, FEATURES, dtype=torch.float64))


@every_kind
def test_states_from_data(kind: str, unrolled: bool) -> None:
    model = layer(kind, batch_first=True)
    sizes = [model.proj_size or UNITS] + [UNITS] * (kind in ("lstm", "projected"))
    states = [torch.randn(B, 1, size, dtype=torch.float64) for size in sizes]

    def loss(model: nn.Module, x: Tensor, *states: Tensor) -> Tensor:
        return everything(model, x, *(state.transpose(0, 1) for state in states))

    check(model, loss, torch.randn(B, T, FEATURES, dtype=torch.float64), *states)


@every_kind
@pytest.mark.parametrize("part", ["last step", "last states"])
def test_loss_of_one_part_alone(kind: str, part: str, unrolled: bool) -> None:
    def loss(model: nn.Module, x: Tensor) -> Tensor:
        output, last = model(x)
        last = last[-1] if isinstance(last, tuple) else last
        return (output[:, -1] if part == "last step" else last).square().sum()

    model = layer(kind, batch_first=True)
    check(model, loss, torch.randn(B, T, FEATURES, dtype=torch.float64))


@each_recurrence
def test_dropout_between_layers(kind: str, unrolled: bool) -> None:
    model, x = layer(kind, num_layers=2, dropout=0.5, batch_first=True), torch.randn(B, T, FEATURES).double()
    gradients = private_gradients(model, everything)
    graph = traced(gradients, x)
    torch.manual_seed(3)
    expected = gradients(x)
    torch.manual_seed(3)
    found = graph([x])
    for one, other in zip(found, expected, strict=True):
        torch.testing.assert_close(one, other, rtol=1e-10, atol=1e-12)
    torch.manual_seed(4)
    assert not torch.allclose(graph([x])[0], found[0])


def test_long_sequence_is_not_unrolled(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(recurrent, "_UNROLLED_STEPS", 8)
    model, x = layer("tanh", batch_first=True), torch.randn(2, 9, FEATURES).double()
    assert [node for node in check(model, everything, x).nodes if "tanh_backward.grad_input" in str(node.target)]


@pytest.mark.parametrize("kind", ["tanh", "lstm", "gru"])
def test_autocast_is_as_outside_of_a_graph(kind: str) -> None:
    if kind == "lstm":
        skip_without_bfloat16_lstm()

    def loss(model: nn.Module, x: Tensor) -> Tensor:
        with torch.autocast("cpu", torch.bfloat16):
            return everything(model, x).float()

    gradients, x = private_gradients(layer(kind, batch_first=True).float(), loss), torch.randn(B, T, FEATURES)
    expected, graph = gradients(x), traced(gradients, x)
    torch.testing.assert_close(graph([x]), expected, rtol=1e-5, atol=1e-6)
