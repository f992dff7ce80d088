"""Certified upper bounds on the spectral norms of a stack of matrices, in double precision.

Power iteration would be faster, but approaches the norm from below. Each bound here includes its own rounding error.
"""

from __future__ import annotations

import math

import torch
from torch import Tensor

_EPS = torch.finfo(torch.float64).eps


def residual_bound(matrices: Tensor) -> Tensor:
    """Bounds on the spectral norms of nearly orthogonal matrices (k, n, m), shape (k,).

    Source: ||A||^2 = ||A'A|| <= 1 + ||A'A - I||_F, where A is the matrix or its transpose, whichever has more rows.
    """
    tall = (matrices if matrices.shape[-2] >= matrices.shape[-1] else matrices.mT).double()
    gram = tall.mT @ tall
    # An entry of A'A sums n products: its error is at most n eps |a||b|. Over all entries that is n eps ||A||_F^2,
    # which is n eps times the trace of A'A.
    rounding = tall.shape[-2] * _EPS * gram.diagonal(dim1=-2, dim2=-1).sum(-1)
    gram.diagonal(dim1=-2, dim2=-1).sub_(1)
    return torch.sqrt(1 + torch.linalg.matrix_norm(gram) + rounding)


def frobenius_bound(matrices: Tensor) -> Tensor:
    """The Frobenius norms of matrices (k, n, m), which bound their spectral norms, shape (k,)."""
    rounding = math.prod(matrices.shape[-2:]) * _EPS
    return torch.linalg.vector_norm(matrices, dim=(-2, -1), dtype=torch.float64) * (1 + rounding)
