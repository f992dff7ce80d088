"""Recurrent layers in steps, against the fused ones without noise and against equations by hand with noise."""

from __future__ import annotations

from collections.abc import Callable, Iterator

import pytest
import torch
from torch import Tensor, nn
from torch.nn.utils.rnn import PackedSequence, pack_sequence

from engine_check import measured
from lstm_by_hand import lstm_by_hand
from model_cases import squares
from noisette.clipping.engines import BookKeeping, ReweightGP
from noisette.nn import WeightNoise
from noisette.nn.weight_noise import TimeSteps

SHAPES: dict[str, Callable[[type[nn.RNNBase]], nn.RNNBase]] = {
    "plain": lambda kind: kind(4, 3),
    "batch first, no biases": lambda kind: kind(4, 3, bias=False, batch_first=True),
    "two directions, three layers": lambda kind: kind(4, 3, 3, bidirectional=True),
}
KINDS = {"LSTM": nn.LSTM, "GRU": nn.GRU, "RNN": nn.RNN, "ReLU": lambda *a, **k: nn.RNN(*a, nonlinearity="relu", **k)}
INPUTS: dict[str, Callable[[], Tensor | PackedSequence]] = {
    "batch": lambda: torch.randn(5, 5, 4),
    "one sequence": lambda: torch.randn(6, 4),
    "packed": lambda: pack_sequence([torch.randn(n, 4) for n in (2, 6, 1, 4, 4)], enforce_sorted=False),
    "packed, sorted": lambda: pack_sequence([torch.randn(n, 4) for n in (5, 4, 4)]),
}


def leaves(value) -> list[Tensor]:
    if isinstance(value, Tensor):
        return [value]
    return [leaf for item in value if item is not None for leaf in leaves(item)]


@pytest.mark.parametrize("given", INPUTS.values(), ids=INPUTS)
@pytest.mark.parametrize("kind", KINDS.values(), ids=KINDS)
@pytest.mark.parametrize("make", SHAPES.values(), ids=SHAPES)
@pytest.mark.parametrize("states", [False, True])
def test_without_noise_the_steps_give_what_the_layer_gives(given, kind, make, states: bool) -> None:
    layer, input = make(kind).double(), given()
    input = input.to(torch.float64)
    hx = None
    if states:
        _, last = layer(input)
        hx = tuple(torch.randn_like(s) for s in last) if isinstance(last, tuple) else torch.randn_like(last)
    found, expected = TimeSteps(layer, 0.0)(input, hx), layer(input, hx)
    assert type(found[0]) is type(expected[0])
    for one, other in zip(leaves(found), leaves(expected), strict=True):
        torch.testing.assert_close(one, other)


def test_dropout_lies_between_layers_while_training() -> None:
    layer, x = nn.GRU(4, 300, 2, dropout=0.4), torch.randn(3, 1, 4)
    steps = TimeSteps(layer, 0.0)
    with torch.no_grad():
        layer.weight_ih_l1.copy_(100 * torch.eye(900, 300))
    (_, once), (_, again) = steps(x), steps(x)
    assert torch.equal(once[0], again[0])
    assert not torch.equal(once[1], again[1])
    layer.eval()
    torch.testing.assert_close(steps(x)[0], layer(x)[0])


def noise_of_steps(means: list[Tensor], sigma: float, steps: int) -> list[list[Tensor]]:
    return [[sigma * torch.randn(mean.shape, dtype=mean.dtype) for mean in means] for _ in range(steps)]


def weights_of_steps(means: list[Tensor], noise: list[list[Tensor]]) -> Callable[[], list[Tensor]]:
    remaining: Iterator[list[Tensor]] = iter(noise)
    return lambda: [mean + added for mean, added in zip(means, next(remaining), strict=True)]


def test_each_step_and_direction_has_a_draw_of_its_own() -> None:
    lstm = nn.LSTM(4, 3, batch_first=True, bidirectional=True).double()
    x, means = torch.randn(2, 6, 4, dtype=torch.float64), list(lstm.parameters())
    WeightNoise(lstm, 0.8, each_time_step=True)
    torch.manual_seed(5)
    output, (h, _) = lstm(x)
    torch.manual_seed(5)
    forth, back = (weights_of_steps(means[k : k + 4], noise_of_steps(means[k : k + 4], 0.8, 6)) for k in (0, 4))
    expected = [lstm_by_hand(x, forth), lstm_by_hand(x.flip(1), back).flip(1)]
    torch.testing.assert_close(output, torch.cat(expected, 2))
    torch.testing.assert_close(h, torch.stack([expected[0][:, -1], expected[1][:, 0]]))


class Last(nn.Module):
    """All states of a recurrent layer."""

    def __init__(self, layer: nn.Module) -> None:
        super().__init__()
        self.layer = layer

    def forward(self, x: Tensor) -> Tensor:
        return self.layer(x)[0]


@pytest.mark.parametrize("engine", [BookKeeping(), ReweightGP()], ids=lambda e: type(e).__name__)
def test_clipped_sums_are_exact_with_noise_in_each_step(engine) -> None:
    model, x = Last(nn.LSTM(4, 3, batch_first=True)).double(), torch.randn(4, 5, 4, dtype=torch.float64)
    means = [p.detach().clone().requires_grad_() for p in model.parameters()]
    WeightNoise(model, 0.6, each_time_step=True)
    torch.manual_seed(5)
    norms, sums = measured(model, squares, (x,), 0.5, engine)
    torch.manual_seed(5)
    noise = noise_of_steps(means, 0.6, 5)
    total = [torch.zeros_like(mean) for mean in means]
    for i in range(4):
        states = lstm_by_hand(x[i : i + 1], weights_of_steps(means, noise))
        gradients = torch.autograd.grad((states - 0.3).square().sum(), means)
        norm = torch.cat([g.flatten() for g in gradients]).norm()
        torch.testing.assert_close(norms[i], norm)
        total = [sum + g * min(1.0, 0.5 / float(norm)) for sum, g in zip(total, gradients, strict=True)]
    for found, expected in zip(sums.values(), total, strict=True):
        torch.testing.assert_close(found, expected)


def test_cells_and_linear_layers_in_a_loop_of_the_users_draw_at_each_call() -> None:
    class Loops(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.cell, self.linear = nn.GRUCell(4, 3), nn.Linear(4, 3)

        def forward(self, x: Tensor) -> list[Tensor]:
            return [*(self.cell(x) for _ in range(2)), *(self.linear(x) for _ in range(2))]

    model, x = Loops(), torch.randn(2, 4)
    noise = WeightNoise(model, 0.5)
    cell, again, linear, anew = model(x)
    assert torch.equal(cell, again)
    assert torch.equal(linear, anew)
    noise.remove()
    WeightNoise(model, 0.5, each_time_step=True)
    cell, again, linear, anew = model(x)
    assert not torch.isclose(cell, again).any()
    assert not torch.isclose(linear, anew).any()
