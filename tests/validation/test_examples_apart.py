"""The warning that a loss means something else when each example is seen alone."""

from __future__ import annotations

import random
import warnings
from collections.abc import Callable

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from noisette.core.trace import Microbatch
from noisette.validation.examples_apart import warn_if_examples_meet

Loss = Callable[..., Tensor]


def model() -> nn.Module:
    return nn.Sequential(nn.Linear(3, 4), nn.Dropout(0.5), nn.Tanh(), nn.Linear(4, 2))


def batch() -> Microbatch:
    return Microbatch((torch.full((5, 3), torch.nan), torch.full((5,), 9)), {})


def in_batch_negatives(m: nn.Module, x: Tensor, y: Tensor) -> Tensor:
    z = m(x)
    return F.cross_entropy(z @ z.T, torch.arange(len(z)))


MEET: dict[str, Loss] = {
    "contrastive": in_batch_negatives,
    "hard examples": lambda m, x, y: F.cross_entropy(m(x), y, reduction="none").max(),
    "centred": lambda m, x, y: (m(x) - m(x).mean(0)).square().mean(),
    "a vector of coupled losses": lambda m, x, y: (lambda z: z / z.sum())(F.cross_entropy(m(x), y, reduction="none")),
}
APART: dict[str, Loss] = {
    "mean": lambda m, x, y: F.cross_entropy(m(x), y),
    "sum": lambda m, x, y: F.cross_entropy(m(x), y, reduction="sum"),
    "vector": lambda m, x, y: F.cross_entropy(m(x), y, reduction="none"),
    "one example only": lambda m, x, y: m(x[0]).sum() if len(x) == 1 else torch.zeros(2) + torch.zeros(3),
    "raises": lambda m, x, y: {}[0],
    "not finite": lambda m, x, y: m(x).mean() * torch.inf,
    "random": lambda m, x, y: m(x).mean() * torch.randint(0, 10**6, (1,)) * torch.empty(1).uniform_(),
    "no tensor": lambda m, x, y: 1.0,
}


@pytest.mark.parametrize("name", MEET)
def test_a_loss_that_looks_at_other_examples_is_told(name: str) -> None:
    with pytest.warns(UserWarning, match="looks at other examples"):
        warn_if_examples_meet(MEET[name], model(), batch())


@pytest.mark.parametrize("name", APART)
def test_other_losses_are_not(name: str) -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        warn_if_examples_meet(APART[name], model(), batch())


@pytest.mark.parametrize("precision", [torch.bfloat16, torch.float16])
def test_rounding_in_lower_precision_is_no_difference(precision: torch.dtype) -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        for _ in range(10):
            made, (x, y) = model().to(precision), batch().tensors
            warn_if_examples_meet(APART["mean"], made, Microbatch((x.to(precision), y), {}))


class Counts(nn.Module):
    """Counts its calls in a buffer."""

    def __init__(self) -> None:
        super().__init__()
        self.register_buffer("calls", torch.zeros(()))

    def forward(self, x: Tensor) -> Tensor:
        self.calls += 1 + random.random() + np.random.random()
        return x + torch.rand(3)


def test_no_trace_is_left() -> None:
    made = nn.Sequential(Counts(), nn.Linear(3, 4))
    before = {name: value.clone() for name, value in made.state_dict().items()}
    states = torch.get_rng_state(), random.getstate(), np.random.get_state()[1].copy()
    with pytest.warns(UserWarning, match="looks at other examples"):
        warn_if_examples_meet(in_batch_negatives, made, batch())
    for name, value in made.state_dict().items():
        assert torch.equal(value, before[name])
    assert all(p.grad is None for p in made.parameters())
    assert torch.equal(torch.get_rng_state(), states[0])
    assert random.getstate() == states[1]
    assert (np.random.get_state()[1] == states[2]).all()


def test_no_device_gets_a_seed_that_others_know(monkeypatch: pytest.MonkeyPatch) -> None:
    """The loss may move its inputs to another device, whose generator has the secret seed of the batch."""
    seeds: list[int] = []
    monkeypatch.setattr(torch.cuda, "manual_seed_all", seeds.append)
    warn_if_examples_meet(APART["mean"], model(), batch())
    assert seeds == []
