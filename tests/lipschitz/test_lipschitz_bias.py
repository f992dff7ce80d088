"""Biases in a ball, divided by the root of the number of positions that share them."""

from __future__ import annotations

import pytest
import torch

from noisette.lipschitz import NormBound
from noisette.nn.lipschitz import BallBias


@pytest.mark.parametrize(
    ("dim", "shape"), [(1, (3,)), (1, (3, 4)), (1, (3, 28, 28)), (-1, (50, 3)), (2, (50, 3)), (-1, (3,))], ids=str
)
def test_a_bias_is_shared_by_all_positions_and_increases_no_norm_by_more_than_its_own(dim, shape) -> None:
    layer = BallBias(3, radius=0.5, dim=dim).double()
    layer.load_state_dict({"bias": torch.tensor([3.0, 0.0, -4.0])})
    added = (layer(torch.zeros(1, *shape, dtype=torch.float64))[0]).detach()
    channels = added.movedim(0 if dim == 1 else -1, 0).reshape(3, -1)
    assert torch.equal(channels, channels[:, :1].expand_as(channels))
    assert float(added.norm()) == pytest.approx(0.5, rel=1e-6)
    reach = layer.bound_forward(NormBound(1.0, shape))
    assert reach.norm == pytest.approx(1.5, rel=1e-6)
    assert reach.shape == shape


def test_equal_gradients_at_all_positions_attain_the_bound() -> None:
    layer = BallBias(2, radius=1.0).double()
    back = torch.full((1, 2, 6, 6), 1 / 72**0.5, dtype=torch.float64)
    [gradient] = torch.autograd.grad(layer(torch.zeros_like(back)), layer.bias, back)
    assert float(gradient.norm()) == pytest.approx(1.0, rel=1e-12)
    assert layer.bound_backward(NormBound(1.0, (2, 6, 6)), 1.0) == (1.0, {layer.bias: 1.0})


def test_a_loaded_bias_is_projected() -> None:
    layer = BallBias(2, radius=5.0)
    layer.load_state_dict({"bias": torch.tensor([30.0, 40.0])})
    torch.testing.assert_close(layer.bias.detach(), torch.tensor([3.0, 4.0]))
    layer.load_state_dict({"bias": torch.tensor([0.3, 0.4])})
    assert layer.bias.tolist() == pytest.approx([0.3, 0.4])
    assert layer.norm == pytest.approx(0.5)


def test_no_bound_vanishes_with_the_bias() -> None:
    assert BallBias(2, radius=5.0).bound_forward(NormBound(1.0, (2,))).norm == pytest.approx(1.001)


@pytest.mark.parametrize(
    ("make", "problem"),
    [
        (lambda: BallBias(0, 1.0), "features >= 1"),
        (lambda: BallBias(2, 0.0), "radius > 0"),
        (lambda: BallBias(2, 1.0, dim=0), "axis 0 holds the examples"),
        (lambda: BallBias(2, 1.0).bound_forward(NormBound(1.0, (3,))), "expected 2 channels on axis 1"),
        (lambda: BallBias(2, 1.0)(torch.zeros(1, 3)), "expected 2 channels on axis 1"),
        (lambda: BallBias(2, 1.0, dim=2).bound_forward(NormBound(1.0, (2,))), "no axis 2"),
        (lambda: BallBias(2, 1.0, dim=-2).bound_forward(NormBound(1.0, (2,))), "no axis -2"),
    ],
)
def test_what_does_not_fit_is_refused(make, problem) -> None:
    with pytest.raises(ValueError, match=problem):
        make()
