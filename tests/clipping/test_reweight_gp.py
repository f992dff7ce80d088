"""The engine of two passes keeps nothing between them, and the bound where the passes differ."""

import weakref
from collections.abc import Callable
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.utils.checkpoint import checkpoint

from model_cases import Forward, InBackward
from noisette.clipping.engines import BookKeeping, ReweightGP
from noisette.core import forms as registry
from noisette.core.clip import Engine
from noisette.core.forms import Dense, ExampleGradients, Examples, Outer
from noisette.core.release import ROUNDING
from noisette.errors import PrivacyError
from small_loop import clipped_by

BOUND = 0.1


def summed(model: nn.Module, engine: Engine, loss: Callable[..., Tensor], *batch: Tensor) -> Tensor:
    return clipped_by(model, BOUND, loss, batch, engine=engine, capture="eager")


def of_class(model: nn.Module, x: Tensor, y: Tensor) -> Tensor:
    return F.cross_entropy(model(x), y)


def dropping() -> nn.Module:
    return nn.Sequential(nn.Linear(4, 16), nn.Dropout(0.5), nn.ReLU(), nn.Linear(16, 3))


def checkpointed(body: nn.Module) -> nn.Module:
    return Forward(lambda m, x: checkpoint(m.body, x, use_reentrant=False), body=body)


@pytest.mark.parametrize("lower", [False, True], ids=["single", "autocast"])
@pytest.mark.parametrize("is_checkpointed", [False, True], ids=["one graph", "checkpointed"])
def test_the_second_pass_is_the_first(is_checkpointed: bool, lower: bool) -> None:
    """Dropout draws the same values, an infinite example is cut out, and random numbers go on as after one pass."""
    x, y = torch.randn(9, 4), torch.randint(0, 3, (9,))
    x[3] = torch.inf
    found: list[Tensor] = []
    for engine in (BookKeeping(), ReweightGP()):
        torch.manual_seed(0)
        model = checkpointed(dropping()) if is_checkpointed else dropping()
        torch.manual_seed(1)
        with torch.autocast("cpu", torch.bfloat16, enabled=lower):
            found.append(torch.cat([summed(model, engine, of_class, x, y), torch.rand(3)]))
    assert torch.equal(*found)
    assert found[1].isfinite().all()
    assert found[1][:-3].any()


def changing(*factors: float) -> nn.Module:
    torch.manual_seed(0)
    return Forward(lambda m, x: m.layer(x * next(m.factors)), layer=nn.Linear(4, 3), factors=iter(factors))


def of_changing_gradients(*factors: float) -> Callable[..., Tensor]:
    """The gradients of each backward pass are multiplied by the next factor."""
    left = iter(factors)
    return lambda m, x, y: F.cross_entropy(InBackward.apply(m(x), lambda dy: dy * next(left)), y)


@pytest.mark.parametrize("second", [0.01, 5.0, 1e4])
def test_the_bound_holds_where_the_second_forward_pass_differs(second: float) -> None:
    for x, y in ((torch.randn(1, 4), torch.tensor([k % 3])) for k in range(5)):
        model = checkpointed(changing(1.0, 1.0, second, second))  # each pass computes it, and then once more
        assert float(summed(model, ReweightGP(), of_class, x, y).norm()) <= BOUND * (1 + ROUNDING)


@pytest.mark.parametrize("second", [0.01, 5.0, 1e4])
def test_the_bound_holds_where_the_second_backward_pass_differs(second: float) -> None:
    model = nn.Linear(4, 3)
    for x, y in ((torch.randn(1, 4), torch.tensor([k % 3])) for k in range(5)):
        sums = summed(model, ReweightGP(), of_changing_gradients(1.0, second), x, y)
        assert 0 < float(sums.norm()) <= BOUND * (1 + ROUNDING)


def test_a_gradient_that_is_finite_once_alone_is_refused() -> None:
    model, batch = nn.Linear(4, 3), (torch.randn(5, 4), torch.zeros(5).long())
    with pytest.raises(PrivacyError, match=r"not finite in the second.*BookKeeping\(\)"):
        summed(model, ReweightGP(), of_changing_gradients(1.0, torch.inf), *batch)
    assert summed(model, BookKeeping(), of_class, *batch).any()


def test_no_gradient_is_alive_when_the_next_one_comes(monkeypatch: pytest.MonkeyPatch) -> None:
    model, x = nn.Sequential(nn.Linear(8, 8), nn.Tanh(), nn.Linear(8, 2)), torch.randn(6, 5, 8)
    seen: list[weakref.ref[Tensor]] = []
    whole = Outer.squared_norms

    def watched(self: Outer) -> Tensor:
        assert not any(held() is not None for held in seen), "factors of another layer"
        seen.append(weakref.ref(self.left))
        return whole(self)

    monkeypatch.setattr(Outer, "squared_norms", watched)
    summed(model, ReweightGP(), lambda m, x: m(x).square().sum(), x)
    assert len(seen) == 4


@pytest.mark.parametrize("engine", [BookKeeping(), ReweightGP()], ids=lambda e: type(e).__name__)
def test_activations_are_freed_as_the_last_pass_goes(engine: Engine, monkeypatch: pytest.MonkeyPatch) -> None:
    """When the rule of the first layer is called, the inputs of the layers above it are gone, but for one."""
    inputs: list[weakref.ref[Tensor]] = []
    alive: list[int] = []
    whole = registry._RULES[F.linear, "weight"]

    def watched(examples: Examples, dy: Tensor, input: Tensor, *rest: Any, **named: Any) -> ExampleGradients:
        inputs.append(weakref.ref(input))
        alive.append(len({id(tensor) for held in inputs if (tensor := held()) is not None}))
        return whole(examples, dy, input, *rest, **named)

    monkeypatch.setitem(registry._RULES, (F.linear, "weight"), watched)
    monkeypatch.setattr(registry, "compact", lambda form: Dense(form.explicit()))
    model = nn.Sequential(*(nn.Sequential(nn.Linear(4, 4), nn.Tanh()) for _ in range(4)))
    summed(model, engine, lambda m, x: m(x).square().sum(), torch.randn(6, 5, 4))
    assert alive[-1] <= 2
    assert len(alive) == 4 or max(alive) == 4, "two passes keep the graph for the second one"
