"""Upper bounds on how far each matrix of a stack stretches a vector, in double precision.

Power iteration would be faster, but it approaches the norm from below. Each bound here covers its own rounding.
"""

from __future__ import annotations

import math

import torch
from torch import Tensor

_EPS = torch.finfo(torch.float64).eps


def residual_bound(matrices: Tensor) -> Tensor:
    """Bounds for matrices (k, n, m) that are nearly orthogonal, shape (k,).

    Source: ||A||^2 = ||A'A|| <= 1 + ||A'A - I||_F, where A is the matrix or its transpose, whichever is tall.
    """
    gram, rounding = _gram(matrices)
    gram.diagonal(dim1=-2, dim2=-1).sub_(1)
    return torch.sqrt(1 + torch.linalg.matrix_norm(gram) + rounding)


def frequency_bound(kernels: Tensor, grid: tuple[int, int], dilation: tuple[int, int] = (1, 1)) -> Tensor:
    """Bounds for convolutions with the kernels (k, outputs, inputs, height, width), shape (k,).

    They hold for any stride and any padding with zeros, where each side of the grid is at least the image's side plus
    the kernel's reach ``dilation * (side - 1)``: such a convolution is a part of the circular one on the grid, whose
    norm is the largest among those of its frequencies.

    Raises:
        ValueError: the kernel reaches over the grid.
    """
    for side, taps, step in zip(grid, kernels.shape[-2:], dilation, strict=True):
        if step * (taps - 1) >= side:
            raise ValueError(f"a kernel that reaches {step * (taps - 1)} pixels does not fit a grid of side {side}")
    rows = _waves(grid[0], grid[0], kernels.shape[-2], dilation[0], kernels.device)
    # A real kernel has conjugate values at opposite frequencies: half of them will do.
    columns = _waves(grid[1], grid[1] // 2 + 1, kernels.shape[-1], dilation[1], kernels.device)
    spectra = torch.einsum("koiyx,uy,vx->kuvoi", kernels.to(torch.complex128), rows, columns)
    # Rounding is of the order of 1e-16 times the square root of a number of channels.
    return torch.linalg.matrix_norm(spectra, ord=2).amax((1, 2)) * (1 + 1e-10)


def frobenius_bound(matrices: Tensor) -> Tensor:
    """The Frobenius norms of matrices (k, n, m), which bound the spectral ones, shape (k,)."""
    rounding = math.prod(matrices.shape[-2:]) * _EPS
    return torch.linalg.vector_norm(matrices, dim=(-2, -1), dtype=torch.float64) * (1 + rounding)


def _gram(matrices: Tensor) -> tuple[Tensor, Tensor]:
    """A'A of the tall form, and a bound on the spectral norm of what rounding did to it."""
    tall = (matrices if matrices.shape[-2] >= matrices.shape[-1] else matrices.mT).double()
    gram = tall.mT @ tall
    return gram, tall.shape[-2] * _EPS * gram.diagonal(dim1=-2, dim2=-1).sum(-1)


def _waves(side: int, frequencies: int, taps: int, step: int, device: torch.device) -> Tensor:
    """Values at the taps of the grid's waves, shape (frequencies, taps)."""
    turns = torch.outer(torch.arange(frequencies, device=device), step * torch.arange(taps, device=device)) % side
    return torch.exp(-2j * math.pi * turns.double() / side)
