"""Runs without a claim: the same steps as private ones, through whatever the examples share, and no price."""

from __future__ import annotations

from functools import partial
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from noisette import PerExampleClip, PrivacyError, privatize
from noisette._internal.keystream import SecretKey
from noisette.clipping.engines import BookKeeping, MultiLoss, PerExampleLoop, TwoPass, Vmap
from noisette.mechanisms.gaussian_noise import GaussianNoise
from noisette.run.non_private import NonPrivateRun, non_private
from noisette.sampling.poisson import PoissonSampler

SECRET = bytes(range(32))
X = torch.randn(40, 1, 4, 4, dtype=torch.float64, generator=torch.Generator().manual_seed(1))
Y = torch.arange(40) % 3
DECLARED: dict[str, Any] = {"sampling_rate": 0.5, "expected_batch_size": 20, "steps": 3, "noise_multiplier": 0.8}


@pytest.fixture(autouse=True)
def _known_key(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("noisette.run.non_private.SecretKey", partial(SecretKey, SECRET))


def coupled() -> nn.Module:
    torch.manual_seed(0)
    model = nn.Sequential(
        nn.Conv2d(1, 2, 3), nn.BatchNorm2d(2), nn.Tanh(), nn.Flatten(), nn.Linear(8, 3), nn.BatchNorm1d(3)
    )
    return model.double()


def start(model: nn.Module, engine: Any, **changes: Any) -> NonPrivateRun:
    clip = PerExampleClip(model, max_grad_norm=0.3, engine=engine)
    return non_private(clip, torch.optim.SGD(model.parameters(), lr=0.1), (X, Y), **{**DECLARED, **changes})


def losses(model: nn.Module, x: Tensor, y: Tensor) -> Tensor:
    return nn.functional.cross_entropy(model(x), y, reduction="none")


def clipped_sum_through_the_batch(model: nn.Module, x: Tensor, y: Tensor) -> list[Tensor]:
    """The whole batch is run anew for each example, and that example's loss alone is differentiated."""
    total = [torch.zeros_like(p) for p in model.parameters()]
    for i in range(len(x)):
        gradients = torch.autograd.grad(losses(model, x, y)[i], list(model.parameters()))
        norm = torch.cat([g.flatten() for g in gradients]).norm()
        for kept, g in zip(total, gradients, strict=True):
            kept += g * min(1.0, 0.3 / norm)
    return total


@pytest.mark.parametrize("engine", [PerExampleLoop(), MultiLoss()], ids=lambda engine: type(engine).__name__)
def test_releases_the_clipped_gradients_of_each_loss_through_the_shared_statistics(engine: Any) -> None:
    model = coupled()
    with start(model, engine) as run:
        for step, batch in enumerate(run.batches()):
            drawn = PoissonSampler(size=40, sampling_rate=0.5, key=SecretKey(SECRET)).indices(step=step)
            assert batch.indices.tolist() == drawn.tolist()
            truth = clipped_sum_through_the_batch(model, X[drawn], Y[drawn])
            for x, y in batch.microbatches(40):
                run.backward(losses(model, x, y))
            noise = {name: torch.zeros_like(p) for name, p in model.named_parameters()}
            GaussianNoise(SecretKey(SECRET)).add_(noise, step=step, std=0.8 * 0.3 / 20)
            run.optimizer.step()
            for p, expected, z in zip(model.parameters(), truth, noise.values(), strict=True):
                torch.testing.assert_close(p.grad, expected / 20 + z, rtol=1e-5, atol=1e-9)
            run.optimizer.zero_grad()
    assert run.steps_taken == 3


def test_there_is_no_epsilon_and_nothing_it_could_come_from() -> None:
    with start(coupled(), PerExampleLoop()) as run:
        with pytest.raises(PrivacyError, match=r"no privacy claim.*share statistics.*PublicBatchNorm"):
            run.epsilon(delta=1e-5)
        assert not {"ledger", "accountant", "event", "terms"} & {*dir(run)}


def test_what_trains_here_stays_refused_where_there_is_a_claim() -> None:
    model = coupled()
    clip = PerExampleClip(model, max_grad_norm=0.3, engine=PerExampleLoop())
    with pytest.raises(PrivacyError, match="BatchNorm2d mixes examples"):
        privatize(clip, torch.optim.SGD(model.parameters(), lr=0.1), (X, Y), **DECLARED)


@pytest.mark.parametrize("engine", [None, BookKeeping(), TwoPass(), Vmap()], ids=lambda e: type(e).__name__)
def test_engines_that_cannot_see_what_is_shared_are_refused_by_name(engine: Any) -> None:
    name = type(engine or BookKeeping()).__name__
    with pytest.raises(ValueError, match=rf"engine {name} .*engine=PerExampleLoop\(\)"):
        start(coupled(), engine)


def test_all_problems_are_told_at_once_and_nothing_is_left_behind() -> None:
    model = coupled()
    clip = PerExampleClip(model, max_grad_norm=0.3)
    sgd = torch.optim.SGD(model.parameters(), lr=0.1)
    with pytest.raises(ValueError) as error:
        non_private(clip, sgd, (X, Y), expected_batch_size=0, noise_multiplier=-1.0, sampling_rate=2.0, steps=1)
    for told in ("expected_batch_size=0", "noise_multiplier=-1.0", "sampling_rate=2.0", "BookKeeping"):
        assert told in str(error.value)
    assert not sgd._optimizer_step_pre_hooks


def test_an_optimizer_that_misses_parameters_is_refused() -> None:
    model = coupled()
    clip = PerExampleClip(model, max_grad_norm=0.3, engine=PerExampleLoop())
    with pytest.raises(PrivacyError, match="trainable, but not in the optimizer"):
        non_private(clip, torch.optim.SGD(model[0].parameters(), lr=0.1), (X, Y), **DECLARED)  # type: ignore[index]


def test_its_steps_are_guarded_like_those_of_a_private_run() -> None:
    model = coupled()
    with start(model, PerExampleLoop()) as run:
        batches = run.batches()
        batch = next(batches)
        with pytest.raises(PrivacyError, match="backward needs a microbatch"):
            run.backward(losses(model, X, Y))
        with pytest.raises(PrivacyError, match="0 examples of this batch"):
            run.optimizer.step()
        losses(model, X, Y).sum().backward()
        with pytest.raises(PrivacyError, match="gradient that is not private"):
            run.optimizer.step()
        run.optimizer.zero_grad()
        for x, y in batch.microbatches(40):
            run.backward(losses(model, x, y))
        with pytest.raises(PrivacyError, match="not called for the last batch"):
            next(batches)
    assert not run.optimizer._optimizer_step_pre_hooks
    assert not model._forward_pre_hooks


def test_an_empty_batch_is_a_step_of_noise() -> None:
    model = coupled()
    with start(model, PerExampleLoop(), sampling_rate=1e-300) as run:
        for batch in run.batches():
            assert len(batch.indices) == 0
            run.optimizer.step()
        assert all(p.grad is not None and p.grad.abs().max() > 0 for p in model.parameters())
