"""Autocast to bfloat16: gradients close to those of single precision, and no example above the bound."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor, nn

from engine_check import ENGINES
from model_cases import cross_entropy
from noisette import PerExampleClip
from noisette.clipping.engines import BookKeeping
from noisette.core.clip import Engine
from noisette.core.release import ROUNDING

EXAMPLES = 6


def model_of(device: torch.device) -> nn.Module:
    body = [nn.Conv2d(3, 8, 3, padding=1), nn.GroupNorm(2, 8), nn.GELU(), nn.Flatten(2), nn.LayerNorm(36)]
    return nn.Sequential(*body, nn.Linear(36, 16), nn.ReLU(), nn.Flatten(), nn.Linear(128, 4)).to(device)


def batch(device: torch.device, examples: int = EXAMPLES) -> tuple[Tensor, Tensor]:
    return torch.randn(examples, 3, 6, 6).to(device), (torch.arange(examples) % 4).to(device)


@pytest.mark.parametrize("engine", ENGINES, ids=lambda engine: type(engine).__name__)
def test_autocast_is_close_to_single_precision(device: torch.device, engine: Engine) -> None:
    model, (x, y) = model_of(device), batch(device)
    sums = []
    for lower in (False, True):
        clip = PerExampleClip(model, 0.5, engine=engine)
        with torch.autocast(device.type, torch.bfloat16, enabled=lower):
            clip.accumulate(cross_entropy, x, y)
        [total] = clip.pop_sums()
        clip.close()
        assert all(g.dtype in (torch.float32, torch.float64) for g in total.grads)
        sums.append(torch.cat([g.flatten().double() for g in total.grads]))
    assert float((sums[1] - sums[0]).norm()) <= 0.05 * 0.5 * EXAMPLES**0.5


@pytest.mark.parametrize("scale", [1e-6, 1.0, 1e4])
@pytest.mark.parametrize("weights", [torch.float32, torch.bfloat16], ids=str)
def test_one_example_stays_within_the_bound(device: torch.device, weights: torch.dtype, scale: float) -> None:
    """Measured in double precision on what the noise is added to."""
    model, (x, y) = model_of(device).to(weights), batch(device, 1)
    with torch.no_grad():
        model[-1].weight.mul_(scale)
    for bound in (1e-3, 1.0):
        clip = PerExampleClip(model, bound, engine=BookKeeping())
        with torch.autocast(device.type, torch.bfloat16):
            clip.accumulate(cross_entropy, x.to(weights), y)
        [total] = clip.pop_sums()
        clip.close()
        norm = float(torch.cat([g.flatten().double() for g in total.grads]).norm())
        assert 0 < norm <= bound * (1 + ROUNDING)
