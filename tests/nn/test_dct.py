"""Low frequencies, compared with the sums that define them, and their bounds."""

from __future__ import annotations

import math

import pytest
import torch
from torch import Tensor

from noisette.lipschitz import NormBound, is_bounded
from noisette.nn import DctCut


def coefficient(image: Tensor, u: int, v: int) -> float:
    """The orthonormal DCT-II, pixel by pixel."""
    height, width = image.shape
    total = sum(
        float(image[row, column])
        * math.cos(math.pi * (2 * row + 1) * u / (2 * height))
        * math.cos(math.pi * (2 * column + 1) * v / (2 * width))
        for row in range(height)
        for column in range(width)
    )
    return total * math.sqrt((1 if u == 0 else 2) / height) * math.sqrt((1 if v == 0 else 2) / width)


def test_coefficients_follow_the_definition() -> None:
    images = torch.rand(2, 3, 7, 5, dtype=torch.float64, generator=torch.Generator().manual_seed(0))
    cut = DctCut(4)(images)
    assert cut.shape == (2, 3, 4, 4)
    for place in ((0, 0, 0, 0), (1, 2, 3, 1), (0, 1, 0, 3), (1, 0, 2, 2)):
        assert cut[place] == pytest.approx(coefficient(images[place[:2]], *place[2:]), abs=1e-12)


def test_the_whole_transform_preserves_norms_and_a_part_never_increases_them() -> None:
    images = torch.randn(5, 2, 6, 6, dtype=torch.float64, generator=torch.Generator().manual_seed(1))
    lengths = images.flatten(1).norm(dim=1)
    torch.testing.assert_close(DctCut(6)(images).flatten(1).norm(dim=1), lengths, rtol=1e-12, atol=0)
    assert (DctCut(3)(images).flatten(1).norm(dim=1) < lengths).all()


def test_the_bound_is_reached_by_a_flat_image() -> None:
    cut = DctCut(3)
    assert is_bounded(cut)
    assert cut.bound_forward(NormBound(2.0, (1, 8, 8))) == NormBound(2.0, (1, 3, 3))
    assert cut.bound_backward(NormBound(2.0, (1, 8, 8)), 0.5) == (0.5, {})
    flat = torch.full((1, 1, 8, 8), 2.0 / 8)
    assert cut(flat).norm().item() == pytest.approx(2.0)


def test_there_are_no_parameters_and_nothing_to_save() -> None:
    assert not list(DctCut(3).parameters())
    assert not DctCut(3).state_dict()


def test_invalid_sizes_are_refused() -> None:
    with pytest.raises(ValueError, match="k=0"):
        DctCut(0)
    for refused in (lambda: DctCut(5)(torch.zeros(1, 1, 8, 4)), lambda: DctCut(5).bound_forward(NormBound(1.0, (64,)))):
        with pytest.raises(ValueError, match="expected images of 5 x 5 pixels or more"):
            refused()
