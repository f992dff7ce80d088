"""A warm microbatch reads nothing from the device and copies nothing to it, where that would make a GPU wait."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from host_reads import HostReads
from noisette.capture import step
from noisette.clipping import engines
from noisette.clipping.engines import BookKeeping, ReweightGP
from noisette.core import clip as norms
from noisette.core.clip import Engine
from noisette.run.per_example import PerExampleClip

F = nn.functional


class Transformer(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.embedding = nn.Embedding(11, 8)
        self.position = nn.Parameter(torch.randn(5, 8))
        self.block = nn.TransformerEncoderLayer(8, 2, 16, dropout=0.0, batch_first=True)
        self.head = nn.Linear(8, 3)

    def forward(self, ids: Tensor) -> Tensor:
        return self.head(self.block(self.embedding(ids) + self.position).mean(1))


class Recurrent(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.lstm = nn.LSTM(6, 5, batch_first=True)
        self.head = nn.Linear(5, 3)

    def forward(self, x: Tensor) -> Tensor:
        return self.head(self.lstm(x)[0][:, -1])


def mlp() -> nn.Module:
    return nn.Sequential(nn.Linear(6, 7), nn.LayerNorm(7), nn.ReLU(), nn.Linear(7, 3))


def cnn() -> nn.Module:
    conv = nn.Conv2d(2, 4, 3, padding=1)
    return nn.Sequential(conv, nn.GroupNorm(2, 4), nn.ReLU(), nn.MaxPool2d(2), nn.Flatten(), nn.Linear(16, 3))


MODELS: Mapping[str, tuple[Callable[[], nn.Module], Callable[[], Tensor]]] = {
    "mlp": (mlp, lambda: torch.randn(6, 6)),
    "cnn": (cnn, lambda: torch.randn(6, 2, 4, 4)),
    "transformer": (Transformer, lambda: torch.randint(0, 11, (6, 5))),
    "lstm": (Recurrent, lambda: torch.randn(6, 4, 6)),
}
every_model = pytest.mark.parametrize("name", MODELS)
every_engine = pytest.mark.parametrize("engine", [BookKeeping(), ReweightGP()], ids=lambda e: type(e).__name__)


def loss(model: nn.Module, x: Tensor, y: Tensor) -> Tensor:
    return F.cross_entropy(model(x), y)


@pytest.fixture
def never_waits(monkeypatch: pytest.MonkeyPatch) -> None:
    for module in (norms, step, engines):
        monkeypatch.setattr(module, "may_wait", lambda device: False)
    monkeypatch.setattr(torch, "_assert_async", lambda *arguments: None)  # reads the value, on a processor


def microbatch(name: str) -> tuple[Tensor, Tensor]:
    return MODELS[name][1](), torch.randint(0, 3, (6,))


@pytest.mark.usefixtures("never_waits")
@pytest.mark.parametrize("capture", ["eager", "graph"])
@every_model
@every_engine
def test_a_warm_microbatch_reads_nothing(name: str, engine: Engine, capture: Any) -> None:
    clip = PerExampleClip(MODELS[name][0](), 0.5, engine=engine, capture=capture)
    batches = [microbatch(name) for _ in range(7)]
    for batch in batches[:5]:  # a graph is made, and compared in some of them
        clip.accumulate(loss, *batch)
    with HostReads() as reads:
        for batch in batches[5:]:
            clip.accumulate(loss, *batch)
    clip.close()
    assert not +reads.found


@pytest.mark.usefixtures("never_waits")
@every_model
@every_engine
@pytest.mark.parametrize("bad", [[1, 4], [0, 1, 2, 3, 4, 5]], ids=str)
@pytest.mark.parametrize("capture", ["eager", "graph"])
def test_an_example_that_is_not_finite_adds_nothing(name: str, engine: Engine, bad: list[int], capture: Any) -> None:
    """Whatever it holds, the sum is the same bit for bit, and that of the others."""
    torch.manual_seed(0)
    model, (x, y) = MODELS[name][0]().double(), microbatch(name)
    x = x.double() if x.is_floating_point() else x
    sums = []
    clip = PerExampleClip(model, 0.5, engine=engine, capture=capture)
    for spoiled in (1.0, float("nan"), float("inf")):  # the first time, a graph is made
        factor = torch.ones(6, dtype=torch.float64)
        factor[bad] = spoiled
        for _ in range(2):
            clip.accumulate(lambda model, x, y, f: loss(model, x, y) * f, x, y, factor)
        sums.append(torch.cat([g.flatten() for g in clip.pop_sums()[0].grads]))
    clip.close()
    sums = sums[1:]
    assert torch.equal(*sums)
    good = [k for k in range(6) if k not in bad]
    if not good:
        assert not sums[0].any()
        return
    alone = PerExampleClip(model, 0.5, capture="eager")
    for _ in range(2):
        alone.accumulate(loss, x[good], y[good])
    torch.testing.assert_close(sums[0], torch.cat([g.flatten() for g in alone.pop_sums()[0].grads]))
    alone.close()
