"""Losses that cannot be vectorised: each example in a call of its own, and nothing of one is left for the next."""

import warnings
from collections.abc import Callable
from functools import partial
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.nn.functional import interpolate

from noisette import OneByOneWarning, PerExampleClip, PrivacyError
from oracle import example_gradients
from small_loop import clipped_by

Loss = Callable[..., Tensor]


class Cube(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: Tensor) -> Tensor:
        ctx.save_for_backward(x)
        return x**3

    @staticmethod
    def backward(ctx: Any, dy: Tensor) -> Tensor:  # pyright: ignore[reportIncompatibleMethodOverride]
        [x] = ctx.saved_tensors
        return torch.from_numpy(3 * x.numpy() ** 2 * dy.numpy())


class Again(torch.autograd.Function):
    """A module that is called again in the backward pass, in a graph of its own, as reversible layers are."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, module: nn.Module) -> Tensor:
        ctx.x, ctx.module = x.detach(), module
        return module(x)

    @staticmethod
    def backward(ctx: Any, dy: Tensor) -> Any:  # pyright: ignore[reportIncompatibleMethodOverride]
        x = ctx.x.requires_grad_()
        with torch.enable_grad():
            torch.autograd.backward(ctx.module(x), dy)
        return x.grad, None


def net() -> nn.Sequential:
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(3, 4), nn.Tanh(), nn.Linear(4, 2)).double()


def rows(b: int = 5) -> Tensor:
    return torch.randn(b, 3, dtype=torch.float64)


SINGLE: dict[str, Loss] = {
    "item": lambda m, x: m(x).square().sum() * x.sum().item(),
    "numpy": lambda m, x: m(x).square().sum() * float(x.detach().numpy().sum()),
    "nonzero": lambda m, x: m(x).square().sum() * (x > 0).nonzero().shape[0],
    "boolean selection": lambda m, x: m(x)[x[:, :2] > 0].square().sum(),
    "size made by torch": lambda m, x: interpolate(m(x)[None], None, x[0, 0].abs(), recompute_scale_factor=True).sum(),
    "random size": lambda m, x: m(x)[:, : torch.randint(2, 3, ())].square().sum(),
    "autograd function": lambda m, x: Cube.apply(m(x)).square().sum(),
}


@pytest.mark.parametrize("name", SINGLE)
def test_sums_are_those_of_single_examples(name: str) -> None:
    x, loss = rows(6), SINGLE[name]
    x[0], x[1] = x[0].abs(), -x[1].abs()
    truth = example_gradients(net(), loss, (x,)).clipped(0.5).vector
    with pytest.warns(OneByOneWarning, match="in a call of its own"):
        torch.testing.assert_close(clipped_by(net(), 0.5, loss, (x[:4],), (x[4:],)), truth, rtol=1e-9, atol=1e-12)


def test_what_a_backward_pass_writes_into_grad_is_clipped_and_seen_by_nobody() -> None:
    model: Any = net()
    seen, x = list[Tensor](), rows()
    loss: Loss = lambda m, x: m(x).square().sum()  # noqa: E731
    model[2].forward = lambda h, linear=nn.Linear.forward: Again.apply(h, partial(linear, model[2]))
    model[2].bias.grad = zero = torch.zeros(2, dtype=torch.float64)
    model[2].weight.register_hook(seen.append)
    model[2].weight.register_post_accumulate_grad_hook(seen.append)
    truth = example_gradients(net(), loss, (x,)).clipped(0.5).vector
    with pytest.warns(OneByOneWarning):
        torch.testing.assert_close(clipped_by(model, 0.5, loss, (x,)), truth, rtol=1e-9, atol=1e-12)
    assert not seen
    assert [p.grad for p in model.parameters()] == [None, None, None, zero]
    assert not zero.any()


def test_an_example_whose_loss_reaches_no_parameter_adds_nothing() -> None:
    x = rows(4)
    x[:, 0] = torch.tensor([1.0, -1.0, 1.0, -1.0])
    loss: Loss = lambda m, x: m(x).square().sum() if x[0, 0] > 0 else x.sum()  # noqa: E731
    truth = example_gradients(net(), lambda m, x: m(x).square().sum(1), (x[::2],)).clipped(0.5).vector
    torch.testing.assert_close(clipped_by(net(), 0.5, loss, (x,), (x[1::2],)), truth, rtol=1e-9, atol=1e-12)


def test_it_is_said_once() -> None:
    with warnings.catch_warnings(record=True) as said:
        warnings.simplefilter("always")
        clip = PerExampleClip(net(), 0.5, capture="graph")
        for _ in range(3):
            clip.accumulate(SINGLE["item"], rows(9))
    assert [(warning.category, warning.filename) for warning in said] == [(OneByOneWarning, __file__)]
    assert "choose by torch.where, or use masks of a fixed size" in str(said[0].message)
    assert f"{__file__}:{SINGLE['item'].__code__.co_firstlineno}: " in str(said[0].message)
    assert "in no captured graph" in str(said[0].message)


def leaving(writes: bool) -> Loss:
    kept: list[Tensor] = [torch.zeros((), dtype=torch.float64)]

    def loss(model: nn.Module, x: Tensor) -> Tensor:
        before, now = kept[0].clone(), x.detach().sum()
        kept[0] = kept[0].copy_(now) if writes else now
        return (model(x) * before).sum() * (1 if x.sum() > 0 else 2)

    return loss


@pytest.mark.filterwarnings("ignore::noisette.OneByOneWarning")
@pytest.mark.parametrize("writes", [False, True], ids=["tensor", "write"])
@pytest.mark.parametrize("batches", [1, 2], ids=["within a microbatch", "between microbatches"])
def test_a_tensor_that_an_example_leaves_for_the_next_is_refused(writes: bool, batches: int) -> None:
    x = rows(2)
    with pytest.raises(PrivacyError, match=r"earlier call|was written to|first batch|all examples share"):
        clipped_by(net(), 0.5, leaving(writes), *[(part,) for part in x.split(2 // batches)])
