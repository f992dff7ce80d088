"""The audit game on the real training loop: what an attacker sees of canary records is exactly what was promised.

Each canary's gradient points along an axis of its own, far above the bound, and each step draws it with probability
one half. Its score is the released gradient along that axis in units of the noise: N(0, 1) if it was out, N(1/sigma, 1)
if it was in. One step gives as many samples as there are canaries. A right one fails once in some million runs.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass, replace

import numpy as np
import pytest
import torch
from scipy.stats import beta, norm
from torch import Tensor, nn

from noisette import BookKeeping, Loop, PerExampleClip, Reweight, privatize
from noisette.bounding import Engine
from noisette.bounding.clipped_sum import ClippedSum
from noisette.noise import GaussianNoise

ENGINES = [BookKeeping(), Reweight(), Loop()]
CANARIES, ORDINARY, BOUND, Z, PEAK, ALPHA = 512, 100, 0.7, 6.1, 7.5, 1e-9
EXPECTED = (CANARIES + ORDINARY) / 2


class Axes(nn.Module):
    """The gradient of an example's output is the example itself, spread over two parameters of uneven size."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.cut = width // 3
        self.a, self.b = nn.Linear(self.cut, 1, bias=False), nn.Linear(width - self.cut, 1, bias=False)

    def forward(self, x: Tensor) -> Tensor:
        return self.a(x[:, : self.cut]) + self.b(x[:, self.cut :])


def records() -> Tensor:
    """Canaries on their axes, longer than the bound; ordinary records on eight axes of their own."""
    x = torch.zeros(CANARIES + ORDINARY, CANARIES + 8)
    x[:CANARIES, :CANARIES] = 3 * torch.eye(CANARIES)
    x[CANARIES:, CANARIES:] = torch.randn(ORDINARY, 8)
    return x


@dataclass(frozen=True)
class Scores:
    """Scores and coins of every step, shape (steps, canaries)."""

    values: np.ndarray
    inside: np.ndarray


def play(engine: Engine, sigma: float, *, steps: int = 24) -> Scores:
    x = records()
    model = Axes(x.shape[1])
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    values, coins = [], []
    clip = PerExampleClip(model, BOUND, engine=engine)
    with privatize(
        clip, optimizer, x, sampling_rate=0.5, expected_batch_size=EXPECTED, steps=steps, noise_multiplier=sigma
    ) as run:
        for batch in run.batches():
            for piece in batch.pieces(200):
                run.backward(model(piece).squeeze(1))
            optimizer.step()
            released = torch.cat([p.grad.double().flatten() for p in model.parameters()]) * EXPECTED
            values.append(released[:CANARIES].numpy() / (sigma * BOUND))
            coins.append(np.isin(np.arange(CANARIES), batch.indices))
            optimizer.zero_grad()
    return Scores(np.array(values), np.array(coins))


def certified_mu(scores: Scores, sigma: float) -> float:
    """What the scores prove about the mechanism: at least so many deviations lie between in and out.

    Clopper-Pearson on the errors of the fixed threshold 1 / (2 sigma).
    """
    out, inside = scores.values[~scores.inside], scores.values[scores.inside]
    wrong_in, wrong_out = int((out >= 0.5 / sigma).sum()), int((inside < 0.5 / sigma).sum())
    upper = [
        1.0 if k == n else beta.ppf(1 - ALPHA / 2, k + 1, n - k)
        for k, n in ((wrong_in, out.size), (wrong_out, inside.size))
    ]
    return norm.ppf(1 - upper[0]) - norm.ppf(upper[1])


def autocorrelation_peak(z: np.ndarray) -> float:
    spectrum = np.abs(np.fft.rfft(z, 2 * z.size)) ** 2
    lags = np.fft.irfft(spectrum)[1 : z.size - 20]
    return float(np.abs(lags / np.sqrt(z.size - np.arange(1, z.size - 20))).max())


def audit(scores: Scores, sigma: float) -> list[str]:
    """What is wrong, in words; nothing if the mechanism is the documented one."""
    out, inside = scores.values[~scores.inside], scores.values[scores.inside]
    residuals = scores.values - scores.inside / sigma
    steps, n = residuals.shape
    across = residuals @ residuals.T / math.sqrt(n)
    findings = {
        "privacy violation": certified_mu(scores, sigma) > 1 / sigma,
        "spread of those out": abs((out.std() - 1) * math.sqrt(2 * out.size)) > Z,
        "spread of those in": abs((inside.std() - 1) * math.sqrt(2 * inside.size)) > Z,
        "shift": abs((inside.mean() - out.mean() - 1 / sigma) / math.sqrt(1 / inside.size + 1 / out.size)) > Z,
        "mean of those out": abs(out.mean() * math.sqrt(out.size)) > Z,
        "coins": abs((scores.inside.mean() - 0.5) * 2 * math.sqrt(scores.inside.size)) > Z,
        "correlation within a step": max(map(autocorrelation_peak, residuals)) > PEAK,
        "correlation between steps": np.abs(across[~np.eye(steps, dtype=bool)]).max() > PEAK,
    }
    return [name for name, found in findings.items() if found]


@pytest.mark.parametrize("sigma", [0.5, 1.0, 4.0])
@pytest.mark.parametrize("engine", ENGINES, ids=lambda e: type(e).__name__)
def test_real_loop_is_the_documented_mechanism(engine: Engine, sigma: float) -> None:
    scores = play(engine, sigma, steps=24 if not isinstance(engine, Loop) else 6)
    assert audit(scores, sigma) == []
    assert sigma == 4 or certified_mu(scores, sigma) > 0.1, "the game has power"


@pytest.mark.slow
@pytest.mark.parametrize("sigma", [0.5, 1.0, 4.0])
def test_long_game(sigma: float) -> None:
    scores = play(BookKeeping(), sigma, steps=800)
    assert audit(scores, sigma) == []
    assert certified_mu(scores, sigma) > 0.8 / sigma


Patch = Callable[[pytest.MonkeyPatch], None]


def noise_changed(change: Callable[..., None]) -> Patch:
    """A mutant that adds its noise by ``change(the library's way, source, tensors, step=..., deviation=...)``."""
    real = GaussianNoise.add_
    return lambda patch: patch.setattr(
        GaussianNoise, "add_", lambda source, tensors, **numbers: change(real, source, tensors, **numbers)
    )


def noise_times(factor: float) -> Patch:
    def scaled(real, source, tensors, *, step, deviation):
        real(source, tensors, step=step, deviation=deviation * factor)

    return noise_changed(scaled)


def repeated_each_step(real, source, tensors, *, step, deviation):
    real(source, tensors, step=0, deviation=deviation)


def same_for_each_parameter(real, source, tensors, *, step, deviation):
    for tensor in tensors.values():
        real(source, {"one name": tensor}, step=step, deviation=deviation)


def tiled(real, source, tensors, *, step, deviation):
    for name, tensor in tensors.items():
        for half in tensor.view(-1).chunk(2):
            real(source, {name: half}, step=step, deviation=deviation)


def of_two_seeds(real, source, tensors, *, step, deviation):
    generator = torch.Generator().manual_seed(step % 2)
    for tensor in tensors.values():
        tensor.add_(torch.randn(tensor.shape, generator=generator), alpha=deviation)


def factors_changed(change: Callable[[Tensor, float], Tensor]) -> Patch:
    return lambda patch: patch.setattr(PerExampleClip, "_factors", lambda self, norms: change(norms, BOUND))


def batch_clipped(patch: pytest.MonkeyPatch) -> None:
    """The sum of a batch is clipped, not each example."""

    def clipped_sum(self, losses, record, parameters, clipping):
        sums = torch.autograd.grad(losses.sum(), list(parameters.values()))
        norm = torch.cat([g.flatten() for g in sums]).norm().view(1, 1)
        clipped = {name: g * clipping.factors(norm)[0] for name, g in zip(parameters, sums, strict=True)}
        return ClippedSum(clipped, norm.expand(1, len(losses)))

    patch.setattr(BookKeeping, "clipped_sum", clipped_sum)


def bound_for_each_of_two_parameters(patch: pytest.MonkeyPatch) -> None:
    real = BookKeeping.clipped_sum

    def clipped_sum(self, losses, record, parameters, clipping):
        clipped = real(self, losses, record, parameters, clipping)
        return replace(clipped, sums={name: 1.4 * g for name, g in clipped.sums.items()})

    patch.setattr(BookKeeping, "clipped_sum", clipped_sum)


def last_piece_alone(patch: pytest.MonkeyPatch) -> None:
    real = PerExampleClip.backward

    def backward(self, losses):
        self._pending.clear()
        real(self, losses)

    patch.setattr(PerExampleClip, "backward", backward)


def pending_kept(patch: pytest.MonkeyPatch) -> None:
    """The sum of one step is still there in the next."""
    real = PerExampleClip.take

    def take(self):
        pending = dict(self._pending)
        taken = real(self)
        self._pending.update({name: g.clone() for name, g in pending.items()})
        return taken

    patch.setattr(PerExampleClip, "take", take)


MUTANTS: dict[str, Patch] = {
    "no noise": noise_times(1e-12),
    "half the noise": noise_times(0.5),
    "noise x 0.85": noise_times(0.85),
    "noise of an average": noise_times(1 / EXPECTED),
    "noise twice": noise_times(math.sqrt(2)),
    "same noise each step": noise_changed(repeated_each_step),
    "same noise for each parameter": noise_changed(same_for_each_parameter),
    "tiled noise": noise_changed(tiled),
    "noise of two seeds": noise_changed(of_two_seeds),
    "clipped at twice the bound": factors_changed(lambda norms, c: (2 * c / norms).clamp(max=1)),
    "clipped at half the bound": factors_changed(lambda norms, c: (c / 2 / norms).clamp(max=1)),
    "not clipped": factors_changed(lambda norms, c: torch.ones_like(norms)),
    "the bound ignored": factors_changed(lambda norms, c: (1 / norms).clamp(max=1)),
    "batch clipped": batch_clipped,
    "the bound for each of two parameters": bound_for_each_of_two_parameters,
    "last piece alone": last_piece_alone,
    "pending sum kept": pending_kept,
}


@pytest.mark.parametrize("mutant", MUTANTS.values(), ids=MUTANTS)
def test_planted_faults_are_caught(mutant: Patch, monkeypatch: pytest.MonkeyPatch) -> None:
    """The preflight, which would refuse some of them, is off here: the game must see them by itself."""
    monkeypatch.setattr("noisette.preflight.prove", lambda bound, example: None)
    mutant(monkeypatch)
    assert audit(play(BookKeeping(), 1.0), 1.0) != []
