"""A linear layer on how much an image and its mirror image resemble patches of several sizes, and on their wavelets."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import torch
from torch import Tensor, nn

from noisette._internal.shaded_leaves import drawn
from noisette.lipschitz.torch_modules import output_shape
from noisette.models.fixed_features import FixedFeatures
from noisette.models.shapes import Shape, need_images, numbers_of
from noisette.nn import MirrorAverage, PatchFeatures, Scattering2d

F = nn.functional

_IMAGES, _SIDE = 2000, 32
_ACROSS = 4  # scattering coefficients are averages over this many parts of the image in each direction


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
    return _linear(_SideBySide(_of_scales(scales, shape[0])), shape, classes)


def patches_and_scattering(shape: Shape, classes: int, *, scales: tuple[PatchScale, ...] = SCALES) -> nn.Module:
    """The features of :func:`multi_scale_patches` beside scattering coefficients, and one linear layer.

    The coefficients are averaged over sixteenths of the image and over both mirror images, and normalised for each
    example.

    Args:
        shape: of an image, (channels, height, width); height and width are multiples of four.
        classes: number of scores for each image.
        scales: the sizes of the patches.

    Source: :class:`noisette.nn.PatchFeatures`, :class:`noisette.nn.Scattering2d`.
    """
    need_images("patches-and-scattering", shape, pixels=12)
    coefficients = Scattering2d()
    averaged = nn.Sequential(coefficients, nn.AdaptiveAvgPool2d(_ACROSS))
    wavelets = _normalised(MirrorAverage(averaged), shape[0] * coefficients.channels)
    return _linear(_SideBySide([*_of_scales(scales, shape[0]), wavelets]), shape, classes)


def _of_scales(scales: Sequence[PatchScale], channels: int) -> list[nn.Module]:
    """The features of each scale, flat."""
    leaves = torch.as_tensor(drawn(_IMAGES, 0, side=_SIDE, channels=channels))
    return [_of_scale(scale, leaves) for scale in scales]


def _of_scale(scale: PatchScale, leaves: Tensor) -> nn.Module:
    public = F.avg_pool2d(leaves, scale.averaged)
    resemblances = PatchFeatures.of_public(public, scale.filters, side=scale.side, stride=scale.stride)
    averaged = nn.AvgPool2d(scale.averaged) if scale.averaged > 1 else nn.Identity()
    return nn.Sequential(averaged, *_normalised(MirrorAverage(resemblances), 2 * scale.filters))


def _normalised(features: nn.Module, channels: int) -> nn.Sequential:
    """Features (b, channels, ...), flat, those of each example with mean zero and variance one."""
    return nn.Sequential(features, nn.GroupNorm(1, channels, affine=False), nn.Flatten())


def _linear(features: nn.Module, shape: Shape, classes: int) -> FixedFeatures:
    return FixedFeatures(features, nn.Linear(numbers_of(output_shape(features, shape)), classes))


class _SideBySide(nn.ModuleList):
    """The outputs of several modules, one after the other."""

    def forward(self, x: Tensor) -> Tensor:
        return torch.cat([module(x) for module in self], 1)
