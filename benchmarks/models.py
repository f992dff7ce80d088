"""The models whose private step is measured, with the batch each is measured on."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Tensor, nn

F = nn.functional


@dataclass(frozen=True)
class Case:
    """A model and a batch of random inputs and labels for it."""

    title: str
    model: Callable[[], nn.Module]
    batch: int
    shape: tuple[int, ...]  # of one example
    classes: int = 10

    def data(self) -> tuple[Tensor, Tensor]:
        return torch.randn(self.batch, *self.shape), torch.randint(0, self.classes, (self.batch,))


def mlp() -> nn.Module:
    """784-128-256-10 with sigmoids (Lee & Kifer)."""
    return nn.Sequential(nn.Linear(784, 128), nn.Sigmoid(), nn.Linear(128, 256), nn.Sigmoid(), nn.Linear(256, 10))


def cnn() -> nn.Module:
    """Two 5x5 convolutions with pooling, then 128 and 10 units (Lee & Kifer)."""
    return nn.Sequential(
        *(nn.Conv2d(1, 20, 5), nn.ReLU(), nn.MaxPool2d(2)),
        *(nn.Conv2d(20, 50, 5), nn.ReLU(), nn.MaxPool2d(2)),
        *(nn.Flatten(), nn.Linear(800, 128), nn.ReLU(), nn.Linear(128, 10)),
    )


class TransformerBlock(nn.Module):
    """One post-norm encoder block of width 200 with 8 heads and 800 hidden units, and a mean over positions."""

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


class ResidualBlock(nn.Module):
    """Two 3x3 convolutions with group norm and a shortcut."""

    def __init__(self, channels: int, out: int, stride: int) -> None:
        super().__init__()
        self.conv1, self.norm1 = nn.Conv2d(channels, out, 3, stride, 1, bias=False), nn.GroupNorm(32, out)
        self.conv2, self.norm2 = nn.Conv2d(out, out, 3, 1, 1, bias=False), nn.GroupNorm(32, out)
        self.shortcut: nn.Module = nn.Identity()
        if stride > 1 or channels != out:
            self.shortcut = nn.Sequential(nn.Conv2d(channels, out, 1, stride, bias=False), nn.GroupNorm(32, out))

    def forward(self, x: Tensor) -> Tensor:
        hidden = F.relu(self.norm1(self.conv1(x)))
        return F.relu(self.norm2(self.conv2(hidden)) + self.shortcut(x))


def resnet18() -> nn.Module:
    """ResNet-18 for 32x32 images, with group norm in place of batch norm."""
    layers: list[nn.Module] = [nn.Conv2d(3, 64, 3, 1, 1, bias=False), nn.GroupNorm(32, 64), nn.ReLU()]
    channels = 64
    for out in (64, 128, 256, 512):
        layers += [ResidualBlock(channels, out, 1 if out == 64 else 2), ResidualBlock(out, out, 1)]
        channels = out
    return nn.Sequential(*layers, nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(512, 10))


def vgg16() -> nn.Module:
    """VGG-16 for 32x32 images, with group norm."""
    layers: list[nn.Module] = []
    channels = 3
    for widths in ((64, 64), (128, 128), (256, 256, 256), (512, 512, 512), (512, 512, 512)):
        for out in widths:
            layers += [nn.Conv2d(channels, out, 3, padding=1), nn.GroupNorm(32, out), nn.ReLU()]
            channels = out
        layers.append(nn.MaxPool2d(2))
    return nn.Sequential(*layers, nn.Flatten(), nn.Linear(512, 10))


CASES = {
    "mlp-128": Case("MLP 784-128-256-10, batch 128", mlp, 128, (784,)),
    "mlp-1024": Case("MLP 784-128-256-10, batch 1024", mlp, 1024, (784,)),
    "cnn": Case("CNN (Lee & Kifer), batch 128", cnn, 128, (1, 28, 28)),
    "transformer": Case("Transformer block, length 128, batch 128", TransformerBlock, 128, (128, 200), 2),
    "resnet18": Case("ResNet-18 GN, batch 32", resnet18, 32, (3, 32, 32)),
    "vgg16": Case("VGG-16 GN, batch 32", vgg16, 32, (3, 32, 32)),
}
