"""Operations whose output does not depend, in the autograd graph, on one of their data arguments.

No backward pass to the uses below such an argument goes through the operation. If it counted as above them, a hook on
its output would never be called, and its gradient would be missing.
"""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
from torch import Tensor, nn
from torch.overrides import wrap_torch_function

import noisette
from engine_check import ENGINES, measured
from noisette.core.clip import Engine
from noisette.core.forms import Dense
from oracle import clipped_sum


def _gated(x: Tensor, weight: Tensor) -> Tensor:
    return weight * (x.detach() > 0)


gated = wrap_torch_function(lambda x, weight: (x, weight))(_gated)
gated_with_rule = wrap_torch_function(lambda x, weight: (x, weight))(lambda x, weight: weight * (x.detach() > 0))


@noisette.rule(gated_with_rule, operand="weight")
def _rule(examples, dy, x, weight):
    return Dense(examples.sequences(dy * (x > 0)).sum(1))


class Hinge(nn.Module):
    """torch's own hinge_embedding_loss is not differentiable in its target."""

    def __init__(self) -> None:
        super().__init__()
        self.body, self.scale = nn.Linear(3, 4), nn.Parameter(torch.rand(4) + 0.5)

    def forward(self, x: Tensor) -> Tensor:
        h = self.body(x)
        return h + self.scale + 1000 * nn.functional.hinge_embedding_loss(self.scale, h, reduction="none")


class Gated(nn.Module):
    def __init__(self, operation) -> None:
        super().__init__()
        self.body, self.scale, self.operation = nn.Linear(3, 4), nn.Parameter(torch.rand(4) + 0.5), operation

    def forward(self, x: Tensor) -> Tensor:
        h = self.body(x)
        return h + self.scale + 1000 * self.operation(h, self.scale)


class Selecting(Hinge):
    """The operation has a gradient where the data are large alone."""

    def forward(self, x: Tensor) -> Tensor:
        h = self.body(x)
        target = torch.where(h.abs() > 100, 1.0, 0.0) * (1 + 0 * h)  # 1 marks what the loss compares
        compared = nn.functional.hinge_embedding_loss(self.scale, target, reduction="none")
        return h + self.scale + 1e6 * compared * (h.detach().abs() > 100)


MODELS = {
    "hinge": Hinge,
    "selecting": Selecting,
    "gated": lambda: Gated(gated),
    "gated with a rule of the user": lambda: Gated(gated_with_rule),
}


def loss(model: nn.Module, x: Tensor) -> Tensor:
    return model(x).square().sum(1)


@pytest.mark.parametrize("engine", ENGINES, ids=lambda e: type(e).__name__)
@pytest.mark.parametrize("make", MODELS.values(), ids=MODELS)
def test_the_gradient_is_there(make: Callable[[], nn.Module], engine: Engine) -> None:
    model = make().double()
    x = torch.randn(4, 3, dtype=torch.float64) + 1
    x[2] *= 1e4
    for batch in (x, x[2:3]):
        norms, sums = measured(model, loss, (batch,), 1.0, engine)
        truth = clipped_sum(model, loss, (batch,), 1.0)
        torch.testing.assert_close(norms, truth.norms, rtol=1e-9, atol=0)
        for name, expected in truth.sums.items():
            torch.testing.assert_close(sums[name], expected, rtol=1e-9, atol=1e-12)
