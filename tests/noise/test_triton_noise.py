"""The kernel gives the keystream and the noise of the processor, to the bit.

Triton's interpreter runs it, so that no GPU is needed. It computes with NumPy: that proves the formulas and the places
in memory; what a GPU's arithmetic does is tested on a GPU, in ``tests/gpu``.
"""

import importlib.util
from collections.abc import Iterator, Mapping
from pathlib import Path
from types import ModuleType
from typing import Any

import numpy as np
import pytest
import torch
from cryptography.hazmat.primitives.ciphers import Cipher
from cryptography.hazmat.primitives.ciphers.algorithms import ChaCha20
from torch import Tensor

from noisette.core import noise as plain
from noisette.core.noise import PAIRS, GaussianNoise, Part, PlainPass, SecretKey, Window
from noisette.noise import device as device_noise

triton = pytest.importorskip("triton", reason="triton is not installed; on Linux `.[test]` has it")
tl = pytest.importorskip("triton.language")
pytestmark = pytest.mark.filterwarnings("ignore:overflow:RuntimeWarning")  # of the interpreter: words wrap around
KEY = SecretKey(bytes(range(32)))
CPU = torch.device("cpu")


def loaded(name: str) -> ModuleType:
    """The module of the kernel, loaded once more: whether it is interpreted is settled when it is loaded."""
    spec = importlib.util.spec_from_file_location(name, Path(device_noise.__file__).with_name("triton_noise.py"))
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


@pytest.fixture(scope="module")
def kernel() -> Iterator[ModuleType]:
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("TRITON_INTERPRET", "1")
        yield loaded("interpreted_noise")


def noised(kernel, tensors, windows, *, tiles=16, **numbers) -> dict[str, Tensor]:
    found = {name: tensor.clone() for name, tensor in tensors.items()}
    parts = tuple(Part(name, len(tensor), windows.get(name, Window())) for name, tensor in tensors.items())
    kernel.TritonNoise(KEY, CPU, tiles).add_(found, parts, **numbers)
    return found


def check(kernel: ModuleType, tensors: Mapping[str, Tensor], windows: Mapping[str, Window], **changes: Any) -> None:
    numbers = {"step": 2**40 + 7, "std": 1.3, "divisor": 2.7}
    expected = {name: tensor.clone() for name, tensor in tensors.items()}
    GaussianNoise(KEY).add_(expected, windows=windows, **numbers)
    for name, found in noised(kernel, tensors, windows, **numbers, **changes).items():
        assert torch.equal(found, expected[name])


def sums(**sizes: int) -> dict[str, Tensor]:
    return {name: torch.linspace(-3, 3, size) for name, size in sizes.items()}


def test_values_are_those_of_the_processor(kernel: ModuleType) -> None:
    """All tensors at once, each with its own key and its own window."""
    windows = {"b": Window(1000), "c": Window(5, run=100, stride=1000), "d": Window(4 * 10**10)}
    check(kernel, sums(a=3, b=700, c=250, d=600), windows)


@pytest.mark.parametrize("tiles", [2, 8])
def test_values_do_not_depend_on_the_shape_of_the_launch(kernel: ModuleType, tiles: int) -> None:
    check(kernel, sums(a=1100), {"a": Window(200)}, tiles=tiles)


def test_a_rare_radius(kernel: ModuleType) -> None:
    """Pair 5,399,463 of this stream is rare (``tests/core/test_noise.py``)."""
    key, start = SecretKey(bytes(range(32))), 5_399_463 // 128 * 256
    found, expected = torch.ones(300), torch.ones(300)
    kernel.TritonNoise(key, CPU, 2).add_({"a": found}, (Part("a", 300, Window(start)),), step=3, std=1.0, divisor=3.0)
    GaussianNoise(key).add_({"a": expected}, step=3, divisor=3.0, windows={"a": Window(start)})
    assert torch.equal(found, expected)
    assert float(torch.hypot(*(found[5_399_463 % 128 + at] - 1 / 3 for at in (0, 128)))) > 5.76


@pytest.mark.parametrize("levels", [2, 64])
def test_radii_of_many_levels(levels: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """Where a level follows two zeros in place of 24, many radii take several words, or all that there are."""
    monkeypatch.setenv("TRITON_INTERPRET", "1")
    for name, value in (("RARE_BITS", 2), ("RARE", 2**51), ("LEVELS", levels)):
        monkeypatch.setattr(plain, name, value)
    check(loaded("kernel_of_many_levels"), sums(a=300, b=100), {"a": Window(200), "b": Window(5, run=30, stride=100)})


def test_what_lies_around_a_tensor_stays(kernel: ModuleType) -> None:
    memory = torch.full((1000,), 7.0)
    inner = memory[100:813]
    kernel.TritonNoise(KEY, CPU).add_({"a": inner}, (Part("a", 713, Window(60)),), step=0, std=1.0, divisor=1.0)
    assert bool((memory[:100] == 7).all())
    assert bool((memory[813:] == 7).all())
    assert not bool((inner == 7).any())


def test_keystream(kernel: ModuleType) -> None:
    secret, step = bytes(range(50, 82)), 2**90 + 2**33 + 5

    def words(out, key, nonce, counter, block: tl.constexpr, lanes: tl.constexpr) -> None:
        numbers = [tl.load(key + k).to(tl.uint32, bitcast=True) for k in range(8)]
        counters = (tl.arange(0, lanes) + counter).to(tl.uint32)
        steps = [tl.load(nonce + k).to(tl.uint32, bitcast=True) for k in range(3)]
        for k, word in enumerate(block(numbers, counters, steps)):
            tl.store(out + tl.arange(0, lanes) * 16 + k, word.to(tl.int32, bitcast=True))

    out = torch.zeros(8 * 16, dtype=torch.int32)
    key, nonce = (torch.from_numpy(np.frombuffer(b, np.int32).copy()) for b in (secret, step.to_bytes(12, "little")))
    triton.jit(words)[(1,)](out, key, nonce, 2**31 - 3, kernel._block, 8)
    cipher = ChaCha20(secret, (2**31 - 3).to_bytes(4, "little") + step.to_bytes(12, "little"))
    assert out.numpy().tobytes() == Cipher(cipher, mode=None).encryptor().update(bytes(8 * 64))


def test_words_and_angles_at_the_ends(kernel: ModuleType) -> None:
    """Radii and sines of words that no keystream of a test would hold."""
    mask, lanes = 2**53 - 1, 4 * PAIRS
    special = [0, 1, 2, mask, mask - 1, mask - 2**28, mask - 2**29, 2**52, 2**52 - 1, 2**52 + 1, 2**51 - 2**27, 2**60]
    generator = np.random.default_rng(0)
    random = generator.integers(0, 2**53, lanes - len(special), dtype=np.uint64)
    shifts = generator.integers(0, 53, random.size).astype(np.uint64)
    random = np.where(generator.random(random.size) < 0.5, random >> shifts, np.uint64(mask) - (random >> shifts))
    radii = np.concatenate([np.array(special, dtype=np.uint64), random])
    angles = np.concatenate([np.array([0, 1, -1, -(2**31), 2**31 - 1, 2**30, -(2**30)]), np.arange(lanes - 7) * 7919])

    levels = torch.arange(lanes, dtype=torch.int32) % 65

    def both(
        radius, sine, bits, level, angle, radius_of: tl.constexpr, sine_of: tl.constexpr, lanes: tl.constexpr
    ) -> None:
        at = tl.arange(0, lanes)
        tl.store(radius + at, radius_of(tl.load(bits + at), tl.load(level + at)))
        tl.store(sine + at, sine_of(tl.load(angle + at) | 1))

    bits = torch.from_numpy(radii.view(np.int64) & mask)
    radius, sine = torch.zeros(2, lanes)
    turned = torch.from_numpy(angles.astype(np.int32))
    triton.jit(both)[(1,)](radius, sine, bits, levels, turned, kernel._radius, kernel._sine, lanes)
    passed = PlainPass(torch.float32)
    words = (bits | levels.to(torch.int64) << 53).view(-1, PAIRS)
    assert np.array_equal(radius, passed.radius(words.numpy(), True).flatten())
    assert np.array_equal(sine, passed.sines(turned.view(-1, PAIRS).numpy())[0].flatten())


def test_the_kernel_is_compiled_without_fused_operations(kernel: ModuleType, monkeypatch: pytest.MonkeyPatch) -> None:
    """The interpreter knows no fused operations, so that they are off is looked for in the call."""
    asked: dict[str, Any] = {}

    class Launcher:
        def __getitem__(self, grid: tuple[int]) -> Any:
            return lambda *_, **options: asked.update(options)

    monkeypatch.setattr(kernel, "_noise", Launcher())
    noised(kernel, sums(a=5), {}, step=0, std=1.0, divisor=1.0)
    assert asked["enable_fp_fusion"] is False


def test_it_compiles_for_a_gpu(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """The interpreter takes Python that the compiler refuses. Nothing is fused, and nothing in double precision."""
    monkeypatch.setenv("TRITON_INTERPRET", "0")
    monkeypatch.setenv("TRITON_CACHE_DIR", str(tmp_path))
    numbers = {"step0": "i32", "step1": "i32", "step2": "i32", "std": "fp32", "divisor": "fp32"}
    tables = {"pointers": "*i64", "table": "*i64", "keys": "*i32", "owners": "*i32"}
    constants = {"tiles": 16, "lanes": 128}
    source = triton.compiler.ASTSource(
        fn=loaded("compiled_noise_kernel")._noise,
        signature={**tables, **numbers, **dict.fromkeys(constants, "constexpr")},
        constexprs=constants,
    )
    target = triton.backends.compiler.GPUTarget("cuda", 90, 32)
    text = triton.compile(source, target=target, options={"enable_fp_fusion": False, "num_warps": 4}).asm["ptx"]
    expected = {"fma.": 0, ".f64": 0, "div.rn.f32": 96, "sqrt.rn.f32": 32, "div.full": 0, "sqrt.approx": 0}
    assert {word: text.count(word) for word in expected} == expected
