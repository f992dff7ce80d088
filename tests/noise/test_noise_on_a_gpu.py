"""On a GPU the noise is that of the processor, to the bit, so a run may move between them."""

from __future__ import annotations

import pytest
import torch

from noisette.core.noise import GaussianNoise, Part, SecretKey, Window
from noisette.noise.device import CompiledNoise, TorchNoise

pytestmark = pytest.mark.skipif(not torch.cuda.is_available(), reason="no GPU")
KEY = SecretKey(bytes(range(32)))
SIZES = {"a": 3, "b": 256, "c": 5_000_001, "d": 70_000, "e": 3000, "f": 60_000}
WINDOWS = {"c": Window(1000), "d": Window(5, 1000, 10_000), "e": Window(777, 3, 10), "f": Window(4 * 10**10)}


def of_a_device() -> CompiledNoise:
    return CompiledNoise(None, lambda: 0.0)


def test_a_rare_radius() -> None:
    """Pair 5,399,463 of this stream is rare (``tests/core/test_noise.py``); the plain noise is sent to the device."""
    window = Window(5_399_463 // 128 * 256)
    kernel, sent, here = torch.ones(300, device="cuda"), torch.ones(300, device="cuda"), torch.ones(300)
    GaussianNoise(KEY, of_a_device()).add_({"a": kernel}, step=3, divisor=3.0, windows={"a": window})
    for tensor in (sent, here):
        GaussianNoise(KEY).add_({"a": tensor}, step=3, divisor=3.0, windows={"a": window})
    assert torch.equal(kernel.cpu(), here)
    assert torch.equal(sent.cpu(), here)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64], ids=str)
@pytest.mark.parametrize("std", [1.3, 1e-6])
def test_values_are_those_of_the_processor(dtype: torch.dtype, std: float) -> None:
    there, here = (
        {name: torch.linspace(-3, 3, size, dtype=dtype).to(device) for name, size in SIZES.items()}
        for device in ("cuda", "cpu")
    )
    for tensors in (there, here):
        GaussianNoise(KEY, of_a_device()).add_(tensors, step=2**40 + 7, std=std, divisor=2.7, windows=WINDOWS)
    for name in SIZES:
        assert torch.equal(there[name].cpu(), here[name])


def test_values_without_triton() -> None:
    there, here = {"a": torch.ones(5_000_001, device="cuda")}, {"a": torch.ones(5_000_001)}
    parts = (Part("a", 5_000_001, Window(77)),)
    TorchNoise(KEY, torch.float32, torch.device("cuda")).add_(there, parts, step=1, std=1.3, divisor=2.7)
    GaussianNoise(KEY).add_(here, step=1, std=1.3, divisor=2.7, windows={"a": Window(77)})
    assert torch.equal(there["a"].cpu(), here["a"])


def test_steps_and_tensors_that_move_in_memory() -> None:
    source = GaussianNoise(KEY, of_a_device())
    for step in range(3):
        there, here = {"a": torch.zeros(1000, device="cuda")}, {"a": torch.zeros(1000)}
        source.add_(there, step=step, std=step + 0.5)
        source.add_(here, step=step, std=step + 0.5)
        assert torch.equal(there["a"].cpu(), here["a"])
