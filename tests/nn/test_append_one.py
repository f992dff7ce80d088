"""Appending a one to rows."""

from __future__ import annotations

import math

import pytest
import torch

from noisette.lipschitz import NormBound, is_bounded
from noisette.nn import AppendOne
from noisette.nn.lipschitz import SphereInput


def test_the_bound_is_reached() -> None:
    layer = AppendOne()
    assert is_bounded(layer)
    assert layer.bound_forward(NormBound(2.0, (3,))) == NormBound(math.sqrt(5), (4,))
    assert layer.bound_backward(NormBound(2.0, (3,)), 0.7) == (0.7, {})
    assert layer(torch.tensor([[0.0, 2.0, 0.0]])).norm().item() == pytest.approx(math.sqrt(5))


def test_rows_of_equal_direction_stay_different_on_the_sphere() -> None:
    rows = torch.tensor([[1.0, 2.0], [2.0, 4.0]])
    alone, beside = SphereInput(1.0)(rows), SphereInput(1.0)(AppendOne()(rows))
    torch.testing.assert_close(alone[0], alone[1])
    assert (beside[0] - beside[1]).norm() > 0.2


def test_images_are_refused() -> None:
    with pytest.raises(ValueError, match="rows of numbers"):
        AppendOne().bound_forward(NormBound(1.0, (1, 8, 8)))
