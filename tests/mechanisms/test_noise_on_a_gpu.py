"""On a GPU the noise is that of the processor, to the bit, so a run may move between them."""

from __future__ import annotations

import pytest
import torch
from noisette.mechanisms.noise_tiles import Part
from noisette.mechanisms.torch_noise import TorchNoise

from noisette.core.keys import SecretKey
from noisette.core.noise import GaussianNoise
from noisette.core.tiles import Window

pytestmark = pytest.mark.skipif(not torch.cuda.is_available(), reason="no GPU")
KEY = SecretKey(bytes(range(32)))
SIZES = {"a": 3, "b": 256, "c": 5_000_001, "d": 70_000, "e": 3000, "f": 60_000}
WINDOWS = {"c": Window(1000), "d": Window(5, 1000, 10_000), "e": Window(777, 3, 10), "f": Window(4 * 10**10)}


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64], ids=str)
@pytest.mark.parametrize("std", [1.3, 1e-6])
def test_values_are_those_of_the_processor(dtype: torch.dtype, std: float) -> None:
    there, here = (
        {name: torch.linspace(-3, 3, size, dtype=dtype).to(device) for name, size in SIZES.items()}
        for device in ("cuda", "cpu")
    )
    for tensors in (there, here):
        GaussianNoise(KEY).add_(tensors, step=2**40 + 7, std=std, divisor=2.7, windows=WINDOWS)
    for name in SIZES:
        assert torch.equal(there[name].cpu(), here[name])


def test_values_without_triton() -> None:
    there, here = {"a": torch.ones(5_000_001, device="cuda")}, {"a": torch.ones(5_000_001)}
    parts = (Part("a", 5_000_001, Window(77)),)
    TorchNoise(KEY, torch.float32, torch.device("cuda")).add_(there, parts, step=1, std=1.3, divisor=2.7)
    GaussianNoise(KEY).add_(here, step=1, std=1.3, divisor=2.7, windows={"a": Window(77)})
    assert torch.equal(there["a"].cpu(), here["a"])


def test_steps_and_tensors_that_move_in_memory() -> None:
    source = GaussianNoise(KEY)
    for step in range(3):
        there, here = {"a": torch.zeros(1000, device="cuda")}, {"a": torch.zeros(1000)}
        source.add_(there, step=step, std=step + 0.5)
        source.add_(here, step=step, std=step + 0.5)
        assert torch.equal(there["a"].cpu(), here["a"])
