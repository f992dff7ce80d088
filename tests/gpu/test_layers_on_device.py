"""Layers that a GPU computes in code of its own: cuDNN's recurrences and convolutions, attention by each backend."""

from __future__ import annotations

from functools import partial

import pytest
import torch
from torch import Tensor, nn
from torch.nn.attention import SDPBackend, sdpa_kernel

from device_check import both_ways
from engine_check import ENGINES
from model_cases import Forward, cross_entropy, floats, ids, labelled, squares
from noisette.clipping.engines import BookKeeping, PerExampleLoop, ReweightGP
from noisette.core.clip import Engine

F = nn.functional
QUICK: tuple[Engine, ...] = (BookKeeping(), ReweightGP(), PerExampleLoop())
BOTH = pytest.mark.parametrize("dtype", [torch.float64, torch.float32], ids=str)


def last(m: Forward, x: Tensor) -> Tensor:
    return m.head(m.layer(x)[0][:, -1])


def recurrent(layer: nn.Module, width: int) -> nn.Module:
    return Forward(last, layer=layer, head=nn.Linear(width, 4))


@BOTH
@pytest.mark.parametrize("kind", [nn.LSTM, nn.GRU, nn.RNN])
def test_recurrent_layers(device: torch.device, kind: type[nn.RNNBase], dtype: torch.dtype) -> None:
    model = recurrent(kind(5, 7, batch_first=True), 7)
    both_ways(device, model, squares, floats(6, 5)(5), dtype, *QUICK)


def test_backward_twice_through_a_recurrent_layer(device: torch.device) -> None:
    """cuDNN keeps what the backward pass needs only while training, and a second pass needs it again."""
    model = recurrent(nn.LSTM(5, 7, batch_first=True), 7)
    both_ways(device, model.train(), squares, floats(6, 5)(3), torch.float32, ReweightGP())
    both_ways(device, model.eval(), squares, floats(6, 5)(3), torch.float32, ReweightGP())


def convolutions() -> nn.Module:
    return nn.Sequential(
        *(nn.Conv2d(4, 8, 3, padding=1), nn.GroupNorm(2, 8), nn.ReLU(), nn.MaxPool2d(2)),
        *(nn.Conv2d(8, 8, 3, stride=2, groups=2, bias=False), nn.ReLU(), nn.Flatten(), nn.Linear(8 * 4, 4)),
    )


@BOTH
@pytest.mark.parametrize("weights", [True, False], ids=["weights", "inputs alone"])
def test_channels_last(any_device: torch.device, weights: bool, dtype: torch.dtype) -> None:
    x, y = labelled(4, 11, 11)(5)
    model = convolutions()
    if weights:
        model = model.to(memory_format=torch.channels_last)
    both_ways(any_device, model, cross_entropy, (x.to(memory_format=torch.channels_last), y), dtype, *ENGINES)


def attend(m: Forward, x: Tensor, *, causal: bool = False) -> Tensor:
    q, k, v = (layer(x).view(*x.shape[:2], 2, -1).transpose(1, 2) for layer in (m.q, m.k, m.v))
    out = F.scaled_dot_product_attention(q, k, v, is_causal=causal)
    return m.norm(x + m.out(out.transpose(1, 2).reshape(x.shape))).mean(1)


def attention(causal: bool = False) -> nn.Module:
    layers = {name: nn.Linear(32, 32) for name in ("q", "k", "v", "out")}
    return Forward(partial(attend, causal=causal), norm=nn.LayerNorm(32), **layers)


@pytest.mark.parametrize("backend", [SDPBackend.MATH, SDPBackend.EFFICIENT_ATTENTION, SDPBackend.FLASH_ATTENTION])
@pytest.mark.parametrize("causal", [False, True])
def test_attention_by_each_backend(any_device: torch.device, backend: SDPBackend, causal: bool) -> None:
    """Without one that does not compute in single precision, or not on this device, another one is taken."""
    with sdpa_kernel([backend, SDPBackend.MATH], set_priority=True):
        both_ways(any_device, attention(causal), squares, floats(9, 32)(4), torch.float32, *QUICK)


def test_layers_of_a_transformer(any_device: torch.device) -> None:
    """Attention in a module, embeddings, and the weight of the embedding once more at the end."""

    def forward(m: Forward, words: Tensor) -> Tensor:
        x = m.table(words) + m.places(torch.arange(words.shape[1], device=words.device))
        return F.linear(m.layer(x), m.table.weight).mean(1)

    layer = nn.TransformerEncoderLayer(8, 2, 16, dropout=0.0, batch_first=True)
    model = Forward(forward, table=nn.Embedding(11, 8), places=nn.Embedding(6, 8), layer=layer)
    both_ways(any_device, model, squares, ids(6)(4), torch.float64, *QUICK)
