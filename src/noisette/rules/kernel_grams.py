"""Plans for norms of a convolution kernel's gradients from Gram matrices over positions.

G = D U^T for dy as D (o, positions) and the unfolded image U, so |G|^2 = <D^T D, U^T U> as in
:meth:`Outer.squared_norms`.
"""

from __future__ import annotations

import math
from collections.abc import Callable

import torch
from torch import Tensor

from noisette.core.forms import gram_product
from noisette.rules.kernel_factors import KernelFactors

Norms = Callable[[KernelFactors], Tensor]  # squared norms, (b,)


def gram_of_pixels(form: KernelFactors) -> Tensor:
    """Norms from one Gram matrix of the padded image; the unfolded image is never formed.

    The entry (p, q) of U^T U is the sum over kernel offsets u of the inner product of pixels p + u and q + u, so one
    Gram matrix serves every offset. For a kernel of 2 in one dimension, it is gram[p, q] + gram[p + 1, q + 1]. In more
    dimensions the sum is taken along one axis of the kernel after another.
    """
    g, positions = form.geometry, form.dy.shape[2:]
    padded = form.padded()
    image = padded.shape[2:]
    pixels = padded.reshape(-1, padded.shape[1] // g.groups, image.numel())
    patches = torch.bmm(pixels.transpose(1, 2), pixels).view(-1, *image, *image)
    for axis, (offsets, dilation, stride, n) in enumerate(zip(g.kernel, g.dilation, g.stride, positions, strict=True)):
        seen = (slice(u * dilation, u * dilation + (n - 1) * stride + 1, stride) for u in range(offsets))
        before, between = [slice(None)] * (1 + axis), [slice(None)] * (len(image) - 1)
        shifted = [patches[(*before, pixel, *between, pixel)] for pixel in seen]
        patches = _sum(shifted)
    return _gram_norms(form, patches.reshape(-1, form.positions, form.positions))


def _sum(terms: list[Tensor]) -> Tensor:
    """The sum of views, without a copy of them."""
    if len(terms) == 1:
        return terms[0]
    total = terms[0] + terms[1]
    for term in terms[2:]:
        total += term
    return total


def gram_of_patches(form: KernelFactors) -> Tensor:
    """Norms from the same Gram matrices, with the images unfolded: fewer passes where the kernel has many offsets."""
    patches = form.unfolded()
    return _gram_norms(form, torch.bmm(patches.transpose(1, 2), patches))


def _gram_norms(form: KernelFactors, patches: Tensor) -> Tensor:
    """Squared norms (b,) from the Gram matrices of patches, (example and group, position, position)."""
    dy = form.dy.reshape(patches.shape[0], -1, form.positions)
    norms = gram_product(torch.bmm(dy.transpose(1, 2), dy), patches)
    return norms.view(-1, form.geometry.groups).sum(1)


def _pixel_gram_size(form: KernelFactors) -> int:
    g = form.geometry
    return g.groups * math.prod(n + 2 * p for n, p in zip(form.x.shape[2:], g.padding, strict=True)) ** 2


def _patch_gram_size(form: KernelFactors) -> int:
    return form.unfolded_size + form.geometry.groups * form.positions**2


# Each with its number of temporary elements per example.
GRAM_PLANS: dict[str, tuple[Norms, Callable[[KernelFactors], int]]] = {
    "gram of pixels": (gram_of_pixels, _pixel_gram_size),
    "gram of patches": (gram_of_patches, _patch_gram_size),
}
