"""Two passes keep nothing between them, and add up the gradients whose norms were taken."""

from __future__ import annotations

import weakref
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.utils.checkpoint import checkpoint

from noisette.clipping.engines import BookKeeping, TwoPasses, two_passes
from noisette.clipping.per_example import PerExampleClip
from noisette.core.forms import Dense, Outer
from noisette.errors import PrivacyError


class Checkpointed(nn.Module):
    """Blocks whose activations are computed again in a backward pass."""

    def __init__(self, *, keeps_random_state: bool, p: float) -> None:
        super().__init__()
        self.blocks = nn.ModuleList(
            [nn.Sequential(nn.Linear(8, 8), nn.Tanh(), nn.Dropout(p), nn.Tanh()) for _ in range(3)]
        )
        self.keeps = keeps_random_state

    def forward(self, x: Tensor) -> Tensor:
        for block in self.blocks:
            x = checkpoint(block, x, use_reentrant=False, preserve_rng_state=self.keeps)
        return x


def clipped(model: nn.Module, x: Tensor, engine: BookKeeping | TwoPasses) -> Tensor:
    torch.manual_seed(3)
    clip = PerExampleClip(model, 1e-3, engine=engine)
    try:
        clip.backward(model(x).square().sum(1))
        return torch.cat([g.flatten() for g in clip.pop_sums()[0].grads])
    finally:
        clip.close()


@pytest.mark.parametrize("p", [0.0, 0.5])
def test_checkpoints_are_computed_again_in_each_pass(p: float) -> None:
    model, x = Checkpointed(keeps_random_state=True, p=p).double(), torch.randn(6, 8, dtype=torch.float64)
    torch.testing.assert_close(clipped(model, x, TwoPasses()), clipped(model, x, BookKeeping()), rtol=1e-9, atol=0)


def test_a_checkpoint_that_draws_anew_is_refused() -> None:
    model, x = Checkpointed(keeps_random_state=False, p=0.5).double(), torch.randn(6, 8, dtype=torch.float64)
    with pytest.raises(PrivacyError):
        clipped(model, x, TwoPasses())


@pytest.mark.parametrize("factor", [1 + 1e-4, 2.0])
def test_a_second_pass_of_larger_gradients_is_refused(factor: float, monkeypatch: pytest.MonkeyPatch) -> None:
    """As a kernel might give them that recomputes otherwise."""
    model, x = nn.Sequential(nn.Linear(8, 8), nn.Tanh()), torch.randn(6, 8)
    whole = two_passes.give_each

    def give_larger(forward: Any, parameters: Any, take: Any) -> None:
        whole(forward, parameters, lambda name, form: take(name, Dense(factor * form.explicit())))

    monkeypatch.setattr(two_passes, "give_each", give_larger)
    with pytest.raises(PrivacyError, match="preserve_rng_state=True"):
        clipped(model, x, TwoPasses())


def test_a_hook_does_not_run_twice() -> None:
    """What a hook does the second time may differ: such a graph is passed through as by book-keeping."""
    model, x = nn.Sequential(nn.Linear(8, 8), nn.Tanh(), nn.Linear(8, 2)).double(), torch.randn(6, 8).double()
    calls: list[int] = []

    def watches(module: nn.Module, args: object, output: Tensor) -> None:
        output.register_hook(lambda g: calls.append(1))

    model[1].register_forward_hook(watches)
    counts = []
    for engine in (BookKeeping(), TwoPasses()):
        clipped(model, x, engine)
        counts.append(len(calls))
        calls.clear()
    assert counts[0] == counts[1] > 0


def test_no_gradient_is_alive_when_the_next_one_comes(monkeypatch: pytest.MonkeyPatch) -> None:
    model, x = nn.Sequential(nn.Linear(8, 8), nn.Tanh(), nn.Linear(8, 2)), torch.randn(6, 5, 8)
    seen: list[weakref.ref[Tensor]] = []
    whole = Outer.squared_norms

    def watched(self: Outer) -> Tensor:
        assert not any(held() is not None for held in seen), "factors of another layer"
        seen.append(weakref.ref(self.left))
        return whole(self)

    monkeypatch.setattr(Outer, "squared_norms", watched)
    clip = PerExampleClip(model, 1.0, engine=TwoPasses())
    clip.backward(model(x).square().sum((1, 2)))
    clip.close()
    assert len(seen) == 4
