"""A GPU gives the noise that the processor gives, bit for bit, so a run may move from one to the other."""

from __future__ import annotations

import pytest
import torch
from torch import nn

from noisette.core.noise import GaussianNoise, SecretKey
from noisette.core.release import BoundedSum, GaussianRelease
from noisette.noise.banded import BandedNoise, banded_coefficients
from noisette.noise.device import CompiledNoise

KEY = SecretKey(bytes(range(32)))
SIZES = (1, 3, 255, 256, 257, 5_000, 140_001)
both = pytest.mark.parametrize("dtype", [torch.float32, torch.float64], ids=str)


@both
def test_noise_is_that_of_the_processor(device: torch.device, dtype: torch.dtype) -> None:
    sums = {f"p{size}": torch.linspace(-2, 2, size, dtype=dtype) for size in SIZES}
    there = {name: tensor.to(device, copy=True) for name, tensor in sums.items()}
    for tensors in (sums, there):
        GaussianNoise(KEY, CompiledNoise(None, lambda: 0.0)).add_(tensors, step=7, std=0.37, divisor=13.0)
    for name, tensor in sums.items():
        assert torch.equal(there[name].cpu(), tensor), name


def test_noise_has_its_deviation_and_differs_from_step_to_step(device: torch.device) -> None:
    first, second = (torch.zeros(200_000, device=device) for _ in range(2))
    noise = GaussianNoise(KEY, CompiledNoise(None, lambda: 0.0))
    noise.add_({"p": first}, step=1, std=2.0)
    noise.add_({"p": second}, step=2, std=2.0)
    for values in (first, second):
        assert abs(float(values.mean())) < 0.03
        assert abs(float(values.std()) - 2) < 0.03
    assert abs(float((first * second).mean())) < 0.06


@both
def test_released_gradients_are_those_of_the_processor(device: torch.device, dtype: torch.dtype) -> None:
    """The same sums, so that no rounding of the sums themselves comes in."""
    torch.manual_seed(0)
    sums = [torch.randn(40, 33, dtype=dtype), torch.randn(33, dtype=dtype), torch.randn((), dtype=dtype)]
    released = []
    for place in (torch.device("cpu"), device):
        params = tuple(nn.Parameter(torch.zeros_like(g, device=place)) for g in sums)
        bounded = BoundedSum(params, tuple(g.to(place, copy=True) for g in sums), 0.8)
        names = {id(p): f"layer.{k}" for k, p in enumerate(params)}
        GaussianRelease(KEY, 1.3, 64.0)([bounded], names, step=4)
        released.append([p.grad for p in params])
    for here, there in zip(*released, strict=True):
        assert here is not None
        assert there is not None
        assert there.device.type == device.type
        assert torch.equal(there.cpu(), here)


@both
def test_banded_noise_is_that_of_the_processor(device: torch.device, dtype: torch.dtype) -> None:
    """Through steps that take back the noise of those before."""
    here, there = (
        BandedNoise(GaussianNoise(KEY, CompiledNoise(None, lambda: 0.0)), banded_coefficients(3, 10)) for _ in range(2)
    )
    for step in range(5):
        sums = {f"p{size}": torch.linspace(-2, 2, size, dtype=dtype) for size in SIZES}
        moved = {name: tensor.to(device, copy=True) for name, tensor in sums.items()}
        here.add_(sums, step=step, std=0.37, divisor=13.0)
        there.add_(moved, step=step, std=0.37, divisor=13.0)
        for name, tensor in sums.items():
            assert torch.equal(moved[name].cpu(), tensor), name
