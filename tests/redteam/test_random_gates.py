"""Models that couple examples when a random number falls on one side, in torch's, Python's and NumPy's randomness."""

from __future__ import annotations

import random
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from asserted_loop import AssertedLoop, Custom, records
from noisette import PerExampleClip, PrivacyError
from noisette.validation import Call, prove

GATES: dict[str, Callable[[], object]] = {
    "rand below a half": lambda: torch.rand(()) < 0.5,
    "rand above a half": lambda: torch.rand(()) > 0.5,
    "rand below 1 %": lambda: torch.rand(1) < 0.01,
    "rand above 99 %": lambda: torch.rand(1) > 0.99,
    "two draws": lambda: (torch.rand(()) < 0.5) != (torch.rand(()) < 0.5),
    "randn": lambda: torch.randn(()) > 1,
    "normal": lambda: torch.normal(0.0, 1.0, (1,)) < -1,
    "randint": lambda: torch.randint(0, 10, ()).item() == 7,
    "bernoulli": lambda: torch.bernoulli(torch.tensor(0.3)).item() == 1,
    "bernoulli_": lambda: torch.empty(()).bernoulli_(0.3).item() == 0,
    "uniform_": lambda: torch.empty(()).uniform_(0, 2).item() > 1,
    "exponential_": lambda: torch.empty(()).exponential_().item() > 1,
    "multinomial": lambda: torch.multinomial(torch.ones(2), 1).item() == 1,
    "dropout of a one": lambda: F.dropout(torch.ones(()), 0.5).item() == 0,
    "Python's random": lambda: random.random() < 0.5,
    "Python's random above 90 %": lambda: random.random() > 0.9,
    "Python's choice": lambda: random.choice([0, 1]) == 1,
    "Python's uniform": lambda: random.uniform(0, 2) > 1,
    "NumPy's random": lambda: np.random.rand() > 0.5,
    "NumPy's randint": lambda: np.random.randint(2) == 1,
    "NumPy's randn": lambda: np.random.randn() > 0.5,
}


def model(function: Callable[[Tensor], Tensor]) -> Custom:
    torch.manual_seed(0)
    return Custom(lambda m, x: m.second(function(m.first(x))), first=nn.Linear(6, 5), second=nn.Linear(5, 3))


def gated(gate: Callable[[], object]) -> Callable[[Tensor], Tensor]:
    return lambda h: h - h.mean(0) if gate() else h


def gated_gradient(gate: Callable[[], object]) -> Callable[[Tensor], Tensor]:
    return lambda h: h + h.mean(0) - h.mean(0).detach() if gate() else h


@pytest.mark.parametrize("gate", GATES.values(), ids=GATES)
def test_gate_is_refused_in_the_first_step(gate: Callable[[], object]) -> None:
    with pytest.raises(PrivacyError):
        AssertedLoop(model(gated(gate)), records(6)).train()


@pytest.mark.parametrize("name", ["rand below a half", "rand above a half", "Python's choice", "NumPy's randint"])
def test_gate_on_the_gradient_is_refused(name: str) -> None:
    with pytest.raises(PrivacyError):
        AssertedLoop(model(gated_gradient(GATES[name])), records(6)).train()


PERMUTED: dict[str, Callable[[int], Any]] = {
    "torch": torch.randperm,
    "Python": lambda n: random.sample(range(n), n),
    "NumPy": lambda n: torch.from_numpy(np.random.permutation(n).copy()),
}


@pytest.mark.parametrize("order", PERMUTED.values(), ids=PERMUTED)
def test_mixup_inside_a_model_is_refused(order: Callable[[int], Any]) -> None:
    with pytest.raises(PrivacyError):
        AssertedLoop(model(lambda h: h + 0.3 * h[order(len(h))]), records(6)).train()


@pytest.mark.parametrize("order", PERMUTED.values(), ids=PERMUTED)
def test_two_permutations_do_not_hide_each_other(order: Callable[[int], Any]) -> None:
    clip = PerExampleClip(model(lambda h: h + 0.3 * h[order(len(h))][order(len(h))]), 1.0)
    with pytest.raises(PrivacyError):
        prove(clip, Call((records(6)[0],), {}))
    clip.close()


def row_noise(h: Tensor) -> Tensor:
    return h + torch.from_numpy(np.random.randn(*h.shape)).to(h)


def row_by_row(h: Tensor) -> Tensor:
    """Another number for each example, drawn in a loop."""
    return torch.stack([row * (1 + random.random() + float(torch.rand(()))) for row in h])


HARMLESS: dict[str, Callable[[Tensor], Tensor]] = {
    "stochastic depth": lambda h: h + h.tanh() * h.new_empty(len(h), 1).bernoulli_(0.8),
    "a factor of its own for each example": lambda h: h * torch.rand(len(h), 1),
    "in a loop over examples": row_by_row,
    "noise of NumPy's": row_noise,
    "a factor for all": lambda h: h * (0.5 + random.random()),
    "dropped columns": lambda h: h[:, torch.randperm(5)] * torch.ones(5),
    "dropout": lambda h: F.dropout(h, 0.9),
}


@pytest.mark.parametrize("function", HARMLESS.values(), ids=HARMLESS)
def test_harmless_randomness_is_accepted(function: Callable[[Tensor], Tensor]) -> None:
    assert AssertedLoop(model(function), records(6)).train().steps_taken == 2


def test_every_source_of_randomness_is_as_it_was() -> None:
    own = np.random.default_rng(5)

    def draws() -> list[float]:
        return [random.random(), float(np.random.rand()), float(torch.rand(())), float(own.random())]

    def all_four(h: Tensor) -> Tensor:
        return h * (1 + sum(draws()))

    def seeded() -> None:
        torch.manual_seed(0)
        random.seed(0)
        np.random.seed(0)
        own.bit_generator.state = np.random.default_rng(5).bit_generator.state

    trained = model(all_four)
    trained.own = own  # a generator that a module holds
    seeded()
    expected = draws()
    functions = (random.random, random.choice, np.random.rand, np.random.permutation)
    seeded()
    clip = PerExampleClip(trained, 1.0)
    prove(clip, Call((records(6)[0],), {}))
    clip.close()
    assert draws() == expected
    assert functions == (random.random, random.choice, np.random.rand, np.random.permutation)
