"""A stack of per-example gradients is freed once its parameter's sum is computed, before the next sum."""

from __future__ import annotations

import weakref

import pytest
import torch
from torch import nn

from noisette.clipping.engines import MultiLoss
from noisette.clipping.per_example import PerExampleClip
from noisette.core.forms import Dense


def test_multi_loss_frees_each_stack_after_its_sum(monkeypatch: pytest.MonkeyPatch) -> None:
    model = nn.Sequential(*[nn.Linear(4, 4, bias=False) for _ in range(6)])
    clip = PerExampleClip(model, 1.0, engine=MultiLoss())
    stacks: list[weakref.ref] = []
    alive: list[int] = []
    plain = Dense.weighted_sum

    def watched(self: Dense, weights: torch.Tensor) -> torch.Tensor:
        stacks.append(weakref.ref(self.gradients))
        alive.append(sum(stack() is not None for stack in stacks))
        return plain(self, weights)

    monkeypatch.setattr(Dense, "weighted_sum", watched)
    clip.backward(model(torch.randn(3, 4)).square().sum(1))
    clip.close()
    assert max(alive) <= 2  # not all six
