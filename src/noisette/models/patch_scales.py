"""A linear layer on how much an image and its mirror image resemble patches of several sizes."""

from __future__ import annotations

from typing import NamedTuple

import torch
from torch import Tensor, nn

from noisette._internal.shaded_leaves import drawn
from noisette.lipschitz.torch_modules import output_shape
from noisette.models.fixed_features import FixedFeatures
from noisette.models.shapes import Shape, need_images, numbers_of
from noisette.nn import MirrorAverage, PatchFeatures

F = nn.functional

_IMAGES, _SIDE = 2000, 32


class PatchScale(NamedTuple):
    """Patches of one size, of images that are averaged over squares first."""

    averaged: int  # pixels on a side of such a square, which becomes one pixel
    filters: int  # patches of the dictionary
    side: int = 6  # height and width of a patch, in averaged pixels
    stride: int = 1  # averaged pixels between the patches of an image


SCALES = (PatchScale(1, 400, stride=2), PatchScale(2, 400))


def multi_scale_patches(shape: Shape, classes: int, *, scales: tuple[PatchScale, ...] = SCALES) -> nn.Module:
    """Resemblances to patches of shaded leaves at several scales, and one linear layer.

    The resemblances of an image and of its mirror image are averaged, so both have the same scores, and nothing has to
    be learnt twice. Those of a scale are normalised for each example. The dictionaries come from the same images of a
    random process each time, so there is no record to protect.

    Args:
        shape: of an image, (channels, height, width).
        classes: number of scores for each image.
        scales: the sizes of the patches.

    Source: :class:`noisette.nn.PatchFeatures`.
    """
    need_images("multi-scale-patches", shape)
    leaves = torch.as_tensor(drawn(_IMAGES, 0, side=_SIDE, channels=shape[0]))
    features = _SideBySide(_normalised(scale, leaves) for scale in scales)
    return FixedFeatures(features, nn.Linear(numbers_of(output_shape(features, shape)), classes))


def _normalised(scale: PatchScale, leaves: Tensor) -> nn.Module:
    """The features of one scale, flat."""
    public = F.avg_pool2d(leaves, scale.averaged)
    resemblances = PatchFeatures.of_public(public, scale.filters, side=scale.side, stride=scale.stride)
    return nn.Sequential(
        nn.AvgPool2d(scale.averaged) if scale.averaged > 1 else nn.Identity(),
        MirrorAverage(resemblances),
        nn.GroupNorm(1, 2 * scale.filters, affine=False),
        nn.Flatten(),
    )


class _SideBySide(nn.ModuleList):
    """The outputs of several modules, one after the other."""

    def forward(self, x: Tensor) -> Tensor:
        return torch.cat([module(x) for module in self], 1)
