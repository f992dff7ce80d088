"""The noise is Gaussian with a far tail, independent, and a pure function of key, step, name and element.

Statistical limits are two-sided and met by a right generator in all but one run in a billion.
"""

import math
from collections.abc import Sequence

import mpmath
import numpy as np
import pytest
import torch
from scipy import stats
from torch import Tensor

from noisette.accounting.calibrate import NOISE_TAIL
from noisette.core import noise as noise_module
from noisette.core.noise import TILE, GaussianNoise, SecretKey, Window

KEY = SecretKey(bytes(32))
MASK = 2**53 - 1
LONGEST = math.sqrt(2 * 1589 * math.log(2))
Z = 6.1


def noise(numel, *, name="weight", start=0, step=0, dtype=torch.float64, key=KEY, std=1.0) -> Tensor:
    values = torch.zeros(numel, dtype=dtype)
    GaussianNoise(key).add_({name: values}, step=step, std=std, windows={name: Window(start)})
    return values


def check_gaussian(z: np.ndarray) -> None:
    n = z.size
    assert abs(z.mean()) * math.sqrt(n) <= Z
    assert abs(z.std() - 1) * math.sqrt(2 * n) <= Z
    assert stats.kstest(z, "norm").statistic <= math.sqrt(math.log(2 / 1e-9) / (2 * n))
    cells = np.bincount((64 * stats.norm.cdf(z)).astype(int).clip(0, 63), minlength=64)
    chi = ((cells - n / 64) ** 2 / (n / 64)).sum()
    assert stats.chi2.sf(chi, 63) > 1e-9
    assert stats.chi2.cdf(chi, 63) > 1e-9
    assert stats.binomtest(int((abs(z) > 3).sum()), n, 2 * stats.norm.sf(3)).pvalue > 1e-9


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64], ids=str)
def test_distribution(dtype: torch.dtype) -> None:
    check_gaussian(noise(1_000_000, dtype=dtype, key=SecretKey()).double().numpy())


@pytest.mark.parametrize(
    "mutant", [lambda z: 0.98 * z, lambda z: z + 0.02, lambda z: z.clip(-3, 3), lambda z: np.sign(z) * abs(z) ** 1.05]
)
def test_the_distribution_check_detects_small_faults(mutant) -> None:
    with pytest.raises(AssertionError):
        check_gaussian(mutant(noise(1_000_000).numpy()))


class Words:
    """A source of bits that returns the same word for every radius, zero for every angle, and these for rare radii."""

    def __init__(self, word: int, rare: Sequence[int] = ()) -> None:
        self._word = np.uint64(word)
        self._rare = rare

    def fill(self, words: np.ndarray, *, purpose: str, name: str, step: int, start: int = 0) -> None:
        if purpose != "noise":
            level = step >> 64
            words[:] = np.uint64(self._rare[level - 1] if level <= len(self._rare) else 0)
            return
        place = (start + np.arange(words.size)) % 192  # a tile: 128 radii of 64 bits, then 128 angles of 32 bits
        words[:] = np.where(place < 128, self._word, np.uint64(0))


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64], ids=str)
def test_tail_and_edge(dtype: torch.dtype) -> None:
    """A first word that begins with 24 zeros is followed by others, 64 at most; the longest radius is 46.9."""
    first_rare = float(noise(TILE, dtype=dtype, key=Words(2**29 - 1, [MASK])).abs().max())
    last_common = float(noise(TILE, dtype=dtype, key=Words(2**29)).abs().max())
    assert last_common == pytest.approx(math.sqrt(-2 * math.log((2**29 + 1) * 2.0**-53)), rel=1e-6)
    assert first_rare == pytest.approx(math.sqrt(48 * math.log(2)), rel=1e-6)
    assert float(noise(2 * TILE, dtype=dtype, key=Words(0)).abs().max()) == pytest.approx(LONGEST, rel=1e-6)
    assert LONGEST > 46.9
    nearest = noise(2 * TILE, dtype=dtype, key=Words(2**64 - 1))
    assert not nearest.isnan().any()
    assert float(nearest.abs().max()) <= 2e-8
    between = noise(TILE, dtype=torch.float64, key=Words(2**52 - 1))
    assert float(between.abs().max()) == pytest.approx(math.sqrt(2 * math.log(2)), rel=1e-6)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64], ids=str)
@pytest.mark.parametrize("rare", [[], [2**40], [5, 0, 2**50 + 1], [0] * 40 + [2**29], [0] * 63 + [0], [0] * 63 + [77]])
def test_radii_of_all_levels_are_the_definition(dtype: torch.dtype, rare: list[int]) -> None:
    """With 60 digits: each level has the share 2^-24 of the one before, and all are rounded up to a grid of 53 bits."""
    found = float(noise(1, dtype=dtype, key=Words(2**29 - 1 if rare else 2**29, rare)))
    with mpmath.workdps(60):
        words = [2**29 - 1 if rare else 2**29, *rare]
        u = mpmath.mpf(words[-1] + 1) * mpmath.mpf(2) ** (-53 - 24 * len(rare))
        expected = mpmath.sqrt(-2 * mpmath.log(u)) * mpmath.cos(mpmath.pi * mpmath.mpf(2) ** -31)
        assert abs(found / expected - 1) < (2.5e-7 if dtype == torch.float32 else 5e-16)


def test_how_far_the_noise_is_from_a_gaussian() -> None:
    """The numbers of the argument at the top of the file, with 500 digits."""
    levels, rare = noise_module.LEVELS, noise_module.RARE
    with mpmath.workdps(500):
        two, total = mpmath.mpf(2), mpmath.mpf(0)
        for level in range(levels + 1):
            grid = two ** (-53 - 24 * level)
            low = 0 if level == levels else rare  # below it another level is drawn
            total += (2**53 - low) * grid
            for k in (rare + 1, rare + 2, 2**40, 2**52):  # u is k units, U is between k - 1 and k
                exact, rounded = (mpmath.sqrt(-2 * mpmath.log(n * grid)) for n in (k - 1, k))
                assert (exact - rounded) / exact < 6e-11
        assert total == 1  # each U has one u, as likely as the U that are rounded to it
        for k in (2**52 + 1, 2**52 + 2**51, 2**53 - 1):
            assert -2 * mpmath.log((k - 1) * two**-53) + 2 * mpmath.log(k * two**-53) < two**-51
        assert float(mpmath.sqrt(-2 * mpmath.log(grid))) == pytest.approx(LONGEST)
        coarse, pairs, epsilon = rare * grid, mpmath.mpf(10) ** 40, 900
        assert coarse == two**-1560
        assert (1 + mpmath.exp(epsilon)) * pairs * coarse < NOISE_TAIL / 1e6


def test_the_longest_noise_is_as_rare_as_the_gaussian_has_it(monkeypatch: pytest.MonkeyPatch) -> None:
    """With a level after two zeros in place of 24, many radii take several words; they are Gaussian as before."""
    monkeypatch.setattr(noise_module, "RARE_BITS", 2)
    monkeypatch.setattr(noise_module, "RARE", 2**51)
    levels = noise(300_000, key=SecretKey())
    check_gaussian(levels.numpy())
    assert not torch.equal(noise(300_000), levels)


def test_a_rare_radius_of_a_known_key() -> None:
    """Of the first 17 million pairs of this stream two begin with 24 zeros: number 5,399,463 is one of them."""
    secret, pair = bytes(range(32)), 5_399_463
    tile, place = divmod(pair, 128)
    words = np.empty(128 + 64, dtype=np.uint64)
    SecretKey(secret).fill(words, purpose="noise", name="a", step=3, start=192 * tile)
    assert int(words[place]) & MASK < 2**29
    found = noise(TILE, name="a", step=3, start=tile * TILE, key=SecretKey(secret))
    further = np.empty(1, dtype=np.uint64)
    SecretKey(secret).fill(further, purpose="rare radii", name="a", step=3 + 2**64, start=pair)
    radius = math.hypot(float(found[place]), float(found[128 + place]))
    u = ((int(further[0]) & MASK) + 1) * 2.0**-77
    assert radius == pytest.approx(math.sqrt(-2 * math.log(u)), rel=1e-14)
    assert radius > math.sqrt(48 * math.log(2))


def test_a_step_beyond_64_bits_is_refused() -> None:
    with pytest.raises(ValueError, match="step from 0"):
        noise(1, step=2**64)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64], ids=str)
def test_noise_is_never_exactly_zero_for_large_uniforms(dtype: torch.dtype) -> None:
    """Different uniform numbers near one give different radii; rounded to one they would give no noise."""
    values = noise(TILE, dtype=dtype, key=Words(2**53 - 2**20))
    assert float(values.abs().max()) == pytest.approx(math.sqrt(2 * 2.0**-33), rel=1e-3)


def test_radius_uses_53_bits() -> None:
    """The lowest and the 53rd bit of a word change the radius; higher bits do not."""
    at, lowest, highest, above = (float(noise(1, key=Words(2**30 + more))) for more in (0, 1, 2**52, 2**53))
    assert at != lowest
    assert at != highest
    assert at == above


def autocorrelation_peak(z: np.ndarray) -> float:
    """Largest normalised autocorrelation of a sequence at any lag except zero.

    The longest lags are left out: sums of a few products have tails too heavy for a limit.
    """
    spectrum = np.abs(np.fft.rfft(np.concatenate([z - z.mean(), np.zeros(z.size)]))) ** 2
    lags = np.arange(1, z.size - 10_000)
    return float(np.abs(np.fft.irfft(spectrum)[lags] / np.sqrt(z.size - lags)).max())


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64], ids=str)
def test_no_correlation_at_any_lag(dtype: torch.dtype) -> None:
    z = noise(300_000, dtype=dtype, key=SecretKey()).double().numpy()
    assert autocorrelation_peak(z) <= 7.5
    assert autocorrelation_peak(z**2 - 1) <= 15  # squares have heavier tails


def test_no_value_comes_twice() -> None:
    z = noise(200_000)
    assert z.unique().numel() == z.numel()


def cross_correlation_peak(a: np.ndarray, b: np.ndarray) -> float:
    n = a.size
    product = np.fft.rfft(a, 2 * n) * np.conj(np.fft.rfft(b, 2 * n))
    return float(np.abs(np.fft.irfft(product)).max() / math.sqrt(n))


@pytest.mark.parametrize(
    "other", [{"name": "bias"}, {"step": 1}, {"key": SecretKey(bytes(31) + b"1")}], ids=["parameter", "step", "key"]
)
def test_independent_across(other: dict) -> None:
    assert cross_correlation_peak(noise(100_000).numpy(), noise(100_000, **other).numpy()) <= 7.5
    assert not np.intersect1d(noise(10_000).numpy(), noise(10_000, **other).numpy()).size


def test_pure_function_whole_or_in_parts() -> None:
    whole = noise(3 * 1024 * TILE + 77, dtype=torch.float32)
    parts = (0, 1), (TILE, TILE), (TILE - 1, 2), (700, 2000), (1024 * TILE - 3, 10), (3 * 1024 * TILE, 77)
    for start, numel in parts:
        assert torch.equal(noise(numel, start=start, dtype=torch.float32), whole[start : start + numel])


def shards(whole: Tensor, dim: int, parts: int) -> list[tuple[Tensor, Window]]:
    """The shards of a matrix along one of its dimensions, uneven if it must be, with what of the matrix they hold."""
    columns = whole.shape[1]
    found, first = [], 0
    for shard in whole.tensor_split(parts, dim):
        window = Window(first * columns) if dim == 0 else Window(first, run=shard.shape[1] or 1, stride=columns)
        found.append((shard, window))
        first += shard.shape[dim]
    return found


@pytest.mark.parametrize("shape", [(300, 90), (7, 100_003), (3, 2)], ids=str)
@pytest.mark.parametrize("dim", [0, 1], ids=["rows", "columns"])
@pytest.mark.parametrize("parts", [2, 3])
def test_shards_get_their_part_of_the_whole_noise(shape: tuple[int, int], dim: int, parts: int) -> None:
    for expected, window in shards(noise(math.prod(shape), dtype=torch.float32).view(shape), dim, parts):
        found = torch.zeros(expected.shape)
        GaussianNoise(KEY).add_({"other": torch.zeros(3), "weight": found}, step=0, windows={"weight": window})
        assert torch.equal(found, expected)


def test_each_tensor_has_its_own_window() -> None:
    tensors = {name: torch.zeros(1000) for name in "abc"}
    windows = {"a": Window(300), "c": Window(5, run=10, stride=2000)}
    GaussianNoise(KEY).add_(tensors, step=0, windows=windows)
    of_shard = [5 + 2000 * row + column for row in range(100) for column in range(10)]
    places = {"a": range(300, 1300), "b": range(1000), "c": of_shard}
    for name, tensor in tensors.items():
        assert torch.equal(tensor, noise(200_000, name=name, dtype=torch.float32)[list(places[name])])


@pytest.mark.parametrize(
    "numbers", [{"start": -1}, {"run": 2}, {"stride": 2}, {"run": 3, "stride": 2}, {"run": 0, "stride": 2}], ids=str
)
def test_windows_that_repeat_elements_are_refused(numbers: dict[str, int]) -> None:
    with pytest.raises(ValueError):
        Window(**numbers)


def test_noise_of_a_parameter_does_not_depend_on_the_others() -> None:
    sizes = {"a": 3, "b": 1024 * TILE + 5, "c": TILE, "d": 1, "e": 5000, "f": 0}
    together, back = ({name: torch.zeros(n) for name, n in items} for items in (sizes.items(), reversed(sizes.items())))
    source = GaussianNoise(KEY)
    source.add_(together, step=2)
    source.add_(back, step=2)
    for name, n in sizes.items():
        assert torch.equal(together[name], noise(n, name=name, step=2, dtype=torch.float32))
        assert torch.equal(together[name], back[name])


def test_global_seed_does_not_reach_it() -> None:
    torch.manual_seed(0)
    first = noise(100, key=SecretKey())
    torch.manual_seed(0)
    assert not torch.equal(first, noise(100, key=SecretKey()))
