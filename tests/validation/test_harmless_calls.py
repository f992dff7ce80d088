"""Models for ``run.backward`` that keep examples apart, and whose calls the preflight has to understand."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor, nn
from torch.distributions import Beta, Binomial, Dirichlet, Gamma, StudentT
from torch.nn import functional as F

from noisette import PerExampleClip, PrivacyError
from noisette.validation import Call
from noisette.validation.checks import prove


class Model(nn.Module):
    """A linear layer whose scores ``change`` changes."""

    def __init__(self, change: Callable[[Tensor], Tensor]) -> None:
        super().__init__()
        self.layer, self.change = nn.Linear(4, 3), change

    def forward(self, x: Tensor) -> Tensor:
        return self.change(self.layer(x))


def _of_one_type(scores: Tensor) -> Tensor:
    assert scores.dtype == torch.float32
    return scores


CHANGES: dict[str, Callable[[Tensor], Tensor]] = {
    "gamma": lambda s: s * Gamma(torch.full_like(s, 2.0), 1.0).sample(),
    "beta": lambda s: s * Beta(torch.full_like(s, 2.0), 1.0).sample(),
    "dirichlet": lambda s: s * Dirichlet(torch.ones_like(s)).sample(),
    "Student": lambda s: s + StudentT(torch.full_like(s, 3.0)).sample(),
    "binomial": lambda s: s * Binomial(10, torch.full_like(s, 0.3)).sample(),
    "native dropout": lambda s: torch.native_dropout(s, 0.5, True)[0],
    "laplace of NumPy": lambda s: s + torch.from_numpy(np.random.laplace(size=tuple(s.shape))).to(s),
    "gumbel of NumPy": lambda s: s + torch.from_numpy(np.random.gumbel(0.0, 1.0, tuple(s.shape))).to(s),
    "logistic of NumPy": lambda s: s + torch.from_numpy(np.random.logistic(size=tuple(s.shape))).to(s),
    "lognormal of NumPy": lambda s: s * torch.from_numpy(np.random.lognormal(size=tuple(s.shape))).to(s),
    "an assertion of single precision": _of_one_type,
    "a table by type": lambda s: s * {torch.float32: 2.0}[s.dtype],
}


@pytest.mark.parametrize("change", CHANGES.values(), ids=CHANGES)
def test_a_harmless_model_passes(change: Callable[[Tensor], Tensor]) -> None:
    model = Model(change)
    prove(PerExampleClip(model, 1.0), Call((torch.zeros(5, 4),), {}))


@pytest.mark.parametrize("name", ["gamma", "binomial", "laplace of NumPy"])
def test_a_model_that_also_mixes_examples_is_refused(name: str) -> None:
    model = Model(lambda scores: CHANGES[name](scores - scores.mean(0)))
    with pytest.raises(PrivacyError):
        prove(PerExampleClip(model, 1.0), Call((torch.zeros(5, 4),), {}))


class Resized(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.layer = nn.Conv2d(1, 2, 3)

    def forward(self, x: Tensor, size: Any) -> Tensor:
        return F.interpolate(self.layer(x), size=tuple(size)).mean((2, 3))


@pytest.mark.parametrize("examples", [1, 2, 3])
@pytest.mark.parametrize("size", [(6, 6), [6, 6]])
def test_a_list_of_constants_may_be_as_long_as_the_microbatch(examples: int, size: Any) -> None:
    """How many records the last microbatch has depends on the records."""
    prove(PerExampleClip(Resized(), 1.0), Call((torch.zeros(examples, 1, 8, 8),), {"size": size}))
