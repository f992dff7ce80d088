"""Losses that cannot be vectorised: nothing of one example is left for the next."""

from __future__ import annotations

import warnings
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from noisette import PerExampleClip, PrivacyError
from noisette.gradients.vectorized_errors import VectorizationWarning

F = nn.functional
pytestmark = pytest.mark.filterwarnings("ignore::noisette.gradients.vectorized_errors.VectorizationWarning")


class Model(nn.Module):
    """A layer, and places where values could stay."""

    def __init__(self) -> None:
        super().__init__()
        self.layer = nn.Linear(3, 1).double()
        self.register_buffer("seen", torch.zeros((), dtype=torch.float64))
        self.table = torch.zeros((), dtype=torch.float64)
        self.last: Any = None
        self.entries: list[Any] = []
        self.state = type("State", (), {})()

    def forward(self, x: Tensor) -> Tensor:
        return self.layer(x).square().sum()


def kept_in_attribute(m: Model, x: Tensor) -> Tensor:
    before = 1.0 if m.last is None else m.last
    m.last = x.sum().item()
    return m(x) * before


def kept_in_list(m: Model, x: Tensor) -> Tensor:
    m.entries.append(x.sum().item())
    return m(x) * m.entries[0]


def kept_in_object(m: Model, x: Tensor) -> Tensor:
    before = getattr(m.state, "last", 1.0)
    m.state.last = x.sum().item()
    return m(x) * before


PUT_BACK = {"attribute": kept_in_attribute, "list": kept_in_list, "object": kept_in_object}


def gradients(model: Model, loss: Callable[..., Tensor], x: Tensor, bound: float = 1e9) -> list[Tensor]:
    clip = PerExampleClip(model, bound)
    try:
        clip.accumulate(loss, x)
        return list(clip.pop_sums()[0].grads)
    finally:
        clip.close()


def loop(model: Model, loss: Callable[..., Tensor], x: Tensor) -> list[Tensor]:
    total = [torch.zeros_like(p) for p in model.parameters()]
    for row in x:
        fresh = Model()
        fresh.load_state_dict(model.state_dict())
        for sum, g in zip(total, torch.autograd.grad(loss(fresh, row[None]), list(fresh.parameters())), strict=True):
            sum += g
    return total


@pytest.mark.parametrize("name", PUT_BACK)
def test_what_a_module_keeps_is_put_back_before_the_next_example(name: str) -> None:
    torch.manual_seed(0)
    model, x = Model(), torch.randn(4, 3).double()
    found = gradients(model, PUT_BACK[name], x)
    for one, other in zip(found, loop(model, PUT_BACK[name], x), strict=True):
        assert torch.allclose(one, other, rtol=1e-9)
    assert model.last is None
    assert not model.entries
    assert not vars(model.state)


def in_closure() -> Callable[..., Tensor]:
    seen: list[float] = []

    def loss(m: Model, x: Tensor) -> Tensor:
        seen.append(x.sum().item())
        return m(x) * seen[0]

    return loss


def tensor_in_closure() -> Callable[..., Tensor]:
    seen: dict[str, Tensor] = {}

    def loss(m: Model, x: Tensor) -> Tensor:
        before = seen.get("x", x)
        seen["x"] = x
        return m(x) * before.sum() * (1.0 if x.sum().item() else 2.0)

    return loss


def tensor_outside() -> Callable[..., Tensor]:
    running = torch.ones((), dtype=torch.float64)

    def loss(m: Model, x: Tensor) -> Tensor:
        running.copy_(x.sum().detach())
        return m(x) * running * (1.0 if x.sum().item() else 2.0)

    return loss


def buffer() -> Callable[..., Tensor]:
    def loss(m: Model, x: Tensor) -> Tensor:
        if x.sum().item() < 1e9:
            m.seen.add_(x.sum().detach())
        return m(x) * m.seen

    return loss


def parameter() -> Callable[..., Tensor]:
    def loss(m: Model, x: Tensor) -> Tensor:
        if x.sum().item() < 1e9:
            m.layer.bias.data.add_(1.0)
            with torch.no_grad():
                m.layer.bias.add_(x.sum())
        return m(x)

    return loss


LEFT = {
    "closure": in_closure,
    "tensor in a closure": tensor_in_closure,
    "tensor from outside": tensor_outside,
    "buffer": buffer,
    "parameter": parameter,
}


@pytest.mark.parametrize("name", LEFT)
def test_what_is_left_elsewhere_is_refused(name: str) -> None:
    torch.manual_seed(0)
    model = Model()
    with pytest.raises(PrivacyError):
        gradients(model, LEFT[name](), torch.randn(4, 3).double())
    assert model.seen == 0


def test_one_example_moves_the_sum_by_the_bound_at_most() -> None:
    torch.manual_seed(0)
    model, x = Model(), torch.randn(5, 3).double() * 100

    def loss(m: Model, x: Tensor) -> Tensor:
        return m(x) if x.sum().item() > 0 else 3 * m(x)

    all_of_them, without = gradients(model, loss, x, 0.5), gradients(model, loss, x[1:], 0.5)
    moved = torch.cat([(a - b).flatten() for a, b in zip(all_of_them, without, strict=True)]).norm()
    assert 0.49 < moved <= 0.5


def test_an_example_that_is_not_finite_contributes_nothing() -> None:
    torch.manual_seed(0)
    model, x = Model(), torch.randn(4, 3).double()

    def loss(m: Model, x: Tensor) -> Tensor:
        return m(x) / (0.0 if x[0, 0].item() == 7.0 else 1.0)

    worse = torch.cat([x, torch.full((1, 3), 7.0).double()])
    for one, other in zip(gradients(model, loss, worse), gradients(model, loss, x), strict=True):
        assert torch.equal(one, other)


def test_an_error_of_the_loss_is_raised_as_it_is() -> None:
    def loss(m: Model, x: Tensor) -> Tensor:
        raise KeyError("a mistake")

    with pytest.raises(KeyError, match="a mistake"):
        gradients(Model(), loss, torch.randn(2, 3).double())


def test_it_is_said_once() -> None:
    clip = PerExampleClip(Model(), 1.0)

    def loss(m: Model, x: Tensor) -> Tensor:
        return m(x) * x.sum().item()

    x = torch.randn(2, 3).double()
    with pytest.warns(VectorizationWarning, match="one after the other"):
        clip.accumulate(loss, x)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        clip.accumulate(loss, x)
