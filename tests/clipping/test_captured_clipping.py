"""Captured steps with every clipping rule and engine, autocast, and microbatches of every size."""

from __future__ import annotations

import copy
from collections import UserDict

import pytest
import torch
from torch import Tensor, nn

from bfloat16_lstm import skip_without_bfloat16_lstm
from captured_check import assert_captured, check_equal, error_of, sums_of
from captured_models import MODELS, Model, entropy, labelled
from noisette import PerExampleClip
from noisette.capture.captured import CaptureWarning
from noisette.clipping.engines import BookKeeping, PerExampleLoop, ReweightGP, Vmap
from noisette.core.clip import Engine

ENGINES: list[Engine] = [BookKeeping(), ReweightGP()]


def net() -> nn.Module:
    return nn.Sequential(nn.Linear(4, 8), nn.Tanh(), nn.Linear(8, 3))


NET = Model(net, labelled(4), entropy)


@pytest.mark.parametrize("engine", [PerExampleLoop(), Vmap()], ids=lambda engine: type(engine).__name__)
def test_other_engines(engine: Engine) -> None:
    model, batch = net().double(), NET.batch(5)
    batch = {"x": batch["x"].double(), "y": batch["y"]}
    clip = PerExampleClip(model, 0.3, engine=engine, capture="graph")
    eager = PerExampleClip(copy.deepcopy(model), 0.3, capture="eager")
    expected = sums_of(eager, entropy, batch)
    found = [sums_of(clip, entropy, batch)]
    with pytest.warns(CaptureWarning, match="the step is not captured"):
        found.append(sums_of(clip, entropy, batch))
    found.append(sums_of(clip, entropy, batch))
    assert max(error_of(sums, expected) for sums in found) <= 1e-12
    assert len(clip.capture_problems) == 1


@pytest.mark.parametrize("name", ["LeNet-5", "LSTM", "Transformer encoder", "VGG, group norm"])
def test_autocast(name: str) -> None:
    """Operations in bfloat16, which have a relative precision of 4e-3."""
    if name == "LSTM":
        skip_without_bfloat16_lstm()
    assert check_equal(MODELS[name], torch.bfloat16) <= 1e-2


def test_mappings_with_other_names_have_a_graph_of_their_own() -> None:
    model = net().double()
    clip = PerExampleClip(model, 0.3, capture="graph")
    eager = PerExampleClip(copy.deepcopy(model), 0.3, capture="eager")

    def loss(model: nn.Module, batch: UserDict[str, Tensor]) -> Tensor:
        return model(batch["first"] - 2 * batch["second"]).square().sum()

    for _ in range(3):
        first, second = torch.randn(5, 4).double(), torch.randn(5, 4).double()
        for batch in (UserDict(first=first, second=second), UserDict(second=second, first=first)):
            clip.accumulate(loss, batch)
            eager.accumulate(loss, batch)
    assert_captured(clip)
    assert error_of(clip.pop_sums()[0].grads, eager.pop_sums()[0].grads) <= 1e-12


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore:`torch.jit:DeprecationWarning")  # of torch, where it loads compiled code
@pytest.mark.parametrize("name", ["LeNet-5", "GRU", "Transformer encoder", "VGG, per-example batch norm"])
def test_compiled(name: str) -> None:
    assert check_equal(MODELS[name], capture="compiled") <= 1e-5
