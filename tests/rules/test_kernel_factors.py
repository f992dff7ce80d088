"""Sizes and patches of a convolution's factors."""

from __future__ import annotations

import torch

from noisette.rules.conv import Geometry, KernelFactors, backend_gradient
from rule_oracle import TOLERANCE, double

F = torch.nn.functional


def factors() -> KernelFactors:
    geometry = Geometry((3, 2), (2, 1), (1, 0), (1, 2), 1)
    return KernelFactors(double(3, 4, 5, 6), double(3, 6, 3, 4), geometry, torch.Size((6, 4, 3, 2)))


def test_sizes() -> None:
    form = factors()
    assert form.shape == (3, 6, 4, 3, 2)
    assert form.size_of_an_example == 4 * 5 * 6 + 6 * 3 * 4
    assert form.factors_size == 3 * form.size_of_an_example
    assert form.unfolded_size == form.unfolded()[0].numel() == 4 * 6 * 12


def test_patches_are_those_of_unfold() -> None:
    form, g = factors(), factors().geometry
    expected = F.unfold(form.x, g.kernel, g.dilation, g.padding, g.stride)
    torch.testing.assert_close(form.unfolded(), expected, **TOLERANCE)


def test_the_gradient_of_the_backend_is_summed_over_the_batch() -> None:
    form = factors()
    each = [backend_gradient(one.x, one.dy, one.geometry) for one in form.split(1)]
    torch.testing.assert_close(backend_gradient(form.x, form.dy, form.geometry), torch.stack(each).sum(0), **TOLERANCE)
