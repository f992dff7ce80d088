"""Parameters that broadcast over the examples, such as a bias: the gradient is summed over every broadcast axis."""

from __future__ import annotations

import torch
from torch import Tensor

from noisette.core.forms import Dense, ExampleGradients, Examples, rule


def unbroadcast(examples: Examples, dy: Tensor, operand: Tensor) -> Dense:
    """Per-example gradients of an operand from ``dy``, those of the operand after broadcasting to the output's shape.

    ``dy`` is summed over every axis that was broadcast but that of the examples: over t for an output with axes
    (example, t, f) and an operand (f,).
    """
    first = examples.first(dy)
    aligned = (1,) * (dy.dim() - operand.dim()) + tuple(operand.shape)
    broadcast = [axis + 1 for axis in range(1, dy.dim()) if aligned[axis] == 1 and dy.shape[axis] > 1]
    summed = first.sum([1, *broadcast]) if first.shape[1] > 1 or broadcast else first
    return Dense(summed.reshape(examples.count, *operand.shape))


def unbroadcast_channels(examples: Examples, dy: Tensor, parameter: Tensor) -> Dense:
    """Per-example gradients (b, c) of a per-channel parameter from ``dy`` with axes (example, channel, ...)."""
    gradients = unbroadcast(examples, dy, parameter.view(-1, *[1] * (dy.dim() - 2))).explicit()
    return Dense(gradients.reshape(examples.count, *parameter.shape))


@rule(torch.add, operand="other")
def add_other(examples: Examples, dy: Tensor, input: Tensor, other: Tensor) -> ExampleGradients:
    """The rule of p in x + p."""
    return unbroadcast(examples, dy, other)
