"""Standardisation with declared constants and with those of public examples, and its bounds."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from noisette.lipschitz import NormBound, is_bounded
from noisette.nn import Standardise


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


def test_a_mean_for_each_channel_counts_at_every_position() -> None:
    layer = Standardise(torch.full((2, 1, 1), 0.5))
    assert layer.bound_forward(NormBound(0.0, (2, 3, 3))).norm == pytest.approx(0.5 * 18**0.5)


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
