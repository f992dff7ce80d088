"""How far scattering can stretch the difference of two images: its Lipschitz constant, bounded from its own kernels."""

from __future__ import annotations

import torch
from torch import Tensor
from torch.nn import functional as F

_ROUNDING = 1e-6  # relative; of kernels in single precision, and of eigenvalues


@torch.no_grad()
def stretch(fine: Tensor, coarse: Tensor, blur: Tensor, blur_half: Tensor, size: tuple[int, int], order: int) -> float:
    """Bound on the norm of the difference of two images' features over that of the images, for one channel of them.

    Moduli stretch nothing, so what is left are linear maps: F and C, the wavelets of both scales, and the blurs A and
    B. For a difference d of images, its features are no longer than the root of

        |A|^2 (|d|^2 + |F d|^2) + |B|^2 (|C d|^2 + |C|^2 |F d|^2),

    where the last term is that of the second order: a quadratic form in d, whose largest eigenvalue is the square of
    the constant. Every map is taken with its padding, pixel by pixel.
    """
    pixels = torch.eye(size[0] * size[1], dtype=torch.float64, device=fine.device).view(-1, 1, *size)
    half = (size[0] // 2, size[1] // 2)
    halved = torch.eye(half[0] * half[1], dtype=torch.float64, device=fine.device).view(-1, 1, *half)
    within_fine, within_coarse = _form(pixels, fine, 1), _form(pixels, coarse, 2)
    blurred, blurred_half = _largest(_form(pixels, blur, 4)), _largest(_form(halved, blur_half, 2))
    once = torch.eye(len(pixels), dtype=torch.float64, device=fine.device)
    total = blurred * (once + within_fine) + blurred_half * within_coarse
    if order == 2:
        total += blurred_half * _largest(within_coarse) * within_fine
    return _largest(total) ** 0.5 * (1 + _ROUNDING)


def _form(pixels: Tensor, kernels: Tensor, stride: int) -> Tensor:
    """M'M of the linear map M from an image to all responses of these kernels."""
    radius = kernels.shape[-1] // 2
    padded = F.pad(pixels, (radius,) * 4, mode="reflect")
    responses = (F.conv2d(padded, kernel.double(), stride=stride).flatten(1) for kernel in kernels.split(1))
    return torch.stack([rows @ rows.T for rows in responses]).sum(0)


def _largest(form: Tensor) -> float:
    return float(torch.linalg.eigvalsh(form)[-1])
