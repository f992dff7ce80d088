"""Models of every kind that a captured step is tested with, small, each with batches of any size."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.nn.utils import parametrizations

from lipschitz_networks import NETWORKS as LIPSCHITZ
from model_cases import Forward
from noisette.nn import PerExampleBatchNorm, PublicBatchNorm, convert_batch_norm, models
from papers import networks

Batch = dict[str, Tensor]
Loss = Callable[..., Tensor]  # (model, **batch) -> a tensor with one value for one example
WORDS = 13


@dataclass(frozen=True)
class Model:
    """A model in training mode without random operations, b examples as keyword arguments of a loss."""

    make: Callable[[], nn.Module]
    batch: Callable[[int], Batch]
    loss: Loss


def entropy(model: nn.Module, x: Tensor, y: Tensor) -> Tensor:
    return F.cross_entropy(model(x), y)


def squares(model: nn.Module, **inputs: Tensor) -> Tensor:
    return (model(*inputs.values()) - 0.3).square().mean()


def labelled(*shape: int) -> Callable[[int], Batch]:
    return lambda b: {"x": torch.randn(b, *shape), "y": torch.randint(0, 3, (b,))}


def floats(*shape: int) -> Callable[[int], Batch]:
    return lambda b: {"x": torch.randn(b, *shape)}


def words(length: int) -> Callable[[int], Batch]:
    return lambda b: {"x": torch.randint(0, WORDS, (b, length)), "y": torch.randint(0, 3, (b,))}


def group_norm(channels: int, axes: int) -> nn.Module:
    return nn.GroupNorm(2 if channels % 2 == 0 else 1, channels)


def with_public_statistics(norm: Any) -> nn.Module:
    first, second = nn.Conv2d(2, 4, 3, bias=False), nn.Conv2d(4, 6, 3)
    parts = [first, nn.BatchNorm2d(4), nn.ReLU(), second, nn.BatchNorm2d(6), nn.Flatten(), nn.Linear(96, 3)]
    return convert_batch_norm(nn.Sequential(*parts), to=norm, public=torch.randn(6, 2, 8, 8))


def reader(kind: type[nn.RNNBase], dropout: float = 0.0, layers: int = 1) -> nn.Module:
    states = kind(4, 5, layers, bidirectional=True, batch_first=True, dropout=dropout)
    parts = {"words": nn.Embedding(WORDS, 4), "states": states, "scores": nn.Linear(10, 3)}
    return Forward(lambda m, x: m.scores(m.states(m.words(x))[0].mean(1)), **parts)


def encoder(dropout: float = 0.0, layers: int = 1) -> nn.Module:
    layer = nn.TransformerEncoderLayer(8, 2, 12, dropout=dropout, batch_first=True)
    stack = nn.TransformerEncoder(layer, layers, enable_nested_tensor=False)
    parts = {"words": nn.Embedding(WORDS, 8), "layers": stack, "scores": nn.Linear(8, 3)}
    return Forward(lambda m, x: m.scores(m.layers(m.words(x), src_key_padding_mask=x == 0).mean(1)), **parts)


def decoder(dropout: float = 0.0) -> nn.Module:
    def forward(m: Forward, x: Tensor, memory: Tensor) -> Tensor:
        mask, padding = m.mask.to(m.words.weight), memory == 0
        given = {"tgt_mask": mask, "tgt_is_causal": True, "memory_key_padding_mask": padding}
        return m.layers(m.words(x), m.words(memory), **given) @ m.words.weight.T  # tied

    layer = nn.TransformerDecoderLayer(8, 2, 12, dropout=dropout, batch_first=True, norm_first=True)
    parts = {"words": nn.Embedding(WORDS, 8), "layers": nn.TransformerDecoder(layer, 2)}
    return Forward(forward, **parts, mask=nn.Transformer.generate_square_subsequent_mask(5))


def read_and_written(b: int) -> Batch:
    memory = torch.randint(1, WORDS, (b, 6))
    memory[:, 4:] *= torch.randint(0, 2, (b, 1))
    return {"x": torch.randint(0, WORDS, (b, 5)), "memory": memory}


def padded_words(b: int) -> Batch:
    lengths = torch.arange(b).remainder(6) + 1
    x = torch.randint(1, WORDS, (b, 6)) * (torch.arange(6) < lengths.unsqueeze(1))
    return {"x": x, "y": torch.randint(0, 3, (b,))}


def tied(m: Any, x: Tensor) -> Tensor:
    return F.linear(torch.tanh(m.words(x)), m.words.weight).mean(1)[:, :3]


def rotated(m: Any, x: Tensor) -> Tensor:
    if m.__dict__.get("tables") is None:
        angles = torch.arange(x.shape[1], dtype=x.dtype).unsqueeze(1) / torch.tensor([1.0, 10.0], dtype=x.dtype)
        m.tables = angles.cos(), angles.sin()
    first, second = m.queries(x).chunk(2, -1)
    cos, sin = m.tables
    return torch.cat([first * cos - second * sin, first * sin + second * cos], -1).tanh()


def factories(m: Any, x: Tensor) -> Tensor:
    """Tensors made inside of the call by every kind of factory, one of them written into."""
    out = torch.zeros(x.shape[0], 5, dtype=x.dtype)
    out[:, :3] = m.first(x)
    scale = torch.linspace(0, 1, 5, dtype=x.dtype) + torch.full((5,), 0.1, dtype=x.dtype)
    return torch.where(torch.arange(5) > 3, input=m.second(out), other=out * scale) + x.new_ones(1) * torch.tensor(2.0)


def normed() -> nn.Module:
    first, last = parametrizations.weight_norm(nn.Linear(4, 6)), parametrizations.orthogonal(nn.Linear(6, 3))
    return nn.Sequential(first, nn.Tanh(), last)


images = labelled(2, 8, 8)
MODELS = {
    "LeNet-5": Model(lambda: networks.lenet_5((1, 12, 12), 3), labelled(1, 12, 12), entropy),
    "ResNet-18, group norm": Model(lambda: models.resnet((2, 8, 8), 3, width=4, norm=group_norm), images, entropy),
    "VGG, group norm": Model(lambda: networks.light_vgg((2, 8, 8), 3, width=4, norm=group_norm), images, entropy),
    "public batch norm": Model(lambda: with_public_statistics(PublicBatchNorm), images, entropy),
    "per-example batch norm": Model(lambda: with_public_statistics(PerExampleBatchNorm), images, entropy),
    "BiLSTM, layer norm": Model(lambda: networks.ln_bilstm_dl((3, 4), 3, dropout=0.0), labelled(3, 4), entropy),
    "LSTM": Model(lambda: reader(nn.LSTM), words(4), entropy),
    "GRU": Model(lambda: reader(nn.GRU), words(4), entropy),
    "Transformer encoder": Model(encoder, padded_words, entropy),
    "Transformer decoder": Model(decoder, read_and_written, squares),
    "tied embedding": Model(lambda: Forward(tied, words=nn.Embedding(WORDS, 5)), words(4), entropy),
    "rotary tables made inside": Model(lambda: Forward(rotated, queries=nn.Linear(4, 4)), floats(5, 4), squares),
    "tensors made inside": Model(
        lambda: Forward(factories, first=nn.Linear(4, 3), second=nn.Linear(5, 5)), floats(4), squares
    ),
    "parametrizations": Model(normed, labelled(4), entropy),
    **{f"Lipschitz, {name}": Model(make, labelled(*shape), entropy) for name, (make, shape) in LIPSCHITZ.items()},
}
