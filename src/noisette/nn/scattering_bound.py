"""An upper bound on the Lipschitz constant of scattering, computed from its kernels."""

from __future__ import annotations

import torch
from torch import Tensor
from torch.nn import functional as F

_AT_ONCE = 32  # images; a convolution in double precision takes their memory times the pixels of its kernel
_ROUNDING = 1e-6  # relative; error of kernels in single precision and of eigenvalues


@torch.no_grad()
def lipschitz_constant(
    fine: Tensor, coarse: Tensor, blur: Tensor, blur_half: Tensor, size: tuple[int, int], order: int
) -> float:
    """Bounds the norm of the difference of two images' features by a multiple of that of the images, for one channel.

    The modulus is 1-Lipschitz, so only the linear maps matter: F and C, the wavelets of the fine and the coarse scale,
    and the blurs A and B. If two images differ by d, the norm of the difference of their features is at most the
    square root of

        |A|^2 (|d|^2 + |F d|^2) + |B|^2 (|C d|^2 + |C|^2 |F d|^2),

    where the last term is that of the second order. This is a quadratic form in d, and its largest eigenvalue is the
    square of the constant. The matrix of every map is computed pixel by pixel, including its padding.
    """
    pixels = torch.eye(size[0] * size[1], dtype=torch.float64, device=fine.device).view(-1, 1, *size)
    half = (size[0] // 2, size[1] // 2)
    halved = torch.eye(half[0] * half[1], dtype=torch.float64, device=fine.device).view(-1, 1, *half)
    fine_form, coarse_form = _quadratic_form(pixels, fine, 1), _quadratic_form(pixels, coarse, 2)
    blur_norm = _largest_eigenvalue(_quadratic_form(pixels, blur, 4))  # |A|^2
    half_norm = _largest_eigenvalue(_quadratic_form(halved, blur_half, 2))  # |B|^2
    identity = torch.eye(len(pixels), dtype=torch.float64, device=fine.device)
    total = blur_norm * (identity + fine_form) + half_norm * coarse_form
    if order == 2:
        total += half_norm * _largest_eigenvalue(coarse_form) * fine_form
    return _largest_eigenvalue(total) ** 0.5 * (1 + _ROUNDING)


def _quadratic_form(pixels: Tensor, kernels: Tensor, stride: int) -> Tensor:
    """M'M of the linear map M from an image to all responses of these kernels."""
    radius = kernels.shape[-1] // 2
    padded = F.pad(pixels, (radius,) * 4, mode="reflect").split(_AT_ONCE)
    form = pixels.new_zeros(len(pixels), len(pixels))
    for kernel in kernels.double().split(1):
        rows = torch.cat([F.conv2d(part, kernel, stride=stride) for part in padded]).flatten(1)
        form.addmm_(rows, rows.T)
    return form


def _largest_eigenvalue(form: Tensor) -> float:
    return float(torch.linalg.eigvalsh(form)[-1])
