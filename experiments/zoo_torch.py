"""Layers and losses of torch itself, each with a linear layer in front of it."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

import torch
from torch import Tensor, nn

from experiments.zoo_check import Batch, Entry, combined

F = nn.functional


class Behind(nn.Module):
    """A layer with a linear layer on the last axis of its input."""

    def __init__(self, layer: nn.Module, features: int, call: Callable[..., Any] | None = None) -> None:
        super().__init__()
        self.first = nn.Linear(features, features)
        self.layer = layer
        self.call = call

    def forward(self, x: Tensor, *rest: Tensor) -> Any:
        x = self.first(x)
        return self.call(self.layer, x, *rest) if self.call else self.layer(x, *rest)


def _own_attention(layer: nn.Module, x: Tensor) -> Tensor:
    return layer(x, x, x)[0]


def _transformer(layer: nn.Module, x: Tensor) -> Tensor:
    return layer(x, x)


def _ctc(blank_first: bool, layer: nn.Module, x: Tensor, y: Tensor) -> Tensor:
    """Time first: (t, n, classes), as CTCLoss wants it."""
    scores = layer(x).log_softmax(-1).transpose(0, 1)
    t, n = scores.shape[:2]
    lengths = torch.full((n,), y.shape[1])
    return F.ctc_loss(scores, y, torch.full((n,), t), lengths)


def _adaptive(layer: nn.Module, x: Tensor, y: Tensor) -> Tensor:
    return layer(x.flatten(0, 1), y.flatten()).loss


def _in_place(layer: nn.Module, x: Tensor) -> Tensor:
    return F.relu(layer(x), inplace=True) * 1.5


def _packed(layer: nn.Module, x: Tensor) -> Tensor:
    return layer(x)[0]


IMAGE, SERIES, VOLUME, SEQUENCE = (4, 6, 6), (4, 8), (4, 4, 4, 4), (5, 8)
TABLE: dict[str, tuple[Callable[[], nn.Module], tuple[int, ...], Callable[..., Any] | None, str]] = {
    "Linear": (lambda: nn.Linear(8, 3), SEQUENCE, None, ""),
    "Bilinear": (lambda: nn.Bilinear(8, 8, 3), SEQUENCE, lambda layer, x: layer(x, x.flip(1)), ""),
    "Conv1d": (lambda: nn.Conv1d(4, 6, 3, stride=2), SERIES, None, ""),
    "Conv2d, groups": (lambda: nn.Conv2d(4, 6, 3, groups=2, padding=1), IMAGE, None, ""),
    "Conv2d, circular": (lambda: nn.Conv2d(4, 6, 3, padding=1, padding_mode="circular"), IMAGE, None, ""),
    "Conv2d, dilated": (lambda: nn.Conv2d(4, 6, 3, dilation=2, bias=False), IMAGE, None, ""),
    "Conv3d": (lambda: nn.Conv3d(4, 3, 2), VOLUME, None, ""),
    "ConvTranspose1d": (lambda: nn.ConvTranspose1d(4, 3, 3, stride=2), SERIES, None, ""),
    "ConvTranspose2d": (lambda: nn.ConvTranspose2d(4, 3, 3, stride=2), IMAGE, None, ""),
    "ConvTranspose3d": (lambda: nn.ConvTranspose3d(4, 3, 2), VOLUME, None, ""),
    "GroupNorm": (lambda: nn.GroupNorm(2, 4), IMAGE, None, ""),
    "LayerNorm": (lambda: nn.LayerNorm(8), SEQUENCE, None, ""),
    "RMSNorm": (lambda: nn.RMSNorm(8), SEQUENCE, None, ""),
    "InstanceNorm1d, affine": (lambda: nn.InstanceNorm1d(4, affine=True), SERIES, None, ""),
    "InstanceNorm2d": (lambda: nn.InstanceNorm2d(4), IMAGE, None, ""),
    "InstanceNorm2d, affine": (lambda: nn.InstanceNorm2d(4, affine=True), IMAGE, None, ""),
    "InstanceNorm2d, affine, ReLU in place": (lambda: nn.InstanceNorm2d(4, affine=True), IMAGE, _in_place, ""),
    "InstanceNorm3d, affine, ReLU in place": (lambda: nn.InstanceNorm3d(4, affine=True), VOLUME, _in_place, ""),
    "GroupNorm, ReLU in place": (lambda: nn.GroupNorm(2, 4), IMAGE, _in_place, ""),
    "LayerNorm, ReLU in place": (lambda: nn.LayerNorm(8), SEQUENCE, _in_place, ""),
    "Conv2d, ReLU in place": (lambda: nn.Conv2d(4, 6, 3), IMAGE, _in_place, ""),
    "Linear, ReLU in place": (lambda: nn.Linear(8, 3), SEQUENCE, _in_place, ""),
    "LocalResponseNorm": (lambda: nn.LocalResponseNorm(2), IMAGE, None, ""),
    "PReLU": (lambda: nn.PReLU(4), IMAGE, None, ""),
    "RReLU": (lambda: nn.RReLU(0.2, 0.2), IMAGE, None, ""),
    "Embedding": (lambda: nn.Embedding(10, 8), SEQUENCE, lambda layer, x, y: layer(y) * x[:, :3], "labels"),
    "EmbeddingBag": (lambda: nn.EmbeddingBag(10, 8), SEQUENCE, lambda layer, x, y: layer(y) * x[:, 0], "labels"),
    "RNN": (lambda: nn.RNN(8, 6, batch_first=True), SEQUENCE, _packed, ""),
    "LSTM, two directions": (lambda: nn.LSTM(8, 6, bidirectional=True, batch_first=True), SEQUENCE, _packed, ""),
    "LSTM, projected": (lambda: nn.LSTM(8, 6, proj_size=3, batch_first=True), SEQUENCE, _packed, ""),
    "GRU": (lambda: nn.GRU(8, 6, 2, batch_first=True), SEQUENCE, _packed, ""),
    "GRU, time first": (*(lambda: nn.GRU(8, 6), SEQUENCE), *(lambda layer, x: layer(x.transpose(0, 1))[0], "")),
    "LSTMCell": (lambda: nn.LSTMCell(8, 6), SEQUENCE, lambda layer, x: layer(x[:, 1], layer(x[:, 0]))[0], ""),
    "GRUCell": (lambda: nn.GRUCell(8, 6), SEQUENCE, lambda layer, x: layer(x[:, 1], layer(x[:, 0])), ""),
    "RNNCell": (lambda: nn.RNNCell(8, 6), SEQUENCE, lambda layer, x: layer(x[:, 1], layer(x[:, 0])), ""),
    "MultiheadAttention": (lambda: nn.MultiheadAttention(8, 2, batch_first=True), SEQUENCE, _own_attention, ""),
    "MultiheadAttention, bias_kv": (
        *(lambda: nn.MultiheadAttention(8, 2, batch_first=True, add_bias_kv=True), SEQUENCE),
        *(_own_attention, ""),
    ),
    "TransformerEncoderLayer": (lambda: nn.TransformerEncoderLayer(8, 2, 12, batch_first=True), SEQUENCE, None, ""),
    "TransformerEncoder": (
        lambda: nn.TransformerEncoder(nn.TransformerEncoderLayer(8, 2, 12, batch_first=True), 2),
        *(SEQUENCE, None, ""),
    ),
    "Transformer": (*(lambda: nn.Transformer(8, 2, 1, 1, 12, batch_first=True), SEQUENCE, _transformer, ""),),
    "CTCLoss, time first": (lambda: nn.Linear(8, 10), SEQUENCE, partial(_ctc, True), "words"),
    "AdaptiveLogSoftmax": (
        *(lambda: nn.AdaptiveLogSoftmaxWithLoss(8, 10, [2, 5], div_value=2.0), SEQUENCE, _adaptive, "positions"),
    ),
    "Upsample": (lambda: nn.Upsample(scale_factor=2, mode="bilinear"), IMAGE, None, ""),
    "PixelShuffle": (lambda: nn.PixelShuffle(2), IMAGE, None, ""),
    "MaxPool2d": (lambda: nn.MaxPool2d(2), IMAGE, None, ""),
    "AdaptiveMaxPool2d": (lambda: nn.AdaptiveMaxPool2d(2), IMAGE, None, ""),
    "LPPool2d": (lambda: nn.LPPool2d(2, 2), IMAGE, None, ""),
    "FractionalMaxPool2d": (
        lambda: nn.FractionalMaxPool2d(2, output_size=3, _random_samples=torch.full((1, 4, 2), 0.5)),
        IMAGE,
        None,
        "",
    ),
    "weight norm": (lambda: nn.utils.parametrizations.weight_norm(nn.Linear(8, 3)), SEQUENCE, None, ""),
    "orthogonal": (lambda: nn.utils.parametrizations.orthogonal(nn.Linear(8, 8)), SEQUENCE, None, ""),
    "Unfold": (lambda: nn.Unfold(3), IMAGE, None, ""),
    "BatchNorm2d, fixed": (lambda: nn.BatchNorm2d(4).eval(), IMAGE, None, ""),
    "Softmax2d": (lambda: nn.Softmax2d(), IMAGE, None, ""),
    "GLU": (lambda: nn.GLU(1), IMAGE, None, ""),
    "CosineSimilarity": (lambda: nn.CosineSimilarity(), SEQUENCE, lambda layer, x: layer(x[:, 0], x[:, 1]), ""),
}
LABELS = {"labels": (3,), "words": (2,), "positions": (5,)}


LEFT_OUT: dict[str, str] = {}


def entries() -> list[Entry]:
    return [
        Entry(f"torch/{name}", "torch", partial(make, name), partial(batch, name), partial(loss, name))
        for name in TABLE
    ]


def make(name: str, dropout: bool) -> nn.Module:
    torch.manual_seed(0)
    layer, shape, call, _ = TABLE[name]
    inner = layer()
    was_fixed = not inner.training
    model = Behind(inner, shape[-1], call).train()
    if was_fixed:
        inner.eval()
    for module in model.modules() if not dropout else ():
        if isinstance(module, nn.modules.dropout._DropoutNd):
            module.p = 0.0
        if isinstance(module, nn.MultiheadAttention):
            module.dropout = 0.0
    return model


def batch(name: str, model: nn.Module) -> dict[str, Tensor]:
    torch.manual_seed(1)
    _, shape, _, labels = TABLE[name]
    given = {"x": torch.randn(3, *shape)}
    return given | ({"y": torch.randint(1, 10, (3, *LABELS[labels]))} if labels else {})


def loss(name: str, model: nn.Module, given: Batch) -> Tensor:
    return combined(model(*given.values()))
