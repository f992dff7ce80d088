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


def frobenius_bound(matrices: Tensor) -> Tensor:
    """The Frobenius norms of matrices (k, n, m), which bound the spectral ones, shape (k,)."""
    rounding = math.prod(matrices.shape[-2:]) * _EPS
    return torch.linalg.vector_norm(matrices, dim=(-2, -1), dtype=torch.float64) * (1 + rounding)


def _gram(matrices: Tensor) -> tuple[Tensor, Tensor]:
    """A'A of the tall form, and a bound on the spectral norm of what rounding did to it."""
    tall = (matrices if matrices.shape[-2] >= matrices.shape[-1] else matrices.mT).double()
    gram = tall.mT @ tall
    return gram, tall.shape[-2] * _EPS * gram.diagonal(dim1=-2, dim2=-1).sum(-1)
