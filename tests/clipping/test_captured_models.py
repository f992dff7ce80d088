"""Captured steps of every kind of model: exact, equal to the step that is not captured, with the same draws."""

import copy
from collections import UserDict

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.nn.utils import parametrizations

from bfloat16_lstm import skip_without_bfloat16_lstm
from captured_check import assert_captured, cast, check_equal, check_exact, check_same_draws, error_of, sums_of
from captured_models import MODELS, Model, encoder, entropy, floats, labelled, padded_words, reader, squares, words
from model_cases import Forward
from noisette import PerExampleClip
from noisette.capture.captured import CaptureWarning
from noisette.clipping.engines import PerExampleLoop, Vmap
from noisette.core.clip import Engine
from papers import networks


@pytest.mark.parametrize(
    "name", [pytest.param(name, marks=pytest.mark.slow if "group norm" in name else []) for name in MODELS]
)
def test_sums_are_those_of_single_examples(name: str) -> None:
    assert check_exact(MODELS[name]) <= 1e-10


@pytest.mark.parametrize("name", ["LeNet-5", "LSTM", "Transformer decoder", "public batch norm"])
def test_sums_are_those_of_the_step_itself(name: str) -> None:
    assert check_equal(MODELS[name]) <= 1e-5


def net() -> nn.Module:
    return nn.Sequential(nn.Linear(4, 8), nn.Tanh(), nn.Linear(8, 3))


@pytest.mark.parametrize("engine", [PerExampleLoop(), Vmap()], ids=lambda engine: type(engine).__name__)
def test_other_engines(engine: Engine) -> None:
    model, batch = net().double(), cast(labelled(4)(5), torch.float64)
    clip = PerExampleClip(model, 0.3, engine=engine, capture="graph")
    expected = sums_of(PerExampleClip(copy.deepcopy(model), 0.3, capture="eager"), entropy, batch)
    found = [sums_of(clip, entropy, batch)]
    with pytest.warns(CaptureWarning, match="the step is not captured"):
        found.append(sums_of(clip, entropy, batch))
    found.append(sums_of(clip, entropy, batch))
    assert max(error_of(sums, expected) for sums in found) <= 1e-12
    assert len(clip.capture_problems) == 1


def test_a_branch_on_a_random_number_is_named_and_the_step_stays_vectorised() -> None:
    def loss(model: nn.Module, x: Tensor) -> Tensor:
        return model(x if torch.rand(()) < 0.5 else -x).square().sum()

    clip = PerExampleClip(net().double(), 0.3, capture="graph")
    with pytest.warns(CaptureWarning, match="or a random number; choose by torch.where.$") as said:
        found = [sums_of(clip, loss, {"x": torch.randn(5, 4).double()}) for _ in range(3)]
    assert [len(found), len(said), len(clip.capture_problems)] == [3, 1, 1]


@pytest.mark.parametrize("name", ["LeNet-5", "LSTM", "Transformer encoder", "public batch norm"])
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
    torch.testing.assert_close(clip.pop_sums()[0].grads, eager.pop_sums()[0].grads, rtol=1e-11, atol=1e-12)


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore:`torch.jit:DeprecationWarning")  # of torch, where it loads compiled code
@pytest.mark.parametrize("name", ["LeNet-5", "GRU", "Transformer encoder", "per-example batch norm"])
def test_compiled(name: str) -> None:
    assert check_equal(MODELS[name], capture="compiled") <= 1e-5


def drops(m: nn.Module, x: Tensor) -> Tensor:
    y = F.dropout1d(m.layer(x), 0.3) + torch.rand_like(x) + torch.randn(x.shape, dtype=x.dtype)
    return F.alpha_dropout(y * torch.bernoulli(torch.full_like(y, 0.7)), 0.1, training=True)


RANDOM = {
    "functions": Model(lambda: Forward(drops, layer=nn.Linear(4, 4)), floats(4), squares),
    "BiLSTM": Model(lambda: networks.bilstm_dl((5, 4), 3), labelled(5, 4), entropy),
    "LSTM": Model(lambda: reader(nn.LSTM, dropout=0.3, layers=2), words(4), entropy),
    "Transformer encoder": Model(lambda: encoder(dropout=0.2, layers=2), padded_words, entropy),
}


@pytest.mark.parametrize("name", RANDOM)
def test_draws_are_those_of_the_step_itself(name: str) -> None:
    assert check_same_draws(RANDOM[name]) <= 1e-5


def counting(m: Forward, x: Tensor) -> Tensor:
    m.calls += 1
    return m.layer(x) * (1 + 0.1 * m.calls)


WRITING = {
    "spectral norm": Model(lambda: parametrizations.spectral_norm(nn.Linear(4, 3)), labelled(4), entropy),
    "a count of calls": Model(
        lambda: Forward(counting, layer=nn.Linear(4, 3), calls=torch.zeros(3)), labelled(4), entropy
    ),
}


@pytest.mark.parametrize("name", WRITING)
def test_what_a_call_writes_into_buffers_is_dropped_as_by_the_step_itself(name: str) -> None:
    assert check_same_draws(WRITING[name]) <= 1e-5
