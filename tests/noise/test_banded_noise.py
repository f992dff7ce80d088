"""Banded noise against dense matrices in double precision, and the sensitivity of its matrix by brute force."""

import math
from collections.abc import Sequence
from itertools import combinations, pairwise, product
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor

from noisette.core.noise import GaussianNoise, SecretKey, Window
from noisette.core.release import ROUNDING, BoundedSum, GaussianRelease
from noisette.noise.banded import (
    SLACK,
    BandedNoise,
    banded_coefficients,
    deviations_of,
    mean_squared_error,
    square_root_of_sums,
)
from noisette.ranks import Alone
from noisette.ranks.joint_sums import JointSums

KEY = SecretKey(bytes(range(32)))
COEFFICIENTS = banded_coefficients(4, 20)
SHAPES = {"weight": (7, 3), "bias": (301,), "scale": ()}


def matrix(coefficients: Sequence[float], steps: int) -> np.ndarray:
    return np.sum([np.diag(np.full(steps - k, c), -k) for k, c in enumerate(coefficients[:steps])], axis=0)


def independent(steps: int, name: str, numel: int, first: int = 0) -> np.ndarray:
    rows = []
    for step in range(first, first + steps):
        row = torch.zeros(numel, dtype=torch.float64)
        GaussianNoise(KEY).add_({name: row}, step=step)
        rows.append(row.numpy())
    return np.array(rows)


def drawn(noise: BandedNoise, step: int, dtype: torch.dtype = torch.float64, **numbers: Any) -> dict[str, Tensor]:
    tensors = {name: torch.ones(shape, dtype=dtype) for name, shape in SHAPES.items()}
    noise.add_(tensors, step=step, **numbers)
    return tensors


@pytest.mark.parametrize("bands", [2, 3, 8, 30])
@pytest.mark.parametrize("first", [0, 13])
def test_noise_is_the_inverse_of_c_times_independent_noise(bands: int, first: int) -> None:
    steps, coefficients = 20, banded_coefficients(bands, 20)
    noise = BandedNoise(GaussianNoise(KEY), coefficients)
    found = [drawn(noise, first + step, std=2.5, divisor=4.0) for step in range(steps)]
    for name, shape in SHAPES.items():
        numel = math.prod(shape)
        truth = np.linalg.solve(matrix(coefficients, steps), independent(steps, name, numel, first))
        streamed = np.array([tensors[name].numpy().reshape(-1) for tensors in found])
        np.testing.assert_allclose(streamed, 0.25 + 2.5 * truth, atol=2e-5)
        assert np.abs(truth).max() > 0.5


def test_the_noise_of_each_step_counts_in_units_of_its_own_deviation() -> None:
    """A clipping norm that changes between steps: C times the noise in these units is independent noise."""
    noise, stds = BandedNoise(GaussianNoise(KEY), COEFFICIENTS), [1.0, 0.1, 7.0, 2.0, 0.5, 3.0]
    units = [(drawn(noise, step, std=std)["bias"].numpy() - 1) / std for step, std in enumerate(stds)]
    mixed = matrix(COEFFICIENTS, len(stds)) @ np.array(units)
    np.testing.assert_allclose(mixed, independent(len(stds), "bias", 301), atol=1e-5)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64], ids=str)
def test_the_values_are_the_same_to_the_bit_however_a_tensor_is_divided(dtype: torch.dtype) -> None:
    ends = [0, 1, 130, 256, 261, 301]
    whole, parts = (BandedNoise(GaussianNoise(KEY), COEFFICIENTS) for _ in range(2))
    for step in range(7):
        one = torch.linspace(-1, 1, 301, dtype=dtype)
        whole.add_({"bias": one}, step=step, std=1.3, divisor=3.0)
        for start, end in pairwise(ends):
            part = torch.linspace(-1, 1, 301, dtype=dtype)[start:end].clone()
            parts.add_({"bias": part}, step=step, std=1.3, divisor=3.0, windows={"bias": Window(start=start)})
            assert torch.equal(part, one[start:end])


def test_after_a_missing_step_the_recursion_starts_anew() -> None:
    """With a gap in the noise a record's steps would meet in one row; two blocks keep its columns apart."""
    noise, fresh = (BandedNoise(GaussianNoise(KEY), COEFFICIENTS) for _ in range(2))
    for step in (0, 1, 2, 3):
        drawn(noise, step)
    for step in (5, 6, 7):
        found, expected = drawn(noise, step), drawn(fresh, step)
        assert all(torch.equal(found[name], expected[name]) for name in SHAPES)


@pytest.mark.parametrize("coefficients", [(), (1.0,), (0.5,), (0.9, 0.5), (0.0, 0.5), (-0.5, 0.5), (0.5, math.nan)])
def test_coefficients_that_are_refused(coefficients: tuple[float, ...]) -> None:
    with pytest.raises(ValueError, match="of norm 1 at most"):
        BandedNoise(GaussianNoise(KEY), coefficients)


def test_a_release_has_banded_noise() -> None:
    steps, rows = 6, []
    noise = BandedNoise(GaussianNoise(KEY), COEFFICIENTS)
    release = GaussianRelease(KEY, 1.5, 8.0, JointSums(noise.add_, Alone(), deviations_of(COEFFICIENTS)))
    for step in range(steps):
        p = torch.zeros(301, dtype=torch.float64)
        release([BoundedSum((p,), (torch.full_like(p, 16.0),), bound=2.0)], {id(p): "bias"}, step=step)
        rows.append(p.grad.numpy())
    truth = np.linalg.solve(matrix(COEFFICIENTS, steps), independent(steps, "bias", 301))
    np.testing.assert_allclose(rows, 2.0 + 1.5 * 2.0 * (1 + ROUNDING) / 8.0 * truth, atol=1e-5)


@pytest.mark.parametrize(("bands", "steps"), [(1, 5), (2, 9), (3, 9), (4, 11), (5, 3)])
@pytest.mark.parametrize("restart", [None, 4])
def test_sensitivity_by_brute_force(bands: int, steps: int, restart: int | None) -> None:
    """Over all sets of steps that are ``bands`` apart, and all signs of what the record adds in them.

    Also where the recursion starts anew in the middle: C then has two blocks.
    """
    c = matrix(banded_coefficients(bands, steps), steps)
    if restart is not None and restart < steps:
        c[restart:, :restart] = 0
    largest = 0.0
    for chosen in all_separated(steps, bands):
        for signs in product((-1.0, 1.0), repeat=len(chosen)):
            moved = sum(sign * c[:, step] for sign, step in zip(signs, chosen, strict=True))
            square = float(np.sum(np.square(moved)))
            assert square <= len(chosen)
            largest = max(largest, square / len(chosen))
    assert largest > 1 - 1e-5 or bands > steps


def all_separated(steps: int, bands: int) -> list[tuple[int, ...]]:
    return [
        chosen
        for many in range(1, steps + 1)
        for chosen in combinations(range(steps), many)
        if all(later - one >= bands for one, later in pairwise(chosen))
    ]


@pytest.mark.parametrize("bands", [2, 8, 64])
@pytest.mark.parametrize("steps", [3, 200])
def test_columns_have_norm_one_also_in_single_precision(bands: int, steps: int) -> None:
    coefficients = np.array(banded_coefficients(bands, steps))
    assert 1 - 2 * SLACK < np.linalg.norm(coefficients) < 1
    used = np.float32(1 / np.float32(1 / coefficients[0])) * (coefficients / coefficients[0]).astype(np.float32)
    assert np.linalg.norm(used.astype(np.float64)) < 1


@pytest.mark.parametrize(("bands", "steps"), [(1, 10), (2, 10), (5, 40), (16, 100), (40, 25)])
def test_the_error_is_that_of_dense_matrices(bands: int, steps: int) -> None:
    coefficients = banded_coefficients(bands, steps)
    dense = np.tril(np.ones((steps, steps))) @ np.linalg.inv(matrix(coefficients, steps))
    assert mean_squared_error(coefficients, steps) == pytest.approx(np.square(dense).sum() / steps, rel=1e-9)


@pytest.mark.parametrize(("bands", "steps"), [(3, 50), (8, 300)])
def test_more_bands_have_less_error_and_no_neighbour_has_less(bands: int, steps: int) -> None:
    found = banded_coefficients(bands, steps)
    best, root = mean_squared_error(found, steps), square_root_of_sums(bands)
    assert best < mean_squared_error(tuple(root / np.linalg.norm(root)), steps)
    assert best < mean_squared_error(banded_coefficients(bands - 1, steps), steps)
    random = np.random.default_rng(0)
    for _ in range(50):
        near = np.array(found) + random.normal(size=bands) * 1e-3
        assert mean_squared_error(tuple(near / np.linalg.norm(near)), steps) > best * (1 - 1e-5)
