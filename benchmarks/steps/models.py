"""The models whose steps are measured, by name, with random examples for them.

ResNets and VGGs have group norm; Lipschitz networks have no biases, as those of Bethune et al. 2024.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from itertools import pairwise

import torch
from torch import Tensor, nn

from benchmarks.steps.large_models import VOCABULARY, bert_base, gpt2, vit_small
from noisette.lipschitz.propagation import Stretching
from noisette.nn import models
from noisette.nn.lipschitz import BoundedInput, GroupSort2, MixerBlock, PatchConv2d, SpectralConv2d, SpectralLinear
from noisette.nn.models.networks import (
    Norm,
    Residual,
    basic_block,
    convolution,
    normalised,
    residual_blocks,
    sequence,
    shortcut,
)
from papers.networks import vgg as vgg_for_cifar
from papers.networks import vgg_features

F = nn.functional
_GROUPS = 32  # of group norm
_INPUT_NORM = 3.0
_CIFAR = (3, 32, 32)


@dataclass(frozen=True)
class Model:
    """A model and the shape of its data, which is random: times depend on neither labels nor pixels."""

    title: str
    build: Callable[[], nn.Module]
    shape: tuple[int, ...]  # of one example
    classes: int = 10
    words: int | None = None  # examples are numbers of words below it
    labels: tuple[int, ...] = ()  # shape of one example's

    def data(self, batch: int, image: int | None, device: str) -> tuple[Tensor, Tensor]:
        """A batch of inputs and labels; ``image`` is the width in pixels for models of colour images of any size."""
        shape = (batch, 3, image, image) if image else (batch, *self.shape)
        inputs = torch.randint(0, self.words, shape) if self.words else torch.randn(shape)
        return inputs.to(device), torch.randint(0, self.classes, (batch, *self.labels)).to(device)


def mlp(depth: int = 2) -> nn.Module:
    """784 inputs, hidden layers of 128, 256, 256, ... sigmoids, 10 outputs (Lee & Kifer 2020)."""
    widths = [784, 128, *[256] * (depth - 1)]
    layers: list[nn.Module] = []
    for inputs, outputs in pairwise(widths):
        layers += [nn.Linear(inputs, outputs), nn.Sigmoid()]
    return nn.Sequential(*layers, nn.Linear(widths[-1], 10))


def cnn() -> nn.Module:
    """Two 5x5 convolutions with pooling, then 128 and 10 units (Lee & Kifer 2020)."""
    return nn.Sequential(
        *(nn.Conv2d(1, 20, 5), nn.ReLU(), nn.MaxPool2d(2)),
        *(nn.Conv2d(20, 50, 5), nn.ReLU(), nn.MaxPool2d(2)),
        *(nn.Flatten(), nn.Linear(800, 128), nn.ReLU(), nn.Linear(128, 10)),
    )


class Recurrent(nn.Module):
    """128 recurrent units read an image row by row; the last output is classified (Lee & Kifer 2020)."""

    def __init__(self, layer: Callable[..., nn.Module]) -> None:
        super().__init__()
        self.recurrent = layer(28, 128, batch_first=True)
        self.head = nn.Linear(128, 10)

    def forward(self, x: Tensor) -> Tensor:
        return self.head(self.recurrent(x)[0][:, -1])


class Transformer(nn.Module):
    """One post-norm encoder block of width 200 on fixed embeddings, and a mean over positions (Lee & Kifer 2020)."""

    def __init__(self, width: int = 200, heads: int = 8, hidden: int = 800) -> None:
        super().__init__()
        self.heads = heads
        self.query, self.key, self.value, self.out = (nn.Linear(width, width) for _ in range(4))
        self.norm1, self.norm2 = nn.LayerNorm(width), nn.LayerNorm(width)
        self.up, self.down, self.head = nn.Linear(width, hidden), nn.Linear(hidden, width), nn.Linear(width, 2)

    def forward(self, x: Tensor) -> Tensor:
        split = (*x.shape[:2], self.heads, -1)
        query, key, value = (layer(x).view(split).transpose(1, 2) for layer in (self.query, self.key, self.value))
        attended = F.scaled_dot_product_attention(query, key, value).transpose(1, 2).reshape(x.shape)
        x = self.norm1(x + self.out(attended))
        x = self.norm2(x + self.down(F.relu(self.up(x))))
        return self.head(x.mean(1))


def resnet(depth: int) -> nn.Module:
    """A ResNet for images of any size: a 7x7 convolution and a pooling, then four stages.

    Source: He et al. 2016, with group norm in place of batch norm (Wu & He 2018).
    """
    stem = sequence(normalised("conv", nn.Conv2d(3, 64, 7, 2, 3, bias=False), _group_norm))
    blocks = residual_blocks(*_RESNETS[depth], 64, _group_norm)
    head = [nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(blocks[-1].channels, 10)]
    return nn.Sequential(*stem, nn.ReLU(), nn.MaxPool2d(3, 2, 1), *blocks, *head)


def bottleneck(channels: int, width: int, stride: int, norm: Norm) -> Residual:
    body = [
        *convolution("conv1", channels, width, 1, 1, norm),
        ("act1", nn.ReLU()),
        *convolution("conv2", width, width, 3, stride, norm),
        ("act2", nn.ReLU()),
        *convolution("conv3", width, 4 * width, 1, 1, norm),
    ]
    return Residual(sequence(body), shortcut(channels, 4 * width, stride, norm), 4 * width)


_RESNETS = {  # blocks of each stage
    18: (basic_block, (2, 2, 2, 2)),
    34: (basic_block, (3, 4, 6, 3)),
    50: (bottleneck, (3, 4, 6, 3)),
    101: (bottleneck, (3, 4, 23, 3)),
}


def vgg(depth: int) -> nn.Module:
    """A VGG for images of any size: convolutions, pooling to 7 x 7, and three large linear layers.

    Source: Simonyan & Zisserman 2015, with group norm after each convolution.
    """
    head = [nn.Linear(512 * 49, 4096), nn.ReLU(), nn.Linear(4096, 4096), nn.ReLU(), nn.Linear(4096, 10)]
    return nn.Sequential(*vgg_features(depth, _group_norm), nn.AdaptiveAvgPool2d(7), nn.Flatten(), *head)


def _group_norm(channels: int, axes: int) -> nn.Module:
    return nn.GroupNorm(_GROUPS, channels)


def lipschitz_dense() -> nn.Module:
    """784 inputs, 128 hidden units, 10 outputs: 101,632 parameters."""
    return nn.Sequential(BoundedInput(_INPUT_NORM), SpectralLinear(784, 128), GroupSort2(), SpectralLinear(128, 10))


def lipschitz_mixer() -> nn.Module:
    """Patches of four pixels a side, one mixer block of 64 channels, and a linear layer."""
    return nn.Sequential(
        *(BoundedInput(_INPUT_NORM), PatchConv2d(1, 64, patch=4), GroupSort2()),
        *(MixerBlock(channels=64, tokens=49), nn.Flatten(), SpectralLinear(64 * 49, 10)),
    )


class NormPool(Stretching):
    """The Euclidean norm of each window of two pixels a side, smoothed around zero, where it has no gradient."""

    def forward(self, x: Tensor) -> Tensor:
        return torch.sqrt(F.avg_pool2d(x.square(), 2, divisor_override=1) + 1e-12) - 1e-6

    def output_shape(self, shape: tuple[int, ...]) -> tuple[int, ...]:
        return shape[0], shape[1] // 2, shape[2] // 2


def lipschitz_conv() -> nn.Module:
    """Two 3x3 convolutions with 16 and 32 channels, each with pooling, and a linear layer."""
    return nn.Sequential(
        *(BoundedInput(_INPUT_NORM), SpectralConv2d(1, 16, 3, padding=1), GroupSort2(), NormPool()),
        *(SpectralConv2d(16, 32, 3, padding=1), GroupSort2(), NormPool()),
        *(nn.Flatten(), SpectralLinear(32 * 49, 10)),
    )


MODELS: dict[str, Model] = {
    "mlp": Model("MLP", mlp, (784,)),
    "cnn": Model("CNN", cnn, (1, 28, 28)),
    "rnn": Model("RNN", partial(Recurrent, nn.RNN), (28, 28)),
    "lstm": Model("LSTM", partial(Recurrent, nn.LSTM), (28, 28)),
    "gru": Model("GRU", partial(Recurrent, nn.GRU), (28, 28)),
    "transformer": Model("Transformer block", Transformer, (128, 200), 2),
    "resnet18-cifar": Model("ResNet-18 (CIFAR)", partial(models.resnet, _CIFAR, 10, norm=_group_norm), _CIFAR),
    "vgg16-cifar": Model("VGG-16 (CIFAR)", partial(vgg_for_cifar, _CIFAR, 10, depth=16, norm=_group_norm), _CIFAR),
    "lipschitz-dense": Model("Lipschitz MLP", lipschitz_dense, (784,)),
    "lipschitz-mixer": Model("Lipschitz mixer", lipschitz_mixer, (1, 28, 28)),
    "lipschitz-conv": Model("Lipschitz CNN", lipschitz_conv, (1, 28, 28)),
    "vit-small": Model("ViT-S/16", vit_small, (3, 224, 224), 1000),
    "bert-base": Model("BERT-base, 128 tokens", bert_base, (128,), 2, words=VOCABULARY["bert"]),
    "gpt2": Model(*("GPT-2, 256 tokens", gpt2, (256,), VOCABULARY["gpt2"]), words=VOCABULARY["gpt2"], labels=(256,)),
    **{f"mlp-{depth}": Model(f"MLP, {depth} hidden layers", partial(mlp, depth), (784,)) for depth in (4, 6, 8)},
    **{f"resnet{depth}": Model(f"ResNet-{depth}", partial(resnet, depth), _CIFAR) for depth in (18, 34, 50, 101)},
    **{f"vgg{depth}": Model(f"VGG-{depth}", partial(vgg, depth), _CIFAR) for depth in (11, 13, 16, 19)},
}
