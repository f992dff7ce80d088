"""Built-in models on fixed features, and those with a known Lipschitz constant."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import pairwise
from typing import NamedTuple

import torch
from torch import Tensor, nn

from noisette.data.built_in_images import shaded_leaves
from noisette.lipschitz.blocks import MixerBlock, SphereInput
from noisette.lipschitz.layers import GroupSort2, LayerCentering, PatchConv2d, SpectralLinear
from noisette.lipschitz.projections import FrobeniusBall
from noisette.lipschitz.propagation import output_shape
from noisette.nn.features import PatchFeatures, Scattering2d
from noisette.nn.models.networks import FixedFeatures, Shape, need_images, numbers_of
from noisette.nn.views import MirrorAverage

__all__ = ["PatchScale", "lipschitz_dense", "lipschitz_linear", "lipschitz_mixer", "patches_and_scattering"]
__all__ += ["scattering_lipschitz_linear"]


_IMAGES, _SIDE = 2000, 32
_ACROSS = 4  # scattering coefficients are averages over this many parts of the image in each direction


class PatchScale(NamedTuple):
    """Patches of one size, of images that are averaged over squares first."""

    averaged: int  # pixels on a side of such a square, which becomes one pixel
    filters: int  # patches of the dictionary
    side: int = 6  # height and width of a patch, in averaged pixels
    stride: int = 1  # averaged pixels between the patches of an image


SCALES = (PatchScale(1, 400, stride=2), PatchScale(2, 400))


def patches_and_scattering(shape: Shape, classes: int, *, scales: tuple[PatchScale, ...] = SCALES) -> nn.Module:
    """Resemblances to patches of shaded leaves at several scales beside scattering coefficients, and one linear layer.

    Both are averaged over an image and its mirror image, so that these have the same scores, and those of a scale are
    normalised for each example; see :class:`noisette.nn.PatchFeatures`. The dictionaries come from the same images of a
    random process each time, so there is no record to protect. The coefficients are averaged over sixteenths of the
    image, whose sides are multiples of four.
    """
    need_images("patches-and-scattering", shape, pixels=12)
    coefficients = Scattering2d()
    averaged = nn.Sequential(coefficients, nn.AdaptiveAvgPool2d(_ACROSS))
    wavelets = _normalised(MirrorAverage(averaged), shape[0] * coefficients.channels)
    features = _SideBySide([*_of_scales(scales, shape[0]), wavelets])
    return FixedFeatures(features, nn.Linear(numbers_of(output_shape(features, shape)), classes))


def _of_scales(scales: Sequence[PatchScale], channels: int) -> list[nn.Module]:
    """The features of each scale, flat."""
    leaves = torch.as_tensor(shaded_leaves(_IMAGES, 0, side=_SIDE, channels=channels))
    found: list[nn.Module] = []
    for averaged, filters, side, stride in scales:
        public = nn.functional.avg_pool2d(leaves, averaged)
        features = PatchFeatures.of_public(public, filters, side=side, stride=stride)
        smaller = nn.AvgPool2d(averaged) if averaged > 1 else nn.Identity()
        found.append(nn.Sequential(smaller, *_normalised(MirrorAverage(features), 2 * filters)))
    return found


def _normalised(features: nn.Module, channels: int) -> nn.Sequential:
    """Features (b, channels, ...), flat, those of each example with mean zero and variance one."""
    return nn.Sequential(features, nn.GroupNorm(1, channels, affine=False), nn.Flatten())


class _SideBySide(nn.ModuleList):
    """The outputs of several modules, one after the other."""

    def forward(self, x: Tensor) -> Tensor:
        return torch.cat([module(x) for module in self], 1)


def lipschitz_linear(shape: Shape, classes: int) -> FixedFeatures:
    """One linear layer on the values of an example; images are centred first."""
    return FixedFeatures(_centred(shape), linear_head(numbers_of(shape), classes))


def lipschitz_dense(shape: Shape, classes: int, *, units: Sequence[int] = (128,)) -> FixedFeatures:
    """Orthogonal layers with GroupSort2 between them, on the values of an example; images are centred first."""
    return FixedFeatures(_centred(shape), dense_head(numbers_of(shape), units, classes))


def scattering_lipschitz_linear(shape: Shape, classes: int) -> FixedFeatures:
    """One linear layer on scattering coefficients of the first order, best standardised by public examples."""
    need_images("scattering-lipschitz-linear", shape, pixels=12)
    coefficients = Scattering2d(order=1)
    return FixedFeatures(coefficients, linear_head(numbers_of(output_shape(coefficients, shape)), classes))


def lipschitz_mixer(shape: Shape, classes: int, *, channels: int = 64, blocks: int = 1) -> FixedFeatures:
    """An MLP-Mixer on patches of 4 x 4 pixels: orthogonal layers mix tokens, then channels.

    Source: Bethune et al. 2024, the network of their CIFAR-10 runs, without skip connections.
    """
    need_images("lipschitz-mixer", shape, pixels=4)
    if any(side % 4 for side in shape[1:]):
        raise ValueError(f"the model 'lipschitz-mixer' cuts images into patches of 4 x 4 pixels, got {tuple(shape)}")
    tokens = shape[1] * shape[2] // 16
    return FixedFeatures(
        LayerCentering((1, 2, 3)),
        nn.Sequential(
            SphereInput(1.0),
            PatchConv2d(shape[0], channels, patch=4),
            *(MixerBlock(tokens, channels) for _ in range(blocks)),
            nn.Flatten(),
            SpectralLinear(channels * tokens, classes),
        ),
    )


def _centred(shape: Shape) -> nn.Module:
    return LayerCentering(tuple(range(1, 1 + len(shape)))) if len(shape) > 1 else nn.Identity()


def linear_head(numbers: int, classes: int) -> nn.Sequential:
    """One linear layer on the sphere, with Frobenius norm at most one and initial weights of zero."""
    linear = SpectralLinear(numbers, classes, FrobeniusBall())
    nn.init.zeros_(linear.weight)
    return nn.Sequential(nn.Flatten(), SphereInput(1.0), linear)


def dense_head(numbers: int, units: Sequence[int], classes: int) -> nn.Sequential:
    """Orthogonal layers of these widths, with GroupSort2 between them."""
    layers = [SpectralLinear(*widths) for widths in pairwise([numbers, *units, classes])]
    hidden = [part for layer in layers[:-1] for part in (layer, GroupSort2())]
    return nn.Sequential(nn.Flatten(), SphereInput(1.0), *hidden, layers[-1])
