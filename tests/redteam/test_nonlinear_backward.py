"""A backward pass that is not linear: hooks and autograd functions of the user that clip, round or shift gradients."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from noisette import PerExampleClip, engines
from noisette.errors import PrivacyError

F = nn.functional
GRAPHS = [engines.BookKeeping(), engines.TwoPass(), engines.TwoPasses(), engines.MultiLoss(), engines.PerExampleLoop()]
by_engine = pytest.mark.parametrize("engine", [*GRAPHS, engines.Vmap()], ids=lambda e: type(e).__name__)


class SignBackward(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: Tensor) -> Tensor:
        return x.clone()

    @staticmethod
    def backward(ctx: Any, *dy: Tensor) -> Tensor:
        return dy[0].sign()


def rows_clipped(g: Tensor) -> Tensor:
    return g / g.norm(dim=1, keepdim=True).clamp(min=1e-3)


class Net(nn.Module):
    """Two layers; ``between`` acts on the hidden layer."""

    def __init__(self, between: Callable[[Tensor], Tensor]) -> None:
        super().__init__()
        self.first, self.last, self.between = nn.Linear(5, 7), nn.Linear(7, 3), between

    def forward(self, x: Tensor) -> Tensor:
        return self.last(self.between(self.first(x).tanh()))


def hooked(hook: Callable[[Tensor], Tensor]) -> Callable[[Tensor], Tensor]:
    def between(h: Tensor) -> Tensor:
        if h.requires_grad:
            h.register_hook(hook)
        return h

    return between


def node_hooked(h: Tensor) -> Tensor:
    if h.grad_fn is not None:
        h.grad_fn.register_prehook(lambda gradients: (gradients[0].sign(),))
    return h


def with_module_hook() -> Net:
    net = Net(lambda h: h)
    net.last.register_full_backward_hook(lambda module, inward, outward: (inward[0].sign(),))
    return net


NETS: dict[str, Callable[[], nn.Module]] = {
    "sign in a hook": lambda: Net(hooked(torch.sign)),
    "rows clipped in a hook": lambda: Net(hooked(rows_clipped)),
    "constant added in a hook": lambda: Net(hooked(lambda g: g + 0.5)),
    "hook of a node": lambda: Net(node_hooked),
    "module hook": with_module_hook,
    "function": lambda: Net(SignBackward.apply),
}


def losses(model: nn.Module, x: Tensor, y: Tensor) -> Tensor:
    return F.cross_entropy(model(x), y, reduction="none") * 5


def oracle(model: nn.Module, x: Tensor, y: Tensor, bound: float) -> Tensor:
    total = torch.zeros(sum(p.numel() for p in model.parameters()), dtype=torch.float64)
    for i in range(len(x)):
        gradients = torch.autograd.grad(losses(model, x[i : i + 1], y[i : i + 1]).sum(), list(model.parameters()))
        flat = torch.cat([g.flatten().double() for g in gradients])
        total += flat * min(1.0, bound / float(flat.norm()))
    return total


def _learn_the_layout(clip: PerExampleClip) -> None:
    """A batch without the hook first: where operations hold their examples is measured by linear backward passes."""
    assert isinstance(clip.model, Net)
    between, clip.model.between = clip.model.between, lambda h: h
    hooks = dict(clip.model.last._backward_hooks)
    clip.model.last._backward_hooks.clear()
    clip.backward(losses(clip.model, torch.randn(6, 5).to(clip.model.first.weight), torch.arange(6) % 3))
    clip.pop_sums()
    clip.model.between = between
    clip.model.last._backward_hooks.update(hooks)


def clipped(model: nn.Module, found: Callable[[], Tensor], bound: float, engine) -> Tensor:
    clip = PerExampleClip(model, bound, engine=engine)
    try:
        _learn_the_layout(clip)
        clip.backward(found())
        [total] = clip.pop_sums()
    finally:
        clip.close()
    return torch.cat([g.double().flatten() for g in total.grads])


@by_engine
@pytest.mark.parametrize("net", NETS)
def test_sum_is_that_of_single_examples(net: str, engine) -> None:
    torch.manual_seed(0)
    model = NETS[net]().double()
    x, y = torch.randn(6, 5, dtype=torch.float64), torch.randint(0, 3, (6,))
    truth = oracle(model, x, y, 0.7)
    try:
        found = clipped(model, lambda: losses(model, x, y), 0.7, engine)
    except PrivacyError:
        assert isinstance(engine, engines.Vmap)  # torch.func cannot take it; refused in words
        return
    assert float((found - truth).norm()) <= 1e-9


@by_engine
@pytest.mark.parametrize("net", NETS)
def test_one_example_is_within_the_bound(net: str, engine) -> None:
    torch.manual_seed(1)
    model = NETS[net]()
    x, y = torch.randn(1, 5), torch.randint(0, 3, (1,))
    for scale in (1e-3, 1.0, 1e3):
        try:
            found = clipped(model, lambda: losses(model, x, y) * scale, 0.5, engine)  # noqa: B023
        except PrivacyError:
            assert isinstance(engine, engines.Vmap)
            continue
        assert float(found.norm()) <= 0.5


@pytest.mark.parametrize("engine", GRAPHS, ids=lambda e: type(e).__name__)
def test_a_hook_in_the_loop_keeps_to_the_bound(engine) -> None:
    torch.manual_seed(2)
    model = Net(lambda h: h)
    x, y = torch.randn(1, 5), torch.randint(0, 3, (1,))

    def found() -> Tensor:
        scores = model(x)
        scores.register_hook(lambda g: g.sign() * 10)
        return F.cross_entropy(scores, y, reduction="none")

    assert float(clipped(model, found, 0.5, engine).norm()) <= 0.5


def test_two_pass_without_hooks_stays_two_passes(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(engines.BookKeeping, "clipped_sum", lambda *_: pytest.fail("fell back without need"))
    model = Net(torch.relu)
    model.register_forward_hook(lambda *_: None)
    x, y = torch.randn(4, 5), torch.randint(0, 3, (4,))
    assert float(clipped(model, lambda: losses(model, x, y), 0.5, engines.TwoPass()).norm()) > 0
