"""Networks that stretch no vector, for training without clipping: each is short, since noise grows with its weights.

All begin with fixed parts, put every example on a sphere, and end with scores; what they are trained with is a loss
that knows its slope, such as :class:`noisette.nn.lipschitz.TauCrossEntropy`.

Source: Bethune et al. 2024.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from itertools import pairwise

import torch
from torch import nn

from noisette.lipschitz.projections import FrobeniusBall
from noisette.models.fixed_features import FixedFeatures
from noisette.models.shapes import Shape, need_images, numbers_of
from noisette.nn import AppendOne, DctCut, Scattering2d
from noisette.nn.lipschitz import (
    GroupSort2,
    L2NormPool2d,
    LayerCentering,
    LipschitzConcat,
    MixerBlock,
    PatchConv2d,
    Patches,
    Scale,
    SpectralLinear,
    SphereInput,
)


def lipschitz_linear(shape: Shape, classes: int) -> FixedFeatures:
    """One linear layer on the numbers of an example, images less their mean."""
    return FixedFeatures(_centred(shape), linear_head(numbers_of(shape), classes))


def lipschitz_dense(shape: Shape, classes: int, *, units: Sequence[int] = (128,)) -> FixedFeatures:
    """Orthogonal layers with sorted pairs between them, on the numbers of an example, images less their mean."""
    return FixedFeatures(_centred(shape), _dense_head(numbers_of(shape), units, classes))


def lipschitz_rows(shape: Shape, classes: int, *, units: int = 64) -> FixedFeatures:
    """An orthogonal layer with sorted pairs on rows of numbers of about one each, and a linear layer on both.

    Raises:
        ValueError: examples are no rows.
    """
    if len(shape) != 1:
        raise ValueError(f"the model 'lipschitz-rows' needs rows of numbers, got examples of shape {tuple(shape)}")
    numbers = shape[0] + 1
    hidden = nn.Sequential(SpectralLinear(numbers, units), GroupSort2())
    return FixedFeatures(
        AppendOne(),
        nn.Sequential(
            SphereInput(1.0),
            LipschitzConcat([nn.Identity(), hidden]),
            Scale(math.sqrt(0.5)),
            SpectralLinear(numbers + units, classes),
        ),
    )


def dct_lipschitz_dense(shape: Shape, classes: int, *, k: int = 8, units: Sequence[int] = (128,)) -> FixedFeatures:
    """:func:`lipschitz_dense` on the k x k lowest frequencies of each channel of an image."""
    need_images("dct-lipschitz-dense", shape, pixels=k)
    cut = nn.Sequential(LayerCentering((1, 2, 3)), DctCut(k))
    return FixedFeatures(cut, _dense_head(shape[0] * k * k, units, classes))


def scattering_lipschitz_linear(shape: Shape, classes: int) -> FixedFeatures:
    """One linear layer on scattering coefficients of the first order, which carry it.

    Much better where the coefficients are standardised by public examples.

    Source: Tramèr & Boneh 2021, for scattering in front of private training.
    """
    need_images("scattering-lipschitz-linear", shape, pixels=12)
    coefficients = Scattering2d(order=1)
    with torch.no_grad():
        numbers = coefficients(torch.zeros(1, *shape)).numel()
    return FixedFeatures(coefficients, linear_head(numbers, classes))


def lipschitz_patch(shape: Shape, classes: int, *, channels: int = 16) -> FixedFeatures:
    """A convolution of overlapping patches of 7 x 7 pixels, three pixels apart, pooled, and one linear layer.

    All patches of an image together are put on the sphere, so that their overlap costs nothing.
    """
    need_images("lipschitz-patch", shape, pixels=10)
    patches = Patches(7, stride=3)
    height, width = ((side - 4) // 6 for side in shape[1:])
    return FixedFeatures(
        LayerCentering((1, 2, 3)),
        nn.Sequential(
            patches,
            SphereInput(1.0),
            PatchConv2d(shape[0] * 49, channels, patch=1),
            GroupSort2(),
            L2NormPool2d(2),
            nn.Flatten(),
            SpectralLinear(channels * height * width, classes),
        ),
    )


def lipschitz_mixer(shape: Shape, classes: int, *, channels: int = 64, blocks: int = 1) -> FixedFeatures:
    """An MLP mixer on patches of 4 x 4 pixels: tokens are mixed, then channels, all by orthogonal layers.

    Source: Bethune et al. 2024, the network of their CIFAR-10 runs, without skip connections.

    Raises:
        ValueError: the sides of the images are no multiples of four.
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
    """One layer on the sphere, all of whose weights together have a norm of one at most, so that it begins with zeros.

    A large tau of the loss keeps it far from that edge, as if nothing held it.
    """
    linear = SpectralLinear(numbers, classes, FrobeniusBall())
    nn.init.zeros_(linear.weight)
    return nn.Sequential(nn.Flatten(), SphereInput(1.0), linear)


def _dense_head(numbers: int, units: Sequence[int], classes: int) -> nn.Sequential:
    layers = [SpectralLinear(*widths) for widths in pairwise([numbers, *units, classes])]
    hidden = [part for layer in layers[:-1] for part in (layer, GroupSort2())]
    return nn.Sequential(nn.Flatten(), SphereInput(1.0), *hidden, layers[-1])
