"""Layers that scale examples into a ball or onto its sphere."""

from __future__ import annotations

import math

import pytest
import torch

from noisette.lipschitz import NormBound
from noisette.nn.lipschitz import BoundedInput, NormCap, SphereInput

LIMITS = [BoundedInput, SphereInput, NormCap]
every_limit = pytest.mark.parametrize("limit", LIMITS)
every_precision = pytest.mark.parametrize("dtype", [torch.float32, torch.float64, torch.bfloat16], ids=str)


@every_limit
@every_precision
@pytest.mark.parametrize("size", [0.0, 1e-30, 1.0, 1e30, 3e38])
def test_no_output_norm_exceeds_the_limit(limit, dtype, size) -> None:
    x = size * torch.randn(20, 2, 3, 5, dtype=torch.float64).clamp(-1, 1).to(dtype)
    found = limit(3.0)(x)
    assert found.dtype == dtype
    assert found.isfinite().all()
    rounding = 4 * torch.finfo(dtype).eps
    assert float(found.double().flatten(1).norm(dim=1).max()) <= 3 * (1 + rounding)


@pytest.mark.parametrize("limit", [BoundedInput, NormCap])
def test_an_example_within_the_ball_is_returned_bit_for_bit(limit) -> None:
    x = 0.1 * torch.randn(10, 6)
    assert torch.equal(limit(3.0)(x), x)


@every_limit
@pytest.mark.parametrize("size", [1e3, 1e30], ids=str)
def test_a_large_example_keeps_its_direction(limit, size) -> None:
    x = torch.randn(10, 6)
    found = limit(3.0)(size * x)
    torch.testing.assert_close(found, 3 * x / x.norm(dim=1, keepdim=True), rtol=1e-5, atol=1e-6)


def test_the_sphere_scales_small_examples_up_and_keeps_zeros() -> None:
    x = torch.tensor([[3e-20, 4e-20], [0.3, 0.4], [0.0, 0.0]])
    torch.testing.assert_close(SphereInput(5.0)(x), torch.tensor([[3.0, 4.0], [3.0, 4.0], [0.0, 0.0]]))


@every_limit
@pytest.mark.parametrize("bad", [math.nan, math.inf, -math.inf], ids=str)
def test_an_example_that_is_not_finite_becomes_zeros_and_affects_no_other(limit, bad) -> None:
    x = torch.randn(3, 4)
    expected = limit(1.0)(x)
    x[1, 2] = bad
    x.requires_grad_()
    found = limit(1.0)(x)
    assert torch.equal(found[[0, 2]], expected[[0, 2]])
    assert found[1].tolist() == [0.0] * 4
    [gradient] = torch.autograd.grad(found.sum(), x)
    assert gradient[[0, 2]].isfinite().all()


def test_input_layers_bound_the_norm_of_unbounded_inputs() -> None:
    anything = NormBound(math.inf, (3, 4))
    assert BoundedInput(2.0).bound_forward(anything) == NormBound(2.0, (3, 4))
    assert SphereInput(2.0).bound_forward(anything) == NormBound(2.0, (3, 4))
    assert NormCap(2.0).bound_forward(anything) == NormBound(2.0, (3, 4))
    assert BoundedInput(2.0).bound_forward(NormBound(0.5, (3,))).norm == 0.5
    assert SphereInput(2.0).bound_forward(NormBound(0.5, (3,))).norm == 2.0
    assert BoundedInput(2.0).bound_backward(anything, 0.3) == (0.3, {})
    assert NormCap(2.0).bound_backward(anything, 0.3) == (0.3, {})


@every_limit
@pytest.mark.parametrize("radius", [0.0, -1.0, math.inf, math.nan])
def test_a_radius_outside_of_its_domain_is_refused(limit, radius) -> None:
    with pytest.raises(ValueError, match=r"expected (a finite )?(x0|cap)"):
        limit(radius)
