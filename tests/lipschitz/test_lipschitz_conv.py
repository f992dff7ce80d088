"""Overlaps, norms and sensitivities of convolutions, against brute force and values worked out by hand."""

from __future__ import annotations

import math

import pytest
import torch
from torch import nn

from lipschitz_ascent import dense_matrix, spectral_norm
from noisette.lipschitz import NormBound
from noisette.lipschitz.layers import windows
from noisette.nn.lipschitz import PatchConv2d, Patches, SpectralConv2d, SphereInput

F = nn.functional


@pytest.mark.parametrize(
    ("kernel", "stride", "padding", "dilation"),
    [(1, 1, 0, 1), (3, 1, 1, 1), (5, 1, 2, 1), (3, 2, 1, 2), (2, 2, 0, 1), (2, 3, 5, 1), ((2, 4), (1, 2), 2, 2)],
    ids=str,
)
def test_overlap_and_output_size_are_those_of_a_convolution_of_ones(kernel, stride, padding, dilation) -> None:
    shape = windows(kernel, stride, padding, dilation)
    for size in ((7, 7), (8, 10)):
        image = torch.ones(1, 1, *size, dtype=torch.float64, requires_grad=True)
        ones = torch.ones(1, 1, *shape.kernel_size, dtype=torch.float64)
        output = F.conv2d(image, ones, stride=stride, padding=padding, dilation=dilation)
        [looks] = torch.autograd.grad(output.sum(), image)
        assert shape.output(size) == tuple(output.shape[2:])
        assert shape.max_overlap(size) == max(1, int(looks.max()))


@pytest.mark.parametrize(("side", "too_long"), [(16, 1.0199), (32, 1.0151)])
def test_a_constant_kernel_is_1_lipschitz_with_the_largest_overlap_and_not_with_the_mean(side, too_long) -> None:
    layer = SpectralConv2d(1, 1, 3, padding=1).double()
    with torch.no_grad():
        layer.weight.fill_(1 / 3)  # a row of nine elements has norm one
    norm = spectral_norm(dense_matrix(layer, (1, side, side)))
    assert norm <= 1
    mean = ((3 * side - 2) / side) ** 2  # mean number of windows per pixel
    assert norm * 3 / math.sqrt(mean) == pytest.approx(too_long, abs=1e-4)


@pytest.mark.parametrize(("side", "worst_case_search"), [(4, 2.3090), (8, 2.7660), (16, 2.9325)])
def test_alternating_ascent_over_images_and_gradients_does_not_exceed_the_bound(side, worst_case_search) -> None:
    x, back = torch.rand(2, 1, 1, side, side, dtype=torch.float64)
    kernel = torch.rand(1, 1, 3, 3, dtype=torch.float64)
    for _ in range(60):  # <G, K * x> is linear in each factor, so the best one, given the others, is its gradient
        for k in range(3):
            parts = [t.clone().requires_grad_() for t in (x, back, kernel)]
            value = (F.conv2d(parts[0], parts[2], padding=1) * parts[1]).sum()
            best = torch.autograd.grad(value, parts[k])[0]
            best = best / best.norm()
            x, back, kernel = (best if k == j else t for j, t in enumerate((x, back, kernel)))
    layer = SpectralConv2d(1, 1, 3, padding=1).double()
    [gradient] = torch.autograd.grad(layer(x), layer.weight, back)
    assert 3 * float(gradient.norm()) == pytest.approx(worst_case_search, abs=2e-4)
    [bound] = layer.bound_backward(NormBound(1.0, (1, side, side)), 1.0)[1].values()
    assert float(gradient.norm()) <= bound * (1 + 1e-9)


def test_patches_that_do_not_divide_the_image_ignore_its_border() -> None:
    layer = PatchConv2d(1, 4, patch=3)
    x = torch.randn(2, 1, 8, 7)
    edge = x.clone()
    edge[:, :, 6:, :], edge[:, :, :, 6:] = 9.0, 9.0
    assert torch.equal(layer(edge), layer(x))
    assert layer.bound_forward(NormBound(1.0, (1, 8, 7))).shape == (4, 2, 2)


def test_patches_sphere_and_a_one_pixel_convolution_are_a_convolution_of_scaled_patches() -> None:
    model = nn.Sequential(Patches(7, stride=3), SphereInput(1.0), SpectralConv2d(49, 16, 1))
    x = torch.rand(4, 1, 28, 28)
    kernel = model[2].weight.view(16, 1, 7, 7)
    energy = model[0](x).flatten(1).norm(dim=1).view(4, 1, 1, 1)
    torch.testing.assert_close(model(x), F.conv2d(x, kernel, stride=3) / energy, rtol=1e-4, atol=1e-6)
    reach = NormBound(math.inf, (1, 28, 28))
    for part in model:
        reach = part.bound_forward(reach)
    assert reach.shape == (16, 8, 8)
    assert reach.norm == pytest.approx(1.0, abs=1e-5)


@pytest.mark.parametrize(
    ("figures", "problem"),
    [
        ({"kernel_size": 0}, "kernel_size >= 1"),
        ({"kernel_size": 3, "stride": 0}, "stride >= 1"),
        ({"kernel_size": 3, "dilation": (1, 0)}, "dilation >= 1"),
        ({"kernel_size": 3, "padding": -1}, "padding=-1"),
        ({"kernel_size": 3, "padding": "same"}, "whole pixels, got padding='same'"),
        ({"kernel_size": 3, "groups": 3}, "3 groups do not divide 4 input"),
        ({"kernel_size": 3, "groups": 0}, "groups >= 1"),
    ],
    ids=str,
)
def test_arguments_outside_of_their_domain_are_refused(figures, problem) -> None:
    with pytest.raises(ValueError, match=problem):
        SpectralConv2d(4, 4, **figures)


@pytest.mark.parametrize(
    ("shape", "problem"), [((3, 8, 8), "takes 2"), ((2, 8), "takes 2"), ((2, 4, 8), "smaller than a window")]
)
def test_shapes_that_do_not_fit_are_refused(shape, problem) -> None:
    with pytest.raises(ValueError, match=problem):
        SpectralConv2d(2, 4, 5).bound_forward(NormBound(1.0, shape))
