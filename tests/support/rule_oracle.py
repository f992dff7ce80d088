"""Per-example gradients by autograd alone, and the check of a form against them."""

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

from noisette.core.forms import find_rule

TOLERANCE = {"rtol": 1e-10, "atol": 1e-12}


def by_autograd(operation: Callable[[Tensor], Tensor], weight: Tensor, dy: Tensor, b: int) -> Tensor:
    """Gradients (b, *weight.shape) of <output, dy_i> at the weight, where dy_i is zero but for example i."""
    weight = weight.detach().requires_grad_()
    output, rows = operation(weight), dy.reshape(b, -1)
    gradients = []
    for i in range(b):
        alone = torch.zeros_like(rows)
        alone[i] = rows[i]
        gradients.append(torch.autograd.grad(output, weight, alone.view_as(dy), retain_graph=True)[0])
    return torch.stack(gradients)


def rule_of(operation: Callable[..., Any], operand: str = "weight") -> Callable[..., Any]:
    found = find_rule(operation, operand)
    assert found is not None
    return found


def check_form(form, truth: Tensor) -> None:
    """Norms, explicit gradients, weighted sum and selection agree with the gradients ``truth`` (b, *shape)."""
    b = truth.shape[0]
    weights = torch.linspace(-1, 2, b, dtype=truth.dtype)
    expected_sum, some = torch.einsum("b,b...->...", weights, truth), torch.arange(0, b, 2)
    torch.testing.assert_close(form.weighted_sum(weights), expected_sum, **TOLERANCE)
    torch.testing.assert_close(form.squared_norms(), truth.reshape(b, truth[0].numel()).square().sum(1), **TOLERANCE)
    torch.testing.assert_close(form.weighted_sum(weights), expected_sum, **TOLERANCE)  # it may keep the norms' tensors
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
