"""Linear layers, convolutions and inputs: bounds by hand and by search, and refusals."""

from __future__ import annotations

import math

import pytest
import torch
from torch import nn

from lipschitz_ascent import dense_matrix, spectral_norm
from noisette.lipschitz import NormBound, propagation
from noisette.lipschitz.projections import FrobeniusBall, project
from noisette.nn import lipschitz as lip


def test_no_bound_vanishes_with_the_weights() -> None:
    layer = lip.SpectralLinear(3, 3, projection=FrobeniusBall())
    with torch.no_grad():
        layer.weight.zero_()
    project(layer)
    assert layer.norm == 1e-3
    layer.set_certified_norms(torch.tensor([0.25]))
    assert layer.bound_forward(NormBound(2.0, (3,))).norm == 0.5
    # The norm of the input does not change, so neither does the bound on the gradient of the weight.
    assert layer.bound_backward(NormBound(2.0, (3,)), 3.0) == (0.75, {layer.weight: 6.0})


def test_a_norm_that_is_not_finite_is_refused() -> None:
    layer = lip.SpectralLinear(3, 3)
    with pytest.raises(ValueError, match="no finite norm"):
        layer.set_certified_norms(torch.tensor([math.nan]))
    assert layer.norm < 1.1


F = nn.functional


@pytest.mark.parametrize(("kernel", "stride", "padding"), [(1, 1, 0), (3, 1, 1), (3, 2, 1), (2, 3, 5)], ids=str)
def test_overlap_and_output_size_are_those_of_a_convolution_of_ones(kernel, stride, padding) -> None:
    layer = lip.SpectralConv2d(1, 1, kernel, stride, padding)
    for size in ((7, 7), (8, 10)):
        image = torch.ones(1, 1, *size, dtype=torch.float64, requires_grad=True)
        output = F.conv2d(image, torch.ones(1, 1, kernel, kernel).double(), stride=stride, padding=padding)
        [looks] = torch.autograd.grad(output.sum(), image)
        assert layer.output_shape((1, *size)) == tuple(output.shape[1:])
        assert layer.max_overlap(size) == max(1, int(looks.max()))


@pytest.mark.parametrize(("side", "too_long"), [(16, 1.0199), (32, 1.0151)])
def test_a_constant_kernel_is_1_lipschitz_with_the_largest_overlap_and_not_with_the_mean(side, too_long) -> None:
    layer = lip.SpectralConv2d(1, 1, 3, padding=1).double()
    with torch.no_grad():
        layer.weight.fill_(1 / 3)  # a row of nine elements has norm one
    norm = spectral_norm(dense_matrix(layer, (1, side, side)))
    assert norm <= 1
    mean = ((3 * side - 2) / side) ** 2  # mean number of windows per pixel
    assert norm * 3 / math.sqrt(mean) == pytest.approx(too_long, abs=1e-4)


LIMITS = [lip.BoundedInput, lip.SphereInput]
every_limit = pytest.mark.parametrize("limit", LIMITS)
every_precision = pytest.mark.parametrize("dtype", [torch.float32, torch.float64, torch.bfloat16], ids=str)


@every_limit
@every_precision
@pytest.mark.parametrize("size", [0.0, 1e-30, 3e38])
def test_no_output_norm_exceeds_the_limit(limit, dtype, size) -> None:
    x = size * torch.randn(20, 2, 3, 5, dtype=torch.float64).clamp(-1, 1).to(dtype)
    found = limit(3.0)(x)
    assert found.dtype == dtype
    assert found.isfinite().all()
    rounding = 4 * torch.finfo(dtype).eps
    assert float(found.double().flatten(1).norm(dim=1).max()) <= 3 * (1 + rounding)


def test_an_example_within_the_ball_is_returned_bit_for_bit() -> None:
    x = 0.1 * torch.randn(10, 6)
    assert torch.equal(lip.BoundedInput(3.0)(x), x)


def test_the_sphere_scales_small_examples_up_and_keeps_zeros() -> None:
    x = torch.tensor([[3e-20, 4e-20], [0.3, 0.4], [0.0, 0.0]])
    torch.testing.assert_close(lip.SphereInput(5.0)(x), torch.tensor([[3.0, 4.0], [3.0, 4.0], [0.0, 0.0]]))


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


ONE = NormBound(1.0, (4,))


def test_the_bounds_of_a_convolutional_net_are_those_worked_out_by_hand() -> None:
    model = nn.Sequential(
        *(lip.BoundedInput(1.0), lip.SpectralConv2d(2, 4, 3, padding=1), lip.Scale(1.3), lip.GroupSort2()),
        *(nn.MaxPool2d(2), lip.LayerCentering(1), nn.Flatten(), lip.SpectralLinear(36, 3)),
    )
    _, found = propagation.backward(model, NormBound(math.inf, (2, 6, 6)), math.sqrt(2))
    assert propagation.forward(model[:3], NormBound(9.0, (2, 6, 6))).norm == pytest.approx(1.3, rel=1e-5)
    assert [found[p] for p in model.parameters()] == pytest.approx([1.3 * 1.4142136] * 2, rel=1e-5)


def test_a_weight_used_twice_has_twice_the_bound() -> None:
    shared = lip.SpectralLinear(4, 4)
    twice = nn.Sequential(shared, lip.GroupSort2(), shared)
    assert list(propagation.backward(twice, ONE, 1.0)[1].values()) == pytest.approx([2.0], rel=1e-5)


@pytest.mark.parametrize(
    ("make", "problem"),
    [
        *((lambda limit=limit: limit(0.0), r"expected (a finite )?x0") for limit in LIMITS),
        (lambda: lip.SpectralLinear(0, 2), "in_features >= 1"),
        (
            lambda: lip.SpectralLinear(3, 2).bound_forward(NormBound(1.0, (2, 4))),
            r"takes 3 features .* got shape \(2, 4\)",
        ),
        (lambda: lip.SpectralConv2d(2, 4, 5).bound_forward(NormBound(1.0, (3, 8, 8))), "takes 2"),
        (lambda: lip.SpectralConv2d(2, 4, 5).bound_forward(NormBound(1.0, (2, 4, 8))), "smaller than a window"),
        (lambda: lip.SpectralConv2d(2, 4, kernel_size=0), "kernel_size >= 1"),
        (lambda: lip.SpectralConv2d(2, 4, 3, padding=-1), "padding >= 0"),
        (lambda: lip.Scale(math.inf), "factor=inf"),
        (lambda: lip.TokenMix(lip.GroupSort2()).bound_forward(ONE), r"\(tokens, channels\)"),
        (lambda: lip.MixerBlock(0, 4), "tokens >= 1"),
        (lambda: lip.MixerBlock(4, 6).bound_forward(NormBound(1.0, (4, 6))), "takes 6 maps of 4 positions"),
        (lambda: lip.LayerCentering(0), "axis 0 holds the examples"),
        (lambda: lip.LayerCentering(3).bound_forward(NormBound(1.0, (3, 4))), "no axis 3"),
        (lambda: lip.GroupSort2().bound_forward(NormBound(1.0, (3, 4))), "is odd"),
    ],
)
def test_what_does_not_fit_is_refused(make, problem) -> None:
    with pytest.raises(ValueError, match=problem):
        make()
