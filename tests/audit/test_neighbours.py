"""Batches that differ by one record: their sums differ by no more than the bound, and by the noise that is declared."""

from __future__ import annotations

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from noisette import AdaptiveClip, GradientBound, PerExampleClip
from noisette.audit import Verdict, audit_neighbours
from noisette.audit.step_audit import _ascended
from noisette.clipping.engines import BookKeeping, PerExampleLoop, ReweightGP
from noisette.core.noise import GaussianNoise
from noisette.core.release import ROUNDING
from noisette.lipschitz.bound import LipschitzBound
from noisette.nn.lipschitz import BoundedInput, GroupSort2, SpectralLinear, TauCrossEntropy


def draw(n: int) -> tuple[Tensor, Tensor]:
    return torch.randn(n, 6), torch.randint(0, 3, (n,))


def loss(model: nn.Module, x: Tensor, y: Tensor) -> Tensor:
    return F.cross_entropy(model(x), y)


def network() -> nn.Module:
    torch.manual_seed(3)
    return nn.Sequential(nn.Linear(6, 16), nn.Tanh(), nn.Dropout(0.3), nn.Linear(16, 3))


@pytest.mark.parametrize("engine", [BookKeeping(), ReweightGP(), PerExampleLoop()], ids=lambda e: type(e).__name__)
def test_a_record_moves_a_sum_by_no_more_than_the_bound(engine) -> None:
    pairs = 6 if isinstance(engine, PerExampleLoop) else 50
    audit = audit_neighbours(
        lambda: PerExampleClip(network(), 0.5, engine=engine), draw, loss, noise_multiplier=1.0, pairs=pairs, steps=30
    )
    assert audit.verdict is Verdict.CONSISTENT, audit.findings
    assert audit.reached.shape == (pairs,)
    assert 0.99 < audit.worst < 1 + ROUNDING, "the bound is reached, and not exceeded"


def test_adaptive_clipping_keeps_its_bound() -> None:
    audit = audit_neighbours(
        lambda: PerExampleClip(network(), clipping=AdaptiveClip(0.5, count_share=0.2)),
        draw,
        loss,
        noise_multiplier=1.0,
        steps=1,
    )
    assert 0.99 < audit.worst < 1 + ROUNDING


def test_a_lipschitz_network_keeps_its_bound() -> None:
    tau = TauCrossEntropy(tau=2.0)

    def make() -> GradientBound:
        torch.manual_seed(5)
        model = nn.Sequential(BoundedInput(1.0), SpectralLinear(6, 8), GroupSort2(), SpectralLinear(8, 3))
        return LipschitzBound(model, loss=tau, input_shape=(6,))

    audit = audit_neighbours(make, draw, lambda m, x, y: tau(m(x), y), noise_multiplier=1.0, steps=30)
    assert audit.verdict is Verdict.CONSISTENT, audit.findings
    assert 0.2 < audit.worst <= 1 + ROUNDING


def test_too_little_noise_is_found_along_the_worst_direction(monkeypatch: pytest.MonkeyPatch) -> None:
    real = GaussianNoise.add_

    def quieter(self, tensors, *, step, std, divisor):
        real(self, tensors, step=step, std=0.2 * std, divisor=divisor)

    monkeypatch.setattr(GaussianNoise, "add_", quieter)
    audit = audit_neighbours(lambda: PerExampleClip(network(), 0.5), draw, loss, noise_multiplier=1.0, pairs=2)
    assert audit.worst < 1 + ROUNDING
    assert audit.noised.certified_mu > 1
    assert audit.verdict is Verdict.VIOLATION


def test_ascent_increases_the_gradient_norm_of_a_record() -> None:
    """The gradient of tanh is small for large inputs, where it saturates, and large around 0."""
    model = nn.Sequential(nn.Linear(6, 1, bias=False), nn.Tanh())

    def steepness(x: Tensor) -> float:
        [g] = torch.autograd.grad(model(x).sum(), model.parameters())
        return float(g.norm())

    for _ in range(5):
        start = torch.randn(1, 6)
        [climbed] = _ascended(model, (start,), lambda m, x: m(x))
        assert steepness(climbed) > 1.2 * steepness(start)


def test_integer_inputs_are_used_as_drawn() -> None:
    def make() -> GradientBound:
        torch.manual_seed(1)
        return PerExampleClip(nn.Sequential(nn.Embedding(9, 4), nn.Flatten(), nn.Linear(20, 3)), 0.1)

    audit = audit_neighbours(
        make, lambda n: (torch.randint(0, 9, (n, 5)), draw(n)[1]), loss, noise_multiplier=1.0, steps=5
    )
    assert audit.verdict is Verdict.CONSISTENT, audit.findings


def test_numbers_outside_their_domain_are_refused_together() -> None:
    with pytest.raises(ValueError, match=r"noise_multiplier.*pairs"):
        audit_neighbours(lambda: PerExampleClip(network(), 1.0), draw, loss, noise_multiplier=0.0, pairs=0)
