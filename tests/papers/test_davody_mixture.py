"""The paper's own batch norm: what it computes, that privatize refuses it, and how it is trained."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import Tensor, nn

from noisette import PerExampleClip, PrivacyError, privatize
from noisette.core.batches import PoissonSampler
from noisette.core.noise import GaussianNoise, SecretKey
from noisette.nn import convert_batch_norm
from noisette.run.private import check_no_batch_norm
from norm_models import network
from papers.davody_2020.mixture_batch_norm import MixtureBatchNorm
from papers.davody_2020.non_private import noised_gradients

SECRET = bytes(range(32))
X = torch.randn(40, 1, 4, 4, dtype=torch.float64, generator=torch.Generator().manual_seed(1))
Y = torch.arange(40) % 3
DECLARED: dict[str, Any] = {"sampling_rate": 0.5, "noise_multiplier": 0.8}
ROUNDING = 1 + 2**-13  # by which noise is larger
BOUND = 5.0  # between the norms of the examples


def coupled() -> nn.Module:
    torch.manual_seed(0)
    model = nn.Sequential(
        nn.Conv2d(1, 2, 3), nn.BatchNorm2d(2), nn.Tanh(), nn.Flatten(), nn.Linear(8, 3), nn.BatchNorm1d(3)
    )
    return model.double()


def losses(model: nn.Module, x: Tensor, y: Tensor) -> Tensor:
    return nn.functional.cross_entropy(model(x), y, reduction="none")


def clipped_sum_through_the_batch(model: nn.Module, x: Tensor, y: Tensor) -> list[Tensor]:
    """The whole batch is run again for each example, and that example's loss alone is differentiated."""
    total = [torch.zeros_like(p) for p in model.parameters()]
    for i in range(len(x)):
        gradients = torch.autograd.grad(losses(model, x, y)[i], list(model.parameters()))
        norm = torch.cat([g.flatten() for g in gradients]).norm()
        for kept, g in zip(total, gradients, strict=True):
            kept += g * min(1.0, BOUND / norm)
    return total


def test_the_gradients_are_the_clipped_ones_of_each_loss_through_the_shared_statistics() -> None:
    model = coupled()
    sgd = torch.optim.SGD(model.parameters(), lr=0.1)
    released = noised_gradients(model, X, Y, max_grad_norm=BOUND, lot=20, key=SecretKey(SECRET), **DECLARED)
    for step in range(3):
        drawn = PoissonSampler(size=40, sampling_rate=0.5, key=SecretKey(SECRET)).indices(step=step)
        truth = clipped_sum_through_the_batch(model, X[drawn], Y[drawn])
        noise = {name: torch.zeros_like(p) for name, p in model.named_parameters()}
        GaussianNoise(SecretKey(SECRET)).add_(noise, step=step, std=0.8 * BOUND / 20 * ROUNDING)
        next(released)
        for p, expected, z in zip(model.parameters(), truth, noise.values(), strict=True):
            torch.testing.assert_close(p.grad, expected / 20 + z, rtol=1e-5, atol=1e-9)
        sgd.step()
        sgd.zero_grad()


def test_privatize_refuses_what_is_trained_here() -> None:
    model = coupled()
    clip = PerExampleClip(model, max_grad_norm=0.3)
    sgd = torch.optim.SGD(model.parameters(), lr=0.1)
    with pytest.raises(PrivacyError, match="BatchNorm2d mixes examples"):
        privatize(clip, sgd, (X, Y), steps=3, expected_batch_size=20, **DECLARED)


def test_the_mixture_is_batch_norm_over_private_and_public_examples_and_exact_in_evaluation() -> None:
    model, public, x = network("images")
    truth = model(torch.cat([x, public]))[: len(x)]
    alone = [model(torch.cat([x[i : i + 1], public]))[:1] for i in range(len(x))]
    convert_batch_norm(model, to=MixtureBatchNorm, public=public)
    torch.testing.assert_close(model(x), truth, rtol=1e-8, atol=1e-10)
    torch.testing.assert_close(model.eval()(x), torch.cat(alone), rtol=1e-8, atol=1e-10)


def test_the_mixture_is_refused_by_name_where_there_is_a_guarantee() -> None:
    model, public, _ = network("images")
    convert_batch_norm(model, to=MixtureBatchNorm, public=public)
    with pytest.raises(PrivacyError, match="bn1  MixtureBatchNorm mixes examples in its statistics, as published"):
        check_no_batch_norm(model)
    check_no_batch_norm(model.eval())
