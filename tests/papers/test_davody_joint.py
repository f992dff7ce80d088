"""Norms that meet private and public examples in one pass, and how far one record can move each form's clipped sum."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import Tensor, nn

from engine_check import ENGINES
from noisette import PerExampleClip
from noisette.core.clip import Engine
from noisette.nn import FrozenBatchNorm, PerExampleBatchNorm, PublicBatchNorm, convert_batch_norm
from norm_models import NETWORKS, losses, network
from papers.davody_2020.mixture_batch_norm import ExactPerExampleBatchNorm

C = 0.5
SOUND = [PublicBatchNorm, PerExampleBatchNorm, ExactPerExampleBatchNorm, FrozenBatchNorm]
every_engine = pytest.mark.parametrize("engine", ENGINES, ids=lambda engine: type(engine).__name__)


def total(model: nn.Module, values: Tensor, engine: Engine) -> Tensor:
    clip = PerExampleClip(model, C, engine=engine)
    try:
        clip.accumulate(losses, values)
        return torch.cat([g.flatten() for part in clip.pop_sums() for g in part.grads])
    finally:
        clip.close()


@every_engine
@pytest.mark.parametrize("to", SOUND)
@pytest.mark.parametrize("name", ["linear", "images"])
def test_adversarial_neighbours_move_the_sum_by_no_more_than_the_bound(name: str, to: Any, engine: Engine) -> None:
    model, public, x = network(name)
    convert_batch_norm(model, to=to, public=public)
    smallest = total(model, x[1:], engine)
    for record in (x[:1], 1e4 * x[:1], torch.full_like(x[:1], -300.0), torch.zeros_like(x[:1])):
        moved = total(model, torch.cat([record, x[1:]]), engine) - smallest
        assert float(moved.norm()) <= C * (1 + 1e-6)


@pytest.mark.parametrize("name", [name for name in NETWORKS if name != "volumes"])
@every_engine
def test_the_exact_form_gives_each_example_what_a_pass_of_its_own_would(name: str, engine: Engine) -> None:
    model, public, x = network(name)
    alone = [model(torch.cat([x[i : i + 1], public]))[:1] for i in range(len(x))]
    rows = [
        torch.autograd.grad(
            (y - 0.3).square().sum(), list(model.parameters()), allow_unused=True, materialize_grads=True
        )
        for y in alone
    ]
    truth = torch.stack([torch.cat([g.flatten() for g in row]) for row in rows])
    convert_batch_norm(model, to=ExactPerExampleBatchNorm, public=public)
    torch.testing.assert_close(model(x), torch.cat(alone), rtol=1e-8, atol=1e-10)
    expected = (truth * (C / truth.norm(dim=1, keepdim=True)).clamp(max=1)).sum(0)
    torch.testing.assert_close(total(model, x, engine), expected, rtol=1e-7, atol=1e-9)
