"""A linear layer on how much the parts of an image resemble patches of images of a random process."""

from __future__ import annotations

import torch
from torch import nn

from noisette._internal.dead_leaves import drawn
from noisette.lipschitz.torch_modules import output_shape
from noisette.models.fixed_features import FixedFeatures
from noisette.models.shapes import Shape, need_images, numbers_of
from noisette.nn import PatchFeatures

_IMAGES, _SIDE = 2000, 32


def patches(shape: Shape, classes: int, *, filters: int = 400, side: int = 6, stride: int = 1) -> nn.Module:
    """Resemblances to patches of dead leaves, normalised for each example, and one linear layer.

    The dictionary comes from the same images of a random process each time, so there is no record to protect.

    Args:
        shape: of an image, (channels, height, width).
        classes: number of scores for each image.
        filters: patches of the dictionary.
        side: height and width of a patch.
        stride: pixels between the patches of an image.

    Source: :class:`noisette.nn.PatchFeatures`.
    """
    need_images("patches", shape)
    leaves, _ = drawn(_IMAGES, 0, side=_SIDE, channels=shape[0])
    resemblances = PatchFeatures.of_public(torch.as_tensor(leaves), filters, side=side, stride=stride)
    normalised = nn.Sequential(resemblances, nn.GroupNorm(1, 2 * filters, affine=False), nn.Flatten())
    return FixedFeatures(normalised, nn.Linear(numbers_of(output_shape(normalised, shape)), classes))
