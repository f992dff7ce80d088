"""Batches that differ by one record: their sums differ by no more than the bound."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from noisette import AdaptiveClip, GradientBound, PerExampleClip
from noisette.audit import Verdict, audit_neighbours
from noisette.clipping.engines import BookKeeping, PerExampleLoop, ReweightGP
from noisette.core.release import ROUNDING
from noisette.lipschitz.bound import LipschitzBound
from noisette.nn.lipschitz import BoundedInput, GroupSort2, SpectralLinear, TauCrossEntropy


def draw(n: int) -> tuple[Tensor, Tensor]:
    return torch.randn(n, 6), torch.randint(0, 3, (n,))


def loss(model: nn.Module, x: Tensor, y: Tensor) -> Tensor:
    return F.cross_entropy(model(x), y)


TAU = TauCrossEntropy(tau=2.0)


def network() -> nn.Module:
    return nn.Sequential(nn.Linear(6, 16), nn.Tanh(), nn.Dropout(0.3), nn.Linear(16, 3))


def lipschitz() -> GradientBound:
    model = nn.Sequential(BoundedInput(1.0), SpectralLinear(6, 8), GroupSort2(), SpectralLinear(8, 3))
    return LipschitzBound(model, loss=TAU, input_shape=(6,))


BOUNDS = {
    "BookKeeping": lambda: PerExampleClip(network(), 0.5),
    "ReweightGP": lambda: PerExampleClip(network(), 0.5, engine=ReweightGP()),
    "PerExampleLoop": lambda: PerExampleClip(network(), 0.5, engine=PerExampleLoop()),
    "AdaptiveClip": lambda: PerExampleClip(network(), clipping=AdaptiveClip(0.5, count_share=0.2)),
    "LipschitzBound": lipschitz,
}


@pytest.mark.parametrize("name", BOUNDS)
def test_a_record_moves_a_sum_by_no_more_than_the_bound(name: str) -> None:
    by_layers, pairs = name == "LipschitzBound", 6 if name == "PerExampleLoop" else 50
    audit = audit_neighbours(
        BOUNDS[name](), draw, (lambda model, x, y: TAU(model(x), y)) if by_layers else loss, pairs=pairs
    )
    assert audit.verdict is Verdict.CONSISTENT, audit.findings
    assert audit.reached.shape == (pairs,)
    assert (0.2 if by_layers else 0.99) < audit.worst < 1 + ROUNDING, "the bound is reached, and not exceeded"


def test_a_sum_that_moves_too_far_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    real = BookKeeping.clipped_sum

    def clipped_sum(self, forward, parameters, clipping):
        clipped = real(self, forward, parameters, clipping)
        return replace(clipped, sums={name: 1.1 * g for name, g in clipped.sums.items()})

    monkeypatch.setattr(BookKeeping, "clipped_sum", clipped_sum)
    audit = audit_neighbours(PerExampleClip(network(), 0.5), draw, loss, pairs=2)
    assert audit.verdict is Verdict.VIOLATION
    assert audit.findings == ("one record moves the sum of a batch by 1.1 times the bound",)
