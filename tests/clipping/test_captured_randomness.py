"""Captured steps of random models draw what the step itself draws."""

from __future__ import annotations

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.nn.utils import parametrizations

from captured_check import check_same_draws
from captured_models import Encoder, Model, Reader, entropy, floats, labelled, padded_words, squares, words
from model_cases import Forward
from papers import networks


def drops(m: nn.Module, x: Tensor) -> Tensor:
    """Random numbers by functions of every kind."""
    y = F.dropout1d(m.layer(x), 0.3) + torch.rand_like(x) + torch.randn(x.shape, dtype=x.dtype)
    return F.alpha_dropout(y * torch.bernoulli(torch.full_like(y, 0.7)), 0.1, training=True)


RANDOM = {
    "dropout": Model(
        lambda: nn.Sequential(nn.Linear(4, 8), nn.Dropout(0.4), nn.ReLU(), nn.Linear(8, 3)), labelled(4), entropy
    ),
    "feature dropout": Model(
        lambda: nn.Sequential(nn.Conv2d(1, 4, 3), nn.Dropout2d(0.5), nn.Flatten(), nn.Linear(16, 3)),
        labelled(1, 4, 4),
        entropy,
    ),
    "functions": Model(lambda: Forward(drops, layer=nn.Linear(4, 4)), floats(4), squares),
    "BiLSTM": Model(lambda: networks.bilstm_dl((5, 4), 3), labelled(5, 4), entropy),
    "LSTM": Model(lambda: Reader(nn.LSTM, dropout=0.3), words(4), entropy),
    "Transformer encoder": Model(lambda: Encoder(dropout=0.2), padded_words, entropy),
}


@pytest.mark.parametrize("name", RANDOM)
def test_draws_are_those_of_the_step_itself(name: str) -> None:
    assert check_same_draws(RANDOM[name]) <= 1e-5


class Counting(nn.Module):
    """A temperature that grows with each call, from a count in a buffer."""

    def __init__(self) -> None:
        super().__init__()
        self.layer = nn.Linear(4, 3)
        self.register_buffer("calls", torch.zeros(()))

    def forward(self, x: Tensor) -> Tensor:
        self.calls += 1
        return self.layer(x) * (1 + 0.1 * self.calls)


WRITING = {
    "spectral norm": Model(
        lambda: nn.Sequential(parametrizations.spectral_norm(nn.Linear(4, 6)), nn.Tanh(), nn.Linear(6, 3)),
        labelled(4),
        entropy,
    ),
    "a count of calls": Model(Counting, labelled(4), entropy),
}


@pytest.mark.parametrize("name", WRITING)
def test_what_a_call_writes_into_buffers_is_dropped_as_by_the_step_itself(name: str) -> None:
    assert check_same_draws(WRITING[name]) <= 1e-5
