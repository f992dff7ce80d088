"""1-Lipschitz networks, for training without clipping. They have few layers, since the noise grows with their number.

Each has fixed features, then projects every example to a sphere, and ends with scores. Train them with a loss whose
gradient has a known bound, such as :class:`noisette.nn.lipschitz.TauCrossEntropy`.

Source: Bethune et al. 2024.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from itertools import pairwise

from torch import nn

from noisette.lipschitz.projections import FrobeniusBall
from noisette.lipschitz.torch_modules import output_shape
from noisette.models.fixed_features import FixedFeatures
from noisette.models.shapes import Shape, need_axes, need_images, numbers_of
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
    """One linear layer on the values of an example; images are centred first."""
    return FixedFeatures(_centred(shape), linear_head(numbers_of(shape), classes))


def lipschitz_dense(shape: Shape, classes: int, *, units: Sequence[int] = (128,)) -> FixedFeatures:
    """Orthogonal layers with GroupSort2 between them, on the values of an example; images are centred first."""
    return FixedFeatures(_centred(shape), _dense_head(numbers_of(shape), units, classes))


def lipschitz_rows(shape: Shape, classes: int, *, units: int = 64) -> FixedFeatures:
    """An orthogonal layer with GroupSort2, and a linear layer on its outputs and its inputs, rows of numbers about 1.

    Raises:
        ValueError: examples are not rows of numbers.
    """
    need_axes("lipschitz-rows", shape, 1, "rows of numbers")
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
    frequencies = nn.Sequential(LayerCentering((1, 2, 3)), DctCut(k))
    return FixedFeatures(frequencies, _dense_head(shape[0] * k * k, units, classes))


def scattering_lipschitz_linear(shape: Shape, classes: int) -> FixedFeatures:
    """One linear layer on scattering coefficients of the first order.

    Accuracy is much better where the coefficients are standardised by public examples.

    Source: Tramèr & Boneh 2021, for scattering as features of private training.
    """
    need_images("scattering-lipschitz-linear", shape, pixels=12)
    coefficients = Scattering2d(order=1)
    return FixedFeatures(coefficients, linear_head(numbers_of(output_shape(coefficients, shape)), classes))


def lipschitz_patch(shape: Shape, classes: int, *, channels: int = 16) -> FixedFeatures:
    """A convolution of overlapping patches of 7 x 7 pixels, three pixels apart, pooling, and one linear layer.

    The vector of all patches of an image is projected to the sphere, so their overlap does not add to the bound.
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
    """An MLP-Mixer on patches of 4 x 4 pixels: orthogonal layers mix tokens, then channels.

    Source: Bethune et al. 2024, the network of their CIFAR-10 runs, without skip connections.

    Raises:
        ValueError: the sides of the images are not multiples of four.
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
    """One linear layer on the sphere, with Frobenius norm at most one and initial weights of zero.

    With a large tau of the loss the weights stay far inside that ball, as if unconstrained.
    """
    linear = SpectralLinear(numbers, classes, FrobeniusBall())
    nn.init.zeros_(linear.weight)
    return nn.Sequential(nn.Flatten(), SphereInput(1.0), linear)


def _dense_head(numbers: int, units: Sequence[int], classes: int) -> nn.Sequential:
    layers = [SpectralLinear(*widths) for widths in pairwise([numbers, *units, classes])]
    hidden = [part for layer in layers[:-1] for part in (layer, GroupSort2())]
    return nn.Sequential(nn.Flatten(), SphereInput(1.0), *hidden, layers[-1])
