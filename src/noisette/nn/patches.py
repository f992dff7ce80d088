"""Patch features: how much each part of an image resembles patches of public images."""

from __future__ import annotations

from typing import Self

import torch
from torch import Tensor, nn

F = nn.functional

_ACROSS = 2  # the features are averages over this many parts of the image in each direction
_VARIANCE_FLOOR = 1e-3  # added to the variance of a patch, against noise in even areas; pixels are in [0, 1]
_WHITENING_FLOOR = 0.1  # added to the variances of the components of patches
_THRESHOLD = 0.5  # a resemblance below it counts as none
_PATCHES_PER_IMAGE = 20


class PatchFeatures(nn.Module):
    """How much the patches in each quarter of an image resemble those of a dictionary, or their negatives.

    Maps images (b, c, h, w) to features (b, 2 * filters, 2, 2). Each patch is brought to mean 0 and variance 1 and
    whitened. Its product with each patch of the dictionary, and the negative of this product, count from a threshold on
    and are averaged over a quarter of the image. All constants come from public images.

    Args:
        filters: the dictionary behind the whitening, (filters, c, side, side).
        bias: what the whitening subtracts from each product, (filters,).
        stride: pixels between patches.

    Guarantee: each image is treated alone; the constants say nothing about records they were not computed from.
    Source: Coates & Ng 2012, "Learning feature representations with k-means", with patches in the place of means.

    Raises:
        ValueError: the shapes do not fit each other.

    >>> PatchFeatures(torch.ones(5, 3, 6, 6), torch.zeros(5))(torch.rand(4, 3, 32, 32)).shape
    torch.Size([4, 10, 2, 2])
    """

    def __init__(self, filters: Tensor, bias: Tensor, stride: int = 1) -> None:
        super().__init__()
        if filters.dim() != 4 or filters.shape[2] != filters.shape[3] or bias.shape != filters.shape[:1]:
            raise ValueError(
                "expected filters (filters, channels, side, side) and as many biases, got "
                f"{tuple(filters.shape)} and {tuple(bias.shape)}"
            )
        self.stride = stride
        self.filters: Tensor
        self.bias: Tensor
        self.register_buffer("filters", filters.detach().clone(memory_format=torch.contiguous_format))
        self.register_buffer("bias", bias.detach().clone())

    @classmethod
    def of_public(cls, images: Tensor, filters: int, *, side: int = 6, stride: int = 1, seed: int = 0) -> Self:
        """With a dictionary of patches drawn from these images.

        Args:
            images: public ones, (n, channels, height, width), pixels in [0, 1].
            filters: how many patches the dictionary has.
            side: height and width of a patch.
            stride: pixels between patches.
            seed: of the generator that draws the patches.

        Guarantee: none for these images.
        """
        rows = _normalised(_drawn(images, side, torch.Generator().manual_seed(seed)))
        if not 1 <= filters <= len(rows):
            raise ValueError(f"expected from 1 to {len(rows)} filters of {len(images)} public images, got {filters}")
        mean = rows.mean(0)
        variances, components = torch.linalg.eigh(torch.cov(rows.T.double(), correction=0))
        whitening = (components / (variances + _WHITENING_FLOOR).sqrt()) @ components.T
        chosen = F.normalize((rows[:filters] - mean).double() @ whitening) @ whitening
        return cls(
            chosen.to(images).view(filters, images.shape[1], side, side), (chosen @ mean.double()).to(images), stride
        )

    @torch.no_grad()
    def forward(self, x: Tensor) -> Tensor:
        side = self.filters.shape[-1]
        # Products with normalised patches, without the patches: their means and deviations are averages of the image.
        centred = self.filters - self.filters.mean((1, 2, 3), keepdim=True)
        mean = F.avg_pool2d(x, side, self.stride).mean(1, keepdim=True)
        square = F.avg_pool2d(x.square(), side, self.stride).mean(1, keepdim=True)
        scale = (square - mean.square()).clamp_min(0).add(_VARIANCE_FLOOR).rsqrt()
        # In place: these are a thousand numbers for each pixel, and new memory costs more than the arithmetic.
        products = F.conv2d(x, centred, stride=self.stride).mul_(scale).sub_(self.bias.view(-1, 1, 1))
        alike = F.adaptive_avg_pool2d(F.relu(products - _THRESHOLD), _ACROSS)
        opposite = F.adaptive_avg_pool2d(products.neg_().sub_(_THRESHOLD).relu_(), _ACROSS)
        return torch.cat([alike, opposite], 1)

    def extra_repr(self) -> str:
        filters, channels, side, _ = self.filters.shape
        return f"{filters} patches of {channels} x {side} x {side}, stride {self.stride}"


def _drawn(images: Tensor, side: int, generator: torch.Generator) -> Tensor:
    """Patches at random places of the images, in a random order, one in each row."""
    high, wide = (length - side + 1 for length in images.shape[2:])
    number = len(images) * _PATCHES_PER_IMAGE
    down, across = (torch.randint(most, (number,), generator=generator) for most in (high, wide))
    owners = torch.randperm(number, generator=generator) % len(images)
    windows = images.unfold(2, side, 1).unfold(3, side, 1)  # (n, c, high, wide, side, side)
    return windows[owners, :, down, across].flatten(1)


def _normalised(rows: Tensor) -> Tensor:
    centred = rows - rows.mean(1, keepdim=True)
    return centred / (centred.square().mean(1, keepdim=True) + _VARIANCE_FLOOR).sqrt()
