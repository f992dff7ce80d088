"""Per-example gradients by autograd alone, and the check of a form against them."""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor

from noisette.rules.conv import Geometry, KernelGradients

TOLERANCE = {"rtol": 1e-10, "atol": 1e-12}


def by_autograd(operation: Callable[[Tensor], Tensor], weight: Tensor, dy: Tensor, b: int) -> Tensor:
    """Gradients (b, *weight.shape) of <output, dy_i> at the weight, where dy_i is zero but for example i."""
    weight = weight.detach().requires_grad_()
    output = operation(weight)
    rows = dy.reshape(b, -1)
    gradients = []
    for i in range(b):
        alone = torch.zeros_like(rows)
        alone[i] = rows[i]
        gradients.append(torch.autograd.grad(output, weight, alone.view_as(dy), retain_graph=True)[0])
    return torch.stack(gradients)


def check_form(form, truth: Tensor) -> None:
    """Norms, explicit gradients, weighted sum and selection agree with the gradients ``truth`` (b, *shape)."""
    b = truth.shape[0]
    weights = torch.linspace(-1, 2, b, dtype=truth.dtype)
    expected_sum = torch.einsum("b,b...->...", weights, truth)
    some = torch.arange(0, b, 2)
    torch.testing.assert_close(form.weighted_sum(weights), expected_sum, **TOLERANCE)
    torch.testing.assert_close(form.squared_norms(), truth.reshape(b, truth[0].numel()).square().sum(1), **TOLERANCE)
    torch.testing.assert_close(form.weighted_sum(weights), expected_sum, **TOLERANCE)
    torch.testing.assert_close(form.explicit(), truth, **TOLERANCE)
    chosen = form.select(some)
    torch.testing.assert_close(
        chosen.weighted_sum(weights[some]), torch.einsum("b,b...->...", weights[some], truth[some]), **TOLERANCE
    )
    torch.testing.assert_close(
        chosen.squared_norms(), truth[some].reshape(len(some), truth[0].numel()).square().sum(1), **TOLERANCE
    )
    none = form.select(torch.zeros(0, dtype=torch.long))
    torch.testing.assert_close(none.weighted_sum(weights[:0]), torch.zeros_like(truth[0]))


def double(*shape: int) -> Tensor:
    return torch.randn(shape, dtype=torch.float64)


def uneven(b: int) -> KernelGradients:
    """Of a convolution with two groups, and settings that differ from axis to axis."""
    geometry = Geometry((3, 2), (2, 1), (1, 0), (1, 2), 2)
    return KernelGradients(double(b, 4, 5, 6), double(b, 6, 3, 4), geometry, torch.Size((6, 2, 3, 2)))


def of_single_examples(form: KernelGradients) -> Tensor:
    """The gradients of a convolution's kernel, of one example after another by autograd."""
    g, weight = form.geometry, torch.zeros(form.weight, dtype=form.x.dtype, requires_grad=True)
    each = (torch.conv2d(x[None], weight, None, g.stride, g.padding, g.dilation, g.groups) for x in form.x)
    return torch.stack([torch.autograd.grad(y, weight, dy[None])[0] for y, dy in zip(each, form.dy, strict=True)])
