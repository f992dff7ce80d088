"""Every pass gives the values of the definition up to rounding, and all passes give the same values to the bit.

The definition is computed in double precision by NumPy, with its logarithm, sine and cosine.
"""

import math
from collections.abc import Callable
from itertools import pairwise

import numpy as np
import pytest
import torch
from torch import Tensor

from noisette.capture.captured import schedule_of
from noisette.capture.graph import why_not_compiled
from noisette.core.noise import (
    PAIRS,
    TILE,
    TILES_AT_ONCE,
    GaussianNoise,
    Pass,
    Piece,
    PlainNoise,
    PlainPass,
    SecretKey,
    Source,
    Window,
    Words,
)
from noisette.noise import device as device_noise
from noisette.noise.device import Compiled, CompiledNoise, CompiledPass, example_inputs, is_faithful, noise_of_words

pytestmark = pytest.mark.filterwarnings("ignore::DeprecationWarning")  # of torch itself, while it loads the compiled
KEY = SecretKey(bytes(32))
WHOLE = TILES_AT_ONCE * TILE
RADIUS = math.sqrt(2 * 53 * math.log(2))
MASK = 2**53 - 1
SIZES = {"a": 3, "b": 1, "c": 255, "d": 256, "e": 257, "f": 0, "g": WHOLE + 5, "h": 40 * TILE, "i": 3 * WHOLE + 77}


@pytest.fixture(scope="session")
def compiled() -> dict[torch.dtype, Compiled]:
    if (reason := why_not_compiled()) is not None:
        pytest.skip(reason)
    source = CompiledNoise(schedule_of("compiled"), lambda: 1.0)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(device_noise, "square_root", Tensor.sqrt)
        found = {dtype: source.compiled(dtype, WHOLE) for dtype in (torch.float32, torch.float64)}
    return {dtype: function for dtype, function in found.items() if function is not None}


@pytest.fixture(params=[torch.float32, torch.float64], ids=str)
def dtype(request: pytest.FixtureRequest) -> torch.dtype:
    return request.param


COMPILED = pytest.param("compiled", marks=pytest.mark.slow)


@pytest.fixture(params=["eager", "graph", COMPILED])
def one_pass(request: pytest.FixtureRequest, dtype: torch.dtype) -> Pass:
    if request.param == "eager":
        return PlainPass(dtype)
    function = noise_of_words if request.param == "graph" else request.getfixturevalue("compiled")[dtype]
    return CompiledPass(function, dtype)


@pytest.fixture(params=["graph", COMPILED])
def function(request: pytest.FixtureRequest, dtype: torch.dtype) -> Compiled:
    return noise_of_words if request.param == "graph" else request.getfixturevalue("compiled")[dtype]


@pytest.fixture(autouse=True)
def _right_roots(monkeypatch: pytest.MonkeyPatch) -> None:
    """The graph, run on a processor without a compiler, is right but for its roots."""
    monkeypatch.setattr(device_noise, "square_root", lambda squared: torch.from_numpy(np.sqrt(squared.numpy())))


def known_words() -> Words:
    words = Words()
    words.fill(KEY, [Piece("a", 0, WHOLE, 0, TILES_AT_ONCE, 0, 0)], step=0)
    return words


def with_levels(words: Words) -> Words:
    words.radii[::7] |= (np.arange(PAIRS) % 65)[None, :] << 53
    words.has_rare = True
    return words


def definition(words: Words) -> np.ndarray:
    """The noise of these words in double precision, shape (tiles, 256)."""
    radii = words.radii.copy()
    # The complement is exact, so u near one keeps all its digits.
    from_one = (MASK - (radii & MASK)).astype(np.float64) * 2.0**-53
    radius = np.sqrt(-2 * np.log1p(-from_one) + 48 * math.log(2) * (radii >> 53))
    angle = (words.angles | 1) * (math.pi / 2**31)
    return np.concatenate([radius * np.cos(angle), radius * np.sin(angle)], axis=1)


def run(one_pass: Pass, words: Words, std: float = 1.0) -> np.ndarray:
    return one_pass(words, TILES_AT_ONCE, std).reshape(TILES_AT_ONCE, TILE).astype(np.float64)


@pytest.mark.parametrize("levels", [False, True])
@pytest.mark.parametrize("std", [0.37, 1e-20])
def test_a_pass_gives_the_definition(one_pass: Pass, dtype: torch.dtype, std: float, levels: bool) -> None:
    words = with_levels(known_words()) if levels else known_words()
    noise, found = definition(words), run(one_pass, words, std)
    np.testing.assert_allclose(found / std, noise, rtol=0, atol=(140 if levels else 25) * torch.finfo(dtype).eps)


@pytest.mark.parametrize(
    ("word", "radius", "angle"),
    [
        (0, RADIUS, 0),
        (MASK, 0.0, 2**30),
        (2**52 - 1, math.sqrt(2 * math.log(2)), 2**32 - 1),
        (2**53 - 2**20, math.sqrt(-2 * math.log1p(-(2**20 - 1) * 2.0**-53)), 2**31),
        (1 << 53, math.sqrt(2 * 77 * math.log(2)), 2**30),
        (64 << 53, math.sqrt(2 * 1589 * math.log(2)), 2**32 - 1),
    ],
)
def test_words_at_the_ends(one_pass: Pass, dtype: torch.dtype, word: int, radius: float, angle: int) -> None:
    words = Words()
    words.has_rare = True
    words.radii[:], words.angles[:] = word, angle - (angle >> 31 << 32)
    found = run(one_pass, words)
    turn, close = (angle | 1) / 2**31 * math.pi, 25 * torch.finfo(dtype).eps
    assert np.isfinite(found).all()
    np.testing.assert_allclose(found[:, :128], radius * math.cos(turn), rtol=close, atol=close * radius)
    np.testing.assert_allclose(found[:, 128:], radius * math.sin(turn), rtol=close, atol=close * radius)
    assert found.any() == (radius > 0)


@pytest.mark.parametrize("shifted", ["nothing", "u", "1 - u"])
def test_radii_are_right_to_the_last_digits(shifted: str, dtype: torch.dtype) -> None:
    """Relative to themselves: for u near one and near zero too, where they are small and large."""
    words = known_words().radii.copy().view(np.uint64)
    shifts = (np.arange(words.size).reshape(words.shape) % 53).astype(np.uint64)
    if shifted != "nothing":
        words = words >> shifts
    if shifted == "1 - u":
        words = np.uint64(2**53 - 1) - words
    # In extended precision.
    u = (words + np.uint64(1)).astype(np.longdouble) / 2**53
    from_one = (np.uint64(2**53 - 1) - words).astype(np.longdouble) / 2**53
    expected = np.sqrt(np.where(u < 0.5, -2 * np.log(u), -2 * np.log1p(-from_one)))
    found = np.concatenate([PlainPass(dtype).radius(rows, False) for rows in np.split(words.view(np.int64), 8)])
    assert ((found == 0) == (from_one == 0)).all()
    is_there = from_one > 0
    error = abs(found.astype(np.longdouble)[is_there] / expected[is_there] - 1)
    assert float(error.max()) <= (2e-7 if dtype == torch.float32 else 4e-16)


@pytest.mark.parametrize("around", [0, 2**30, 2**31 - 1, -(2**30), 12345678])
def test_sines_are_right_to_the_last_digits(around: int, dtype: torch.dtype) -> None:
    """Relative to themselves, and never zero."""
    angles = (np.arange(-(2**15), 2**15) + around).astype(np.int32).reshape(-1, PAIRS)
    found = np.concatenate([PlainPass(dtype).sines(rows) for rows in np.split(angles, 8)], axis=1)
    odd = angles | 1
    for half, turned in zip(found, (odd, odd - np.int32(2**30)), strict=True):
        from_quarter = (2**30 - abs(turned.astype(np.int64))).astype(np.longdouble) / 2**30
        expected = np.sin(np.longdouble("1.57079632679489661923132169163975144") * from_quarter)
        assert (half != 0).all()
        error = abs(half.astype(np.longdouble) / expected - 1)
        assert float(error.max()) <= (2.5e-7 if dtype == torch.float32 else 5e-16)


def test_any_split_gives_the_same_bits(function: Compiled, dtype: torch.dtype) -> None:
    """Parts of any size, also those that take code for few tiles, and shards of columns."""
    cuts = [0, 1, 700, 90_000, WHOLE + 3, 2 * WHOLE + 5000]
    whole = noised({"a": torch.ones(cuts[-1], dtype=dtype)}, function)["a"]
    for kind in (None, function):
        for start, end in pairwise(cuts):
            part = noised({"a": torch.ones(end - start, dtype=dtype)}, kind, start=start)["a"]
            assert torch.equal(part, whole[start:end])
        shard = {"a": torch.ones(250, 300, dtype=dtype)}
        GaussianNoise(KEY, source_of(kind)).add_(
            shard, step=3, std=0.8, divisor=40.0, windows={"a": Window(200, 300, 1000)}
        )
        assert torch.equal(shard["a"], whole[: 250 * 1000].view(250, 1000)[:, 200:500])


def source_of(function: Compiled | None) -> Source | None:
    return None if function is None else lambda key, dtype, *_: PlainNoise(key, dtype, CompiledPass(function, dtype))


def noised(tensors, function, *, start=0) -> dict[str, Tensor]:
    result = {name: tensor.clone() for name, tensor in tensors.items()}
    windows = {name: Window(start) for name in tensors}
    GaussianNoise(KEY, source_of(function)).add_(result, step=3, std=0.8, divisor=40.0, windows=windows)
    return result


def check_equal_to_plain(tensors: dict[str, Tensor], function: Compiled, **numbers: int) -> None:
    eager, other = (noised(tensors, kind, **numbers) for kind in (None, function))
    for name, tensor in tensors.items():
        assert torch.equal(other[name], eager[name])
        assert not tensor.numel() or not torch.equal(tensor, other[name])


@pytest.mark.parametrize("start", [0, 1000])
def test_tensors_of_many_sizes_get_the_noise_of_the_plain_pass(function, dtype, start) -> None:
    tensors = {name: torch.linspace(-9, 9, n, dtype=dtype) for name, n in SIZES.items()}
    check_equal_to_plain(tensors, function, start=start)


Fault = Callable[[Tensor, Tensor, Tensor], tuple[Tensor, Tensor, Tensor]]
FAULTS: dict[str, Fault] = {  # radii, angles, deviation
    "without noise": lambda k, a, std: (k, a, 0 * std),
    "one noise for all tiles": lambda k, a, std: (k[:1].expand_as(k), a, std),
    "half the angles": lambda k, a, std: (k, a & -(2**16) & 0x7FFFFFFF, std),
    "cut radius": lambda k, a, std: (k | 2**24, a, std),
    "without levels": lambda k, a, std: (k & MASK, a, std),
    # By a logarithm in single precision, whatever is closer to one than 2^-24 counts as one.
    "coarse near one": lambda k, a, std: (torch.where(k & MASK >= 2**53 - 2**28, k | MASK, k), a, std),
}


@pytest.mark.parametrize("name", FAULTS)
def test_faulty_noise_is_not_used(name: str, dtype: torch.dtype, monkeypatch: pytest.MonkeyPatch) -> None:
    def faulty(*inputs: Tensor) -> None:
        noise_of_words(*FAULTS[name](*inputs[:3]), *inputs[3:])

    assert not is_faithful(faulty, dtype)
    source = CompiledNoise(schedule_of("compiled"), lambda: 1.0)
    monkeypatch.setattr(source, "compiled", lambda *_: faulty)
    tensor = torch.zeros(100 * TILE, dtype=dtype)
    with pytest.warns(UserWarning, match="compiled noise differs"):
        GaussianNoise(KEY, source).add_({"a": tensor}, step=3, std=0.8)
    assert torch.equal(tensor, noised({"a": torch.zeros(100 * TILE, dtype=dtype)}, None)["a"])
    assert source(KEY, dtype, torch.device("cpu"), 10**9) is None


def test_the_inputs_of_every_model_have_the_same_shapes() -> None:
    shapes = [
        [(tuple(t.shape), t.stride(), t.dtype) for t in example_inputs(torch.float32, n)]
        for n in device_noise.COMPILED_TILES
    ]
    seen = []

    def function(*inputs: Tensor) -> None:
        seen.append([(tuple(t.shape), t.stride(), t.dtype) for t in inputs])
        noise_of_words(*inputs)

    noised({name: torch.zeros(n) for name, n in SIZES.items()}, function)
    assert {*map(tuple, seen)} == {*map(tuple, shapes)}
    assert len(seen) > 4
