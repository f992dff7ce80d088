"""A GPU gives the noise that the processor gives, bit for bit, so a run may move from one to the other."""

import pytest
import torch

from noisette.core.noise import GaussianNoise, SecretKey
from noisette.noise.banded import BandedNoise, banded_coefficients
from noisette.noise.device import CompiledNoise

KEY = SecretKey(bytes(range(32)))
SIZES = (1, 3, 255, 256, 257, 5_000, 140_001)
SOURCES = {
    "independent": lambda: GaussianNoise(KEY, CompiledNoise(None, lambda: 0.0)),
    "banded": lambda: BandedNoise(SOURCES["independent"](), banded_coefficients(3, 10)),
}


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64], ids=str)
@pytest.mark.parametrize("make", SOURCES.values(), ids=SOURCES)
def test_noise_is_that_of_the_processor(make, dtype: torch.dtype, device: torch.device) -> None:
    """Through steps, of which banded ones take back the noise of those before."""
    here, there = make(), make()
    for step in range(5):
        sums = {f"p{size}": torch.linspace(-2, 2, size, dtype=dtype) for size in SIZES}
        moved = {name: tensor.to(device, copy=True) for name, tensor in sums.items()}
        here.add_(sums, step=step, std=0.37, divisor=13.0)
        there.add_(moved, step=step, std=0.37, divisor=13.0)
        for name, tensor in sums.items():
            assert torch.equal(moved[name].cpu(), tensor), name
