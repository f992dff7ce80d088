"""Upper bounds of spectral norms, against the singular values of dense matrices and numbers worked out by hand."""

from __future__ import annotations

import math

import pytest
import torch
from torch import Tensor

from lipschitz_ascent import dense_matrix, spectral_norm
from noisette.lipschitz.norm_bounds import frequency_bound, frobenius_bound, residual_bound

F = torch.nn.functional
SHAPES = [(1, 1), (1, 9), (9, 1), (5, 5), (40, 12), (12, 40), (3, 200)]
BOUNDS = [residual_bound, frobenius_bound]
every_bound = pytest.mark.parametrize("bound", BOUNDS, ids=lambda f: f.__name__)
every_shape = pytest.mark.parametrize("shape", SHAPES, ids=str)


def random(*shape: int, seed: int = 0) -> Tensor:
    return torch.randn(shape, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)


@every_bound
@every_shape
@pytest.mark.parametrize("scale", [0.0, 1e-30, 1e-3, 1.0, 1e6, 1e30])
def test_no_matrix_is_longer_than_its_bound(bound, shape, scale) -> None:
    matrices = scale * torch.stack([random(*shape, seed=s) for s in range(4)])
    for matrix, norm in zip(matrices, bound(matrices), strict=True):
        assert spectral_norm(matrix) <= float(norm) * (1 + 1e-15)


@every_bound
def test_no_orthogonal_matrix_is_longer_than_its_bound_even_by_rounding(bound) -> None:
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


def test_the_frobenius_bound_of_a_small_matrix_is_worked_out_by_hand() -> None:
    matrix = torch.tensor([[3.0, 1, 0], [1, 2, 1], [0, 1, 1], [2, 0, 1]], dtype=torch.float64)
    assert float(frobenius_bound(matrix[None])) == pytest.approx(math.sqrt(23), rel=1e-12)


def test_frequencies_on_the_grid_of_the_image_itself_would_be_too_few() -> None:
    kernel = torch.tensor([[[[[-1.0, 1, -1]]]]], dtype=torch.float64)
    dense = dense_matrix(lambda x: F.conv2d(x, kernel[0], padding=(0, 1)), (1, 1, 3))
    assert spectral_norm(dense) == pytest.approx(2.41421, abs=1e-5)
    assert float(frequency_bound(kernel, (1, 5))) == pytest.approx(2.61803, abs=1e-5)
    assert float(frequency_bound(kernel, (1, 3))) < spectral_norm(dense)  # why the grid must be larger


@pytest.mark.parametrize("side", [3, 4, 5, 6, 8])
@pytest.mark.parametrize(
    ("taps", "stride", "padding", "dilation"),
    [(3, 1, 1, 1), (3, 1, 0, 1), (3, 2, 1, 1), (3, 1, 2, 2), (2, 1, 1, 1), (1, 1, 0, 1), (3, 1, 4, 1)],
    ids=str,
)
def test_no_convolution_is_longer_than_its_frequencies(side, taps, stride, padding, dilation) -> None:
    kernel = random(3, 2, taps, taps, seed=side)
    reach = dilation * (taps - 1)
    bound = float(frequency_bound(kernel[None], (side + reach, side + reach), (dilation, dilation)))
    dense = dense_matrix(
        lambda x: F.conv2d(x, kernel, stride=stride, padding=padding, dilation=dilation), (2, side, side)
    )
    assert spectral_norm(dense) <= bound
    if stride == 1 and padding >= reach:
        assert spectral_norm(dense) > 0.8 * bound


def test_a_circular_convolution_is_as_long_as_its_largest_frequency() -> None:
    kernel = random(3, 2, 3, 3)
    for height, width in ((6, 5), (5, 6), (4, 4)):  # odd and even sides: half the frequencies are enough
        dense = dense_matrix(lambda x: F.conv2d(F.pad(x, (1, 1, 1, 1), mode="circular"), kernel), (2, height, width))
        assert float(frequency_bound(kernel[None], (height, width))) == pytest.approx(spectral_norm(dense), rel=1e-9)


def test_each_kernel_of_a_stack_has_a_bound_of_its_own() -> None:
    kernels = random(4, 3, 2, 3, 2)
    together = frequency_bound(kernels, (6, 6))
    alone = torch.cat([frequency_bound(kernel[None], (6, 6)) for kernel in kernels])
    torch.testing.assert_close(together, alone, rtol=1e-12, atol=0)


def test_taps_that_lie_apart_are_those_of_a_larger_kernel_with_zeros_between() -> None:
    kernel = torch.tensor([[[[[1.0, 1, -1]]]]], dtype=torch.float64)
    spread = torch.zeros(1, 1, 1, 1, 7, dtype=torch.float64)
    spread[..., ::3] = kernel
    for grid in ((1, 9), (1, 12), (1, 13)):
        apart = float(frequency_bound(kernel, grid, dilation=(1, 3)))
        assert apart == pytest.approx(float(frequency_bound(spread, grid)), rel=1e-12)


def test_a_kernel_that_reaches_over_the_grid_is_refused() -> None:
    with pytest.raises(ValueError, match="reaches 4 pixels does not fit a grid of side 4"):
        frequency_bound(random(1, 1, 1, 3, 3), (4, 4), dilation=(2, 2))
