"""Upper bounds of spectral norms, against singular values of dense matrices and values worked out by hand."""

from __future__ import annotations

import math

import pytest
import torch
from torch import Tensor

from lipschitz_ascent import spectral_norm
from noisette.lipschitz.propagation import frobenius_bound, residual_bound

SHAPES = [(1, 9), (5, 5), (40, 12), (12, 40)]
BOUNDS = [residual_bound, frobenius_bound]
every_bound = pytest.mark.parametrize("bound", BOUNDS, ids=lambda f: f.__name__)
every_shape = pytest.mark.parametrize("shape", SHAPES, ids=str)


def random(*shape: int, seed: int = 0) -> Tensor:
    return torch.randn(shape, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)


@every_bound
@every_shape
@pytest.mark.parametrize("scale", [0.0, 1e-30, 1.0, 1e30])
def test_no_spectral_norm_exceeds_its_bound(bound, shape, scale) -> None:
    matrices = scale * torch.stack([random(*shape, seed=s) for s in range(4)])
    for matrix, norm in zip(matrices, bound(matrices), strict=True):
        assert spectral_norm(matrix) <= float(norm) * (1 + 1e-15)


@every_bound
def test_bounds_of_orthogonal_matrices_cover_rounding(bound) -> None:
    for seed in range(20):
        q = torch.linalg.qr(random(30, 11, seed=seed))[0]
        for matrix in (q, q.float().double(), q.mT.contiguous()):
            assert spectral_norm(matrix) <= float(bound(matrix[None]))


def test_the_residual_bound_of_matrices_that_are_orthogonal_up_to_rounding_is_one() -> None:
    q = torch.linalg.qr(random(30, 11))[0]
    assert 1 <= float(residual_bound(q[None])) < 1 + 1e-11
    # (1 + 0.1)^2 - 1 = 0.21 on the diagonal, in four places: a residual of 0.42.
    scaled = 1.1 * torch.eye(4, dtype=torch.float64)
    assert float(residual_bound(scaled[None])) == pytest.approx(math.sqrt(1.42), rel=1e-12)


def test_the_frobenius_bound_of_a_small_matrix() -> None:
    matrix = torch.tensor([[3.0, 1, 0], [1, 2, 1], [0, 1, 1], [2, 0, 1]], dtype=torch.float64)
    assert float(frobenius_bound(matrix[None])) == pytest.approx(math.sqrt(23), rel=1e-12)
