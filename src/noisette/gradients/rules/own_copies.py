"""A copy of a weight for each example: the rule of every operation that has no rule of its own.

In a vectorised loss each example may be given a weight of its own, all of them equal. Its gradient is then the
per-example gradient, whatever the operation: autograd differentiates by the copies.
"""

from __future__ import annotations

from torch import Tensor

from noisette.gradients.rules.examples import Examples
from noisette.gradients.rules.forms import Dense, ExampleGradients
from noisette.gradients.rules.registry import rule


def own_copies(weight: Tensor, count: int) -> Tensor:
    """The weight once for each example, shape (count, *weight.shape), in the memory of one."""
    return weight.expand(count, *weight.shape)


@rule(own_copies, operand="weight")
def own_copies_weight(examples: Examples, dy: Tensor, weight: Tensor, count: int) -> ExampleGradients:
    """G_i = dy_i."""
    return Dense(dy)
