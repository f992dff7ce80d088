"""Per-example gradients without a formula: autograd differentiates a copy of the operand per example."""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor

from noisette.core.forms import ExampleGradients, Examples
from noisette.rules.arithmetic import unbroadcast


def by_expansion(examples: Examples, dy: Tensor, operand: Tensor, call: Callable[[Tensor], Tensor]) -> ExampleGradients:
    """Gradients of an operand that broadcasts to the output of an operation which keeps examples separate.

    The operand is expanded along the example axis. One example's row of the output depends on one row of the copy, so
    a single backward pass through the copy gives the gradients of all examples. Costs one more forward and one
    backward pass of that operation.

    Args:
        examples: where the output holds the examples.
        dy: gradient of the output.
        operand: aligned with the output from the last axis on. If it has the example axis, row i is that of example i.
        call: the operation, as a function of the operand with as many axes as the output and a full example axis.

    Raises:
        ValueError: the operand's size on that axis is neither the output's nor one.
    """
    axis = examples.axis
    aligned = operand.reshape((1,) * (dy.dim() - operand.dim()) + tuple(operand.shape))
    if aligned.shape[axis] not in (1, dy.shape[axis]):
        raise ValueError(
            f"a weight of shape {tuple(operand.shape)} where {tuple(dy.shape)} has examples on axis {axis}"
        )
    full = (*aligned.shape[:axis], dy.shape[axis], *aligned.shape[axis + 1 :])
    copies = aligned.expand(full).requires_grad_()
    with torch.enable_grad():
        [gradients] = torch.autograd.grad(call(copies), copies, dy)
    return unbroadcast(examples, gradients, operand)
