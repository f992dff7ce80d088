"""Appended ones, low frequencies and standardisation: definitions, bounds and refusals."""

from __future__ import annotations

import math

import numpy as np
import pytest
import torch
from torch import Tensor

from noisette.lipschitz import NormBound, is_bounded
from noisette.nn import AppendOne, DctCut, Standardise


def test_the_bound_of_an_appended_one_is_reached() -> None:
    layer = AppendOne()
    assert is_bounded(layer)
    assert layer.bound_forward(NormBound(2.0, (3,))) == NormBound(math.sqrt(5), (4,))
    assert layer.bound_backward(NormBound(2.0, (3,)), 0.7) == (0.7, {})
    assert layer(torch.tensor([[0.0, 2.0, 0.0]])).norm().item() == pytest.approx(math.sqrt(5))


def test_images_are_refused() -> None:
    with pytest.raises(ValueError, match="rows of numbers"):
        AppendOne().bound_forward(NormBound(1.0, (1, 8, 8)))


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


def test_invalid_sizes_are_refused() -> None:
    with pytest.raises(ValueError, match="k=0"):
        DctCut(0)
    for refused in (lambda: DctCut(5)(torch.zeros(1, 1, 8, 4)), lambda: DctCut(5).bound_forward(NormBound(1.0, (64,)))):
        with pytest.raises(ValueError, match="expected images of 5 x 5 pixels or more"):
            refused()


def test_it_subtracts_the_mean_and_divides_by_the_scale() -> None:
    layer = Standardise(torch.tensor([1.0, 2.0]), torch.tensor([0.5, 4.0]))
    torch.testing.assert_close(layer(torch.tensor([[2.0, 6.0], [1.0, 0.0]])), torch.tensor([[2.0, 1.0], [0.0, -0.5]]))


def test_public_constants_are_a_mean_for_each_position_and_a_deviation_for_each_channel() -> None:
    examples = np.random.default_rng(0).normal(size=(50, 3, 4, 4)) * [[[1.0]], [[5.0]], [[0.1]]] + 7.0
    layer = Standardise.of_public(torch.as_tensor(examples))
    out = layer(torch.as_tensor(examples)).numpy()
    np.testing.assert_allclose(out.mean(0), 0, atol=1e-5)
    for channel in range(3):
        centred = examples[:, channel] - examples[:, channel].mean(0)
        np.testing.assert_allclose(out[:, channel], centred / np.sqrt((centred**2).mean()), rtol=1e-5, atol=1e-5)


def test_flat_features_have_one_deviation_each_and_constant_ones_are_only_centred() -> None:
    examples = torch.tensor([[1.0, 5.0], [3.0, 5.0]])
    torch.testing.assert_close(Standardise.of_public(examples)(examples), torch.tensor([[-1.0, 0.0], [1.0, 0.0]]))


def test_the_bounds_hold_and_are_reached() -> None:
    mean, scale = torch.tensor([3.0, 0.0]), torch.tensor([0.5, 2.0])
    layer = Standardise(mean, scale)
    assert is_bounded(layer)
    reach = layer.bound_forward(NormBound(1.0, (2,)))
    assert reach.shape == (2,)
    furthest = layer(torch.tensor([-1.0, 0.0])).norm().item()
    assert furthest == pytest.approx(reach.norm)
    assert layer.bound_backward(NormBound(1.0, (2,)), 0.3) == (pytest.approx(0.6), {})


def test_constants_are_saved_and_not_trained() -> None:
    layer = Standardise(torch.ones(3), 2.0)
    assert set(layer.state_dict()) == {"mean", "scale"}
    assert not list(layer.parameters())


def test_constants_outside_their_domain_are_refused() -> None:
    for scale in (0.0, -1.0, float("inf"), float("nan")):
        with pytest.raises(ValueError, match="above zero"):
            Standardise(0.0, scale)
    with pytest.raises(ValueError, match="finite means"):
        Standardise(torch.tensor([0.0, float("nan")]))


def test_declared_constants_are_one_for_each_channel_or_one_for_all() -> None:
    x = torch.ones(2, 3, 4, 4)
    each = Standardise.of_channels([0.0, 1.0, 2.0], [1.0, 2.0, 4.0], (3, 4, 4))(x)
    assert each[1, :, 3, 3].tolist() == [1.0, 0.0, -0.25]
    assert Standardise.of_channels([0.5], [0.25], (3, 4, 4))(x).unique().tolist() == [2.0]
    assert Standardise.of_channels([0.5, 1.0], [0.5, 1.0], (2,))(torch.ones(1, 2)).tolist() == [[1.0, 0.0]]
    with pytest.raises(ValueError, match="expected 1 or 3 values as mean"):
        Standardise.of_channels([0.5, 0.5], [0.25], (3, 4, 4))
