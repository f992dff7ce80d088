"""A captured and a compiled step give the sums of single examples."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor, nn

from captured_check import assert_captured
from device_check import accumulated, assert_close, on
from noisette import PerExampleClip
from oracle import example_gradients

F = nn.functional
BOUND = 0.5
SIZES = (9, 9, 10, 9, 9)


def loss(model: nn.Module, x: Tensor, y: Tensor) -> Tensor:
    return F.cross_entropy(model(x), y)


def each_loss(model: nn.Module, x: Tensor, y: Tensor) -> Tensor:
    return F.cross_entropy(model(x), y, reduction="none")


class Recurrent(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.layer, self.head = nn.LSTM(6, 8, batch_first=True), nn.Linear(8, 4)

    def forward(self, x: Tensor) -> Tensor:
        return self.head(self.layer(x[:, 0])[0][:, -1])


MODELS = {
    "mlp": lambda: nn.Sequential(nn.Flatten(), nn.Linear(108, 16), nn.Tanh(), nn.Linear(16, 4)),
    "cnn": lambda: nn.Sequential(
        *(nn.Conv2d(3, 8, 3), nn.GroupNorm(2, 8), nn.ReLU(), nn.MaxPool2d(2), nn.Flatten(), nn.Linear(32, 4))
    ),
    "lstm": Recurrent,
}
WAYS = [pytest.param("graph"), pytest.param("compiled", marks=pytest.mark.slow)]


@pytest.mark.parametrize("way", WAYS)
@pytest.mark.parametrize("name", MODELS)
def test_steps_are_those_of_single_examples(device: torch.device, name: str, way: str) -> None:
    model = MODELS[name]().to(device)
    clip = PerExampleClip(model, BOUND, capture=way)  # pyright: ignore[reportArgumentType]
    for size in SIZES:
        inputs = torch.randn(size, 3, 6, 6), torch.arange(size) % 4
        found = accumulated(clip, loss, on(device, inputs))
        truth = example_gradients(model.cpu(), each_loss, inputs).clipped(BOUND)
        model.to(device)
        assert_close(found, truth, BOUND, 1e-4)
    assert_captured(clip, way)
    clip.close()
