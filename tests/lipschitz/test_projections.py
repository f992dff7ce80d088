"""Upper bounds of spectral norms, and projections onto sets of matrices, against singular values."""

from __future__ import annotations

import math

import pytest
import torch
from torch import Tensor

from lipschitz_ascent import spectral_norm
from noisette.lipschitz import Projection
from noisette.lipschitz.projections import FrobeniusBall, Orthogonal, frobenius_bound, residual_bound

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


PROJECTIONS: list[Projection] = [Orthogonal(), FrobeniusBall(), FrobeniusBall(0.3)]
every_projection = pytest.mark.parametrize("projection", PROJECTIONS, ids=str)
every_precision = pytest.mark.parametrize("dtype", [torch.float32, torch.float64], ids=str)


def nearly_deficient() -> Tensor:
    u, _, vh = torch.linalg.svd(random(20, 9), full_matrices=False)
    return (u * torch.logspace(0, -9, 9, dtype=torch.float64)) @ vh


MATRICES = {
    "random": random(40, 17),
    "wide": random(6, 30),
    "square": random(12, 12),
    "rank-deficient": random(20, 3) @ random(3, 9),
    "nearly rank-deficient": nearly_deficient(),
    "zero": torch.zeros(7, 5, dtype=torch.float64),
    "with a zero column": random(7, 5) * torch.tensor([1, 1, 0, 1, 1]),
    "huge": 1e6 * random(9, 6),
    "beyond the range of squares": 1e30 * random(9, 6),
    "tiny": 1e-6 * random(9, 6),
    "below the range of squares": 1e-30 * random(9, 6),
    "one row": random(1, 11),
    "one column": random(11, 1),
    "one number": random(1, 1),
    "just above": torch.linalg.qr(random(15, 15))[0] * 1.7,
}
every_matrix = pytest.mark.parametrize("matrix", MATRICES.values(), ids=MATRICES)


@every_projection
@every_precision
@every_matrix
def test_a_projected_matrix_is_in_its_set_and_its_certified_norm_is_an_upper_bound(projection, dtype, matrix) -> None:
    [found], [norm] = projection(matrix.to(dtype)[None])
    truth = spectral_norm(found)
    assert found.dtype == dtype
    assert norm.dtype == torch.float64
    assert truth <= float(norm)
    assert truth <= getattr(projection, "radius", 1.0) * (1 + 1e-6)
    twice, again = projection(found[None])
    torch.testing.assert_close(twice[0], found, rtol=0, atol=1e-6)
    torch.testing.assert_close(again[0], norm, rtol=0, atol=1e-5)


@every_precision
@every_matrix
def test_all_singular_values_of_an_orthogonal_matrix_are_one(dtype, matrix) -> None:
    found, norms = Orthogonal()(matrix.to(dtype)[None])
    torch.testing.assert_close(
        torch.linalg.svdvals(found[0].double()),
        torch.ones(min(matrix.shape), dtype=torch.float64),
        rtol=0,
        atol=3e-6 if dtype == torch.float32 else 1e-9,
    )
    assert float(norms) < 1 + 1e-5


def test_orthogonal_matrices_are_returned_bit_for_bit() -> None:
    found, _ = Orthogonal()(random(3, 20, 8).float())
    again, _ = Orthogonal()(found)
    assert torch.equal(again, found)


def test_frobenius_ball_scales_matrices_outside_of_it_to_its_radius() -> None:
    found, norms = FrobeniusBall(2.5)(torch.tensor([[[3.0, 4.0]], [[0.6, 0.8]]]))
    torch.testing.assert_close(found, torch.tensor([[[1.5, 2.0]], [[0.6, 0.8]]]))
    torch.testing.assert_close(norms, torch.tensor([2.5, 1.0], dtype=torch.float64), rtol=0, atol=1e-6)


@every_projection
def test_a_stack_is_projected_as_its_members_are(projection) -> None:
    stack = torch.stack([random(9, 6), torch.zeros(9, 6, dtype=torch.float64), 1e-6 * random(9, 6), 3 * random(9, 6)])
    found, norms = projection(stack)
    for k, matrix in enumerate(stack):
        alone, norm = projection(matrix[None])
        torch.testing.assert_close(found[k], alone[0], rtol=0, atol=1e-9)
        torch.testing.assert_close(norms[k], norm[0], rtol=0, atol=1e-9)


@every_projection
def test_weights_that_are_not_finite_are_refused(projection) -> None:
    matrices = torch.ones(2, 3, 4)
    matrices[1, 0, 2] = math.inf
    with pytest.raises(ValueError, match="1 of 24 weights are not finite"):
        projection(matrices)


@pytest.mark.parametrize("radius", [0.0, -1.0, math.inf, math.nan])
def test_a_radius_outside_of_its_domain_is_refused(radius) -> None:
    with pytest.raises(ValueError, match="radius"):
        FrobeniusBall(radius)
