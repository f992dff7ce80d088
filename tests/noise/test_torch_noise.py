"""Noise computed on a device by torch alone is that of the processor, to the bit. Here the device is the processor."""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np
import pytest
import torch
from cryptography.hazmat.primitives.ciphers import Cipher
from cryptography.hazmat.primitives.ciphers.algorithms import ChaCha20
from torch import Tensor

from noisette.core import noise as plain
from noisette.core.noise import GaussianNoise, Part, SecretKey, Window
from noisette.noise import device as compiled_noise
from noisette.noise import device as device_noise
from noisette.noise.device import CompiledNoise, TorchNoise, chacha20_blocks

KEY = SecretKey(bytes(range(32)))
CPU = torch.device("cpu")
SIZES = {"a": 3, "b": 256, "c": 5000, "d": 700, "e": 300, "f": 60_000}
WINDOWS = {"c": Window(1000), "d": Window(5, 100, 1000), "e": Window(777, 3, 10), "f": Window(4 * 10**10)}


@pytest.fixture(autouse=True)
def _right_roots(monkeypatch: pytest.MonkeyPatch) -> None:
    """On a processor torch rounds roots otherwise; on a GPU it does not."""
    monkeypatch.setattr(device_noise, "square_root", lambda squared: torch.from_numpy(np.sqrt(squared.numpy())))


def sums(dtype: torch.dtype) -> dict[str, Tensor]:
    return {name: torch.linspace(-3, 3, size, dtype=dtype) for name, size in SIZES.items()}


def on_the_processor(dtype: torch.dtype, windows: Mapping[str, Window], step: int) -> dict[str, Tensor]:
    tensors = sums(dtype)
    GaussianNoise(KEY).add_(tensors, step=step, std=1.3, divisor=2.7, windows=windows)
    return tensors


def blocks(secret: bytes, counters: Tensor, step: int) -> bytes:
    state = np.frombuffer(b"expand 32-byte k" + secret + bytes(4) + step.to_bytes(12, "little"), np.int32)
    states = torch.from_numpy(state.copy())[:, None].repeat(1, len(counters))
    return chacha20_blocks(states, counters).numpy().tobytes()


@pytest.mark.parametrize("counter", [0, 1, 2**31 - 1, 2**31, 2**32 - 5])
@pytest.mark.parametrize("step", [0, 2**40 + 7, 2**96 - 1])
def test_keystream(counter: int, step: int) -> None:
    secret = bytes(range(100, 132))
    nonce = counter.to_bytes(4, "little") + step.to_bytes(12, "little")
    expected = Cipher(ChaCha20(secret, nonce), mode=None).encryptor().update(bytes(5 * 64))
    assert blocks(secret, torch.arange(counter, counter + 5), step) == expected


def test_keystream_of_the_standard() -> None:
    """RFC 8439, section 2.3.2."""
    step = int.from_bytes(bytes.fromhex("000000090000004a00000000"), "little")
    block = blocks(bytes(range(32)), torch.tensor([1]), step)
    assert block.hex().startswith("10f1e7e4d13b5915500fdd1fa32071c4c7d1f4c733c06803")
    assert block.hex().endswith("b5129cd1de164eb9cbd083e8a2503c4e")


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64], ids=str)
@pytest.mark.parametrize("tiles", [3, 2**14])
def test_values_are_those_of_the_processor(dtype: torch.dtype, tiles: int) -> None:
    tensors = sums(dtype)
    parts = tuple(Part(name, size, WINDOWS.get(name, Window())) for name, size in SIZES.items())
    TorchNoise(KEY, dtype, CPU, tiles).add_(tensors, parts, step=2**40 + 7, std=1.3, divisor=2.7)
    for name, expected in on_the_processor(dtype, WINDOWS, 2**40 + 7).items():
        assert torch.equal(tensors[name], expected)


def test_a_rare_radius() -> None:
    """Pair 5,399,463 of this stream is rare (``tests/core/test_noise.py``)."""
    part = Part("a", 300, Window(5_399_463 // 128 * 256))
    found, expected = torch.ones(2, 300)
    TorchNoise(KEY, torch.float32, CPU, 1).add_({"a": found}, (part,), step=3, std=1.0, divisor=3.0)
    GaussianNoise(KEY).add_({"a": expected}, step=3, divisor=3.0, windows={"a": part.window})
    assert torch.equal(found, expected)
    assert float(torch.hypot(*(found[5_399_463 % 128 + at] - 1 / 3 for at in (0, 128)))) > 5.76


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64], ids=str)
@pytest.mark.parametrize("levels", [2, 64])
def test_radii_of_many_levels(dtype: torch.dtype, levels: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """Where a level follows two zeros in place of 24, many radii take several words, or all that there are."""
    for module in (plain, device_noise):
        monkeypatch.setattr(module, "RARE_BITS", 2)
        monkeypatch.setattr(module, "RARE", 2**51)
    monkeypatch.setattr(plain, "LEVELS", levels)
    test_values_are_those_of_the_processor(dtype, 3)


@pytest.mark.parametrize(
    ("dtype", "kind", "has_triton", "expected"),
    [
        (torch.float32, "cuda", True, "triton"),
        (torch.float32, "cuda", False, "torch"),
        (torch.float64, "cuda", True, "torch"),
        (torch.float32, "xpu", True, "torch"),
    ],
)
def test_the_way_for_a_device(
    dtype: torch.dtype, kind: str, has_triton: bool, expected: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(device_noise, "find_spec", lambda name: name if has_triton else None)
    monkeypatch.setattr(device_noise, "_by_triton", lambda *_: "triton")
    monkeypatch.setattr(device_noise, "TorchNoise", lambda *_: "torch")
    assert device_noise.device_noise(KEY, dtype, torch.device(kind)) == expected


def test_sums_on_a_device_never_reach_the_processor(monkeypatch: pytest.MonkeyPatch) -> None:
    seen = []

    class Stub:
        def add_(self, flat, parts, **numbers) -> None:
            seen.append((list(flat), parts, numbers))

    monkeypatch.setattr(compiled_noise, "device_noise", lambda *_: Stub())
    source = GaussianNoise(KEY, CompiledNoise(None, lambda: 0.0))
    tensors = {"a": torch.zeros(2, 3, device="meta"), "b": torch.zeros(0, device="meta")}
    source.add_(tensors, step=4, std=2.0, divisor=3.0, windows={"a": Window(7)})
    assert seen == [(["a"], (Part("a", 6, Window(7)),), {"step": 4, "std": 2.0, "divisor": 3.0})]
