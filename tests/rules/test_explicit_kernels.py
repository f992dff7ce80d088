"""Gradients of a kernel that are written out, against autograd on one example after another."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor

from noisette.rules.explicit_kernels import EXPLICIT_PLANS, by_backend, few_operations_plans
from noisette.rules.kernel_factors import Geometry
from noisette.rules.kernel_gradients import KernelGradients
from rule_oracle import TOLERANCE, double


def uneven(b: int) -> KernelGradients:
    """Two groups, and settings that differ from axis to axis."""
    geometry = Geometry((3, 2), (2, 1), (1, 0), (1, 2), 2)
    return KernelGradients(double(b, 4, 5, 6), double(b, 6, 3, 4), geometry, torch.Size((6, 2, 3, 2)))


def alone(form: KernelGradients) -> Tensor:
    """The gradients of one example after another by autograd."""
    g, weight = form.geometry, torch.zeros(form.weight, dtype=form.x.dtype, requires_grad=True)
    each = (torch.conv2d(x[None], weight, None, g.stride, g.padding, g.dilation, g.groups) for x in form.x)
    return torch.stack([torch.autograd.grad(y, weight, dy[None])[0] for y, dy in zip(each, form.dy, strict=True)])


@pytest.mark.parametrize("name", EXPLICIT_PLANS)
def test_plans(name: str) -> None:
    form = uneven(7)
    torch.testing.assert_close(EXPLICIT_PLANS[name](form), alone(form), **TOLERANCE)


@pytest.mark.parametrize("name", few_operations_plans(uneven(1)))
def test_plans_of_few_operations(name: str) -> None:
    form = uneven(7)
    plan, size = few_operations_plans(form)[name]
    torch.testing.assert_close(plan(form), alone(form), **TOLERANCE)
    assert size >= form.weight.numel()


def test_the_backend_is_asked_for_no_example() -> None:
    assert by_backend(uneven(0)).shape == (0, 6, 2, 3, 2)
