"""The models whose steps are measured, by name, with random examples for them."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from itertools import pairwise

import torch
from torch import Tensor, nn

from noisette.bench.convnets import resnet, resnet_small, vgg, vgg_small
from noisette.bench.lipschitz_nets import lipschitz_conv, lipschitz_dense, lipschitz_mixer

F = nn.functional


@dataclass(frozen=True)
class Model:
    """A model and what it takes; times depend on neither labels nor pixels, so both are random."""

    title: str
    build: Callable[[], nn.Module]
    shape: tuple[int, ...]  # of one example
    classes: int = 10

    def data(self, batch: int, image: int | None, device: str) -> tuple[Tensor, Tensor]:
        """A batch of inputs and labels; ``image`` is for models of colour images of any size: pixels a side."""
        shape = (3, image, image) if image else self.shape
        return torch.randn(batch, *shape, device=device), torch.randint(0, self.classes, (batch,), device=device)


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


MODELS: dict[str, Model] = {
    "mlp": Model("MLP", mlp, (784,)),
    "cnn": Model("CNN", cnn, (1, 28, 28)),
    "rnn": Model("RNN", partial(Recurrent, nn.RNN), (28, 28)),
    "lstm": Model("LSTM", partial(Recurrent, nn.LSTM), (28, 28)),
    "gru": Model("GRU", partial(Recurrent, nn.GRU), (28, 28)),
    "transformer": Model("Transformer block", Transformer, (128, 200), 2),
    "resnet18-cifar": Model("ResNet-18 (CIFAR)", partial(resnet_small, 18), (3, 32, 32)),
    "vgg16-cifar": Model("VGG-16 (CIFAR)", partial(vgg_small, 16), (3, 32, 32)),
    "lipschitz-dense": Model("Lipschitz MLP", lipschitz_dense, (784,)),
    "lipschitz-mixer": Model("Lipschitz mixer", lipschitz_mixer, (1, 28, 28)),
    "lipschitz-conv": Model("Lipschitz CNN", lipschitz_conv, (1, 28, 28)),
    **{f"mlp-{depth}": Model(f"MLP, {depth} hidden layers", partial(mlp, depth), (784,)) for depth in (4, 6, 8)},
    **{f"resnet{depth}": Model(f"ResNet-{depth}", partial(resnet, depth), (3, 32, 32)) for depth in (18, 34, 50, 101)},
    **{f"vgg{depth}": Model(f"VGG-{depth}", partial(vgg, depth), (3, 32, 32)) for depth in (11, 13, 16, 19)},
}
