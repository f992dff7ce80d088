"""The engine of two equal passes: where the second differs, the bound holds; where it does not, the sum is exact."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from noisette.clipping.engines import BookKeeping, TwoPasses
from noisette.clipping.per_example import PerExampleClip
from noisette.core.clip import Engine
from noisette.errors import PrivacyError

BOUND = 0.1


def summed(model: nn.Module, engine: Engine, loss: Callable[..., Tensor], *batch: Tensor) -> list[Tensor]:
    """The clipped sum of one call of ``accumulate``."""
    clip = PerExampleClip(model, BOUND, engine=engine, capture="eager")
    try:
        clip.accumulate(loss, *batch)
        [total] = clip.pop_sums()
    finally:
        clip.close()
    return list(total.grads)


def of_class(model: nn.Module, x: Tensor, y: Tensor) -> Tensor:
    return F.cross_entropy(model(x), y)


def dropping() -> nn.Module:
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(4, 16), nn.Dropout(0.5), nn.ReLU(), nn.Linear(16, 3))


@pytest.mark.parametrize("lower", [False, True], ids=["single", "autocast"])
def test_the_second_forward_pass_is_the_first(lower: bool) -> None:
    """Dropout draws the same values, an infinite example is cut out, and random numbers go on as after one pass."""
    x, y = torch.randn(9, 4), torch.randint(0, 3, (9,))
    x[3] = torch.inf
    found: list[list[Tensor]] = []
    for engine in (BookKeeping(), TwoPasses()):
        model = dropping()
        torch.manual_seed(1)
        with torch.autocast("cpu", torch.bfloat16, enabled=lower):
            found.append([*summed(model, engine, of_class, x, y), torch.rand(3)])
    for one, other in zip(*found, strict=True):
        assert torch.equal(one, other)
    assert all(sum.isfinite().all() and sum.any() for sum in found[1])


class Holding(nn.Module):
    """Draws from a generator of its own."""

    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.layer, self.own = nn.Linear(4, 3), torch.Generator()

    def forward(self, x: Tensor) -> Tensor:
        return self.layer(x * torch.rand(4, generator=self.own))


def test_a_generator_of_the_model_draws_the_same_in_the_second_pass() -> None:
    x, y = torch.randn(9, 4), torch.randint(0, 3, (9,))
    found: list[list[Tensor]] = []
    for engine in (BookKeeping(), TwoPasses()):
        model = Holding()
        found.append([*summed(model, engine, of_class, x, y), torch.rand(3, generator=model.own)])
    for one, other in zip(*found, strict=True):
        assert torch.equal(one, other)


class Changing(nn.Module):
    """A model that multiplies its input by another factor in each forward pass."""

    def __init__(self, *factors: float) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.layer = nn.Linear(4, 3)
        self.factors = iter(factors)

    def forward(self, x: Tensor) -> Tensor:
        return self.layer(x * next(self.factors))


@pytest.mark.parametrize("second", [0.01, 5.0, 1e4])
def test_the_bound_holds_where_the_second_pass_differs(second: float) -> None:
    for x, y in ((torch.randn(1, 4), torch.tensor([k % 3])) for k in range(5)):
        sums = summed(Changing(1.0, second), TwoPasses(), of_class, x, y)
        assert float(torch.cat([sum.flatten() for sum in sums]).norm()) <= BOUND


def test_a_gradient_that_is_finite_once_alone_is_refused() -> None:
    with pytest.raises(PrivacyError, match="not finite in the second"):
        summed(Changing(1.0, torch.inf), TwoPasses(), of_class, torch.randn(5, 4), torch.zeros(5).long())


class Counting(nn.Module):
    """A model that counts its forward passes in a buffer."""

    passes: Tensor

    def __init__(self) -> None:
        super().__init__()
        self.layer = nn.Linear(4, 3)
        self.register_buffer("passes", torch.zeros(()))

    def forward(self, x: Tensor) -> Tensor:
        self.passes += 1
        return self.layer(x)


def test_a_pass_that_writes_into_buffers_is_not_repeated() -> None:
    model = Counting()
    summed(model, TwoPasses(), of_class, torch.randn(5, 4), torch.zeros(5).long())
    assert model.passes == 1
