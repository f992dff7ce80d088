"""ResNets and VGGs with group norm, in the layout for large images and in the one for 32 x 32."""

from __future__ import annotations

from torch import nn

from noisette import models
from noisette.models.blocks import normalised, sequence
from noisette.models.resnets import residual_blocks
from noisette.models.vggs import vgg_features

_GROUPS = 32


def resnet(depth: int) -> nn.Module:
    """A ResNet for images of any size: a 7x7 convolution and a pooling, then four stages.

    Source: He et al. 2016, with group norm in place of batch norm (Wu & He 2018).
    """
    stem = sequence(normalised("conv", nn.Conv2d(3, 64, 7, 2, 3, bias=False), _group_norm))
    blocks = residual_blocks(depth, 64, _group_norm)
    head = [nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(blocks[-1].channels, 10)]
    return nn.Sequential(*stem, nn.ReLU(), nn.MaxPool2d(3, 2, 1), *blocks, *head)


def resnet_small(depth: int) -> nn.Module:
    """A ResNet for 32 x 32 images: the first convolution is 3x3 and nothing is pooled before the stages."""
    return models.resnet((3, 32, 32), 10, depth=depth, norm=_group_norm)


def vgg(depth: int) -> nn.Module:
    """A VGG for images of any size: convolutions, pooling to 7 x 7, and three large linear layers.

    Source: Simonyan & Zisserman 2015, with group norm after each convolution.
    """
    head = [nn.Linear(512 * 49, 4096), nn.ReLU(), nn.Linear(4096, 4096), nn.ReLU(), nn.Linear(4096, 10)]
    return nn.Sequential(*vgg_features(depth, _group_norm), nn.AdaptiveAvgPool2d(7), nn.Flatten(), *head)


def vgg_small(depth: int) -> nn.Module:
    """A VGG for 32 x 32 images, with one linear layer behind the convolutions."""
    return models.vgg((3, 32, 32), 10, depth=depth, norm=_group_norm)


def _group_norm(channels: int, axes: int) -> nn.Module:
    return nn.GroupNorm(_GROUPS, channels)
