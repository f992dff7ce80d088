"""A GPU gives the noise that the processor gives, bit for bit, so a run may move from one to the other."""

import pytest
import torch

from noisette.core.noise import GaussianNoise, SecretKey
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
