"""ResNets and VGGs with group norm, in the layout for large images and in the one for 32 x 32."""

from __future__ import annotations

from collections.abc import Callable

from torch import Tensor, nn

_GROUPS = 32


def resnet(depth: int) -> nn.Module:
    """A ResNet for images of any size: a 7x7 convolution and a pooling, then four stages.

    Source: He et al. 2016, with group norm in place of batch norm (Wu & He 2018).
    """
    stem = [*_convolution(3, 64, 7, 2), nn.ReLU(), nn.MaxPool2d(3, 2, 1)]
    return nn.Sequential(*stem, *_stages(depth))


def resnet_small(depth: int) -> nn.Module:
    """A ResNet for 32 x 32 images: the first convolution is 3x3 and nothing is pooled before the stages."""
    return nn.Sequential(*_convolution(3, 64, 3), nn.ReLU(), *_stages(depth))


def vgg(depth: int) -> nn.Module:
    """A VGG for images of any size: convolutions, pooling to 7 x 7, and three large linear layers.

    Source: Simonyan & Zisserman 2015, with group norm after each convolution.
    """
    head = [nn.Linear(512 * 49, 4096), nn.ReLU(), nn.Linear(4096, 4096), nn.ReLU(), nn.Linear(4096, 10)]
    return nn.Sequential(*_vgg_features(depth), nn.AdaptiveAvgPool2d(7), nn.Flatten(), *head)


def vgg_small(depth: int) -> nn.Module:
    """A VGG for 32 x 32 images, with one linear layer behind the convolutions."""
    return nn.Sequential(*_vgg_features(depth), nn.Flatten(), nn.Linear(512, 10))


class Residual(nn.Module):
    """A body and a way around it, added up."""

    def __init__(self, body: nn.Module, shortcut: nn.Module) -> None:
        super().__init__()
        self.body, self.shortcut = body, shortcut

    def forward(self, x: Tensor) -> Tensor:
        return nn.functional.relu(self.body(x) + self.shortcut(x))


Block = Callable[[int, int, int], Residual]


def _basic(channels: int, width: int, stride: int) -> Residual:
    body = [*_convolution(channels, width, 3, stride), nn.ReLU(), *_convolution(width, width, 3)]
    return Residual(nn.Sequential(*body), _shortcut(channels, width, stride))


def _bottleneck(channels: int, width: int, stride: int) -> Residual:
    body = [
        *_convolution(channels, width, 1),
        nn.ReLU(),
        *_convolution(width, width, 3, stride),
        nn.ReLU(),
        *_convolution(width, 4 * width, 1),
    ]
    return Residual(nn.Sequential(*body), _shortcut(channels, 4 * width, stride))


def _shortcut(channels: int, out: int, stride: int) -> nn.Module:
    if stride == 1 and channels == out:
        return nn.Identity()
    return nn.Sequential(*_convolution(channels, out, 1, stride))


def _convolution(channels: int, out: int, size: int, stride: int = 1) -> list[nn.Module]:
    return [nn.Conv2d(channels, out, size, stride, size // 2, bias=False), nn.GroupNorm(_GROUPS, out)]


_RESNETS: dict[int, tuple[Block, int, tuple[int, ...]]] = {  # block, its outputs per width, blocks in each stage
    18: (_basic, 1, (2, 2, 2, 2)),
    34: (_basic, 1, (3, 4, 6, 3)),
    50: (_bottleneck, 4, (3, 4, 6, 3)),
    101: (_bottleneck, 4, (3, 4, 23, 3)),
}


def _stages(depth: int) -> list[nn.Module]:
    block, outputs, blocks = _RESNETS[depth]
    layers: list[nn.Module] = []
    channels = 64
    for width, count in zip((64, 128, 256, 512), blocks, strict=True):
        for k in range(count):
            layers.append(block(channels, width, 2 if k == 0 and width > 64 else 1))
            channels = outputs * width
    return [*layers, nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(channels, 10)]


_VGGS = {11: (1, 1, 2, 2, 2), 13: (2, 2, 2, 2, 2), 16: (2, 2, 3, 3, 3), 19: (2, 2, 4, 4, 4)}


def _vgg_features(depth: int) -> list[nn.Module]:
    layers: list[nn.Module] = []
    channels = 3
    for width, count in zip((64, 128, 256, 512, 512), _VGGS[depth], strict=True):
        for _ in range(count):
            layers += [nn.Conv2d(channels, width, 3, padding=1), nn.GroupNorm(_GROUPS, width), nn.ReLU()]
            channels = width
        layers.append(nn.MaxPool2d(2))
    return layers
