"""Gaps between records: exactly geometric, decided by as many bits as it takes, and the same however they are drawn."""

import math

import mpmath
import numpy as np
import pytest
from scipy import stats

from noisette.core import batches as gaps
from noisette.core.batches import DENSEST, PoissonSampler, records_at_gaps
from noisette.core.noise import SecretKey

BELOW = math.nextafter(DENSEST, 0)


class Words:
    """A source of bits that gives these words first and then the middle one, and these as further bits."""

    def __init__(self, words: list[int], further: int = 2**63) -> None:
        self.words = words
        self.further = further
        self.asked: list[tuple[str, int]] = []  # for further bits

    def fill(self, words: np.ndarray, *, purpose: str, name: str, step: int, start: int = 0) -> None:
        if purpose.endswith("further bits"):
            self.asked.append((name, start))
            words[:] = self.further
            return
        known = self.words[start : start + words.size]
        words[:] = np.array(known + [2**63] * (words.size - len(known)), dtype=np.uint64)


def drawn(words: list[int], rate: float, size: int, further: int = 2**63) -> tuple[list[int], Words]:
    source = Words(words, further)
    found = records_at_gaps(size, rate, source, purpose="sampling", step=0)  # pyright: ignore[reportArgumentType]
    return found.tolist(), source


def first_gap(word: int, rate: float, further: int = 2**63) -> tuple[int, Words]:
    found, source = drawn([word], rate, math.ceil(150 / rate), further)
    return found[0] + 1, source


def gap_of(numerator: int, bits: int, rate: float) -> int:
    with mpmath.workdps(300):
        number = mpmath.mpf(numerator) / mpmath.mpf(2) ** bits
        return int(mpmath.floor(mpmath.log(number) / mpmath.log(1 - mpmath.mpf(rate)))) + 1


EXTREME = [1, 2, 3, 2**32, 2**53 - 1, 2**53, 2**63 - 1, 2**63, 2**64 - 2**12, 2**64 - 2**10, 2**64 - 3, 2**64 - 1]


@pytest.mark.parametrize("rate", [BELOW, 0.05, 1e-3, 4e-6, 1e-8, 1e-12, 1e-14])
def test_the_gap_is_that_of_the_formula(rate: float) -> None:
    """Of extreme and of random words; further bits begin with a one, so the number is at the middle of the word's."""
    random = [int(word) for word in np.random.default_rng(0).integers(0, 2**64, size=200, dtype=np.uint64)]
    for word in [*EXTREME, *random[: 200 if rate > 1e-10 else 10]]:  # at small rates each word needs further bits
        assert first_gap(word, rate)[0] == gap_of(2 * word + 1, 65, rate), word


@pytest.mark.parametrize("rate", [BELOW, 0.01, 1e-4, 1e-7])
def test_words_at_a_threshold_are_decided_by_further_bits(rate: float) -> None:
    """A gap exceeds k where u is at most (1 - q)^k: the word of that number is cut there by more bits, exactly."""
    for k in (5, 7, round(1 / rate), round(5 / rate)):
        with mpmath.workdps(80):
            threshold = mpmath.mpf(2) ** 128 * (1 - mpmath.mpf(rate)) ** k
            word, rest = divmod(int(mpmath.floor(threshold)), 2**64)
        for further, expected in ((rest - 1, k + 1), (rest + 1, k)):
            found, source = first_gap(word, rate, further)
            assert (found, source.asked[:1]) == (expected, [("1", 0)])
        for other, expected in ((word - 1, k + 1), (word + 1, k)):
            assert first_gap(other, rate)[0] == expected


def test_the_smallest_word_has_no_largest_gap() -> None:
    for further in (2**63, 2**20, 1):
        assert first_gap(0, 0.05, further)[0] == gap_of((further << 64 | further) * 2 + 1, 193, 0.05)


def counts(sampler: PoissonSampler, steps: int) -> tuple[np.ndarray, np.ndarray]:
    single, pairs = np.zeros(sampler.size), np.zeros(sampler.size - 1)
    for step in range(steps):
        here = np.zeros(sampler.size)
        here[sampler.indices(step=step)] = 1
        single += here
        pairs += here[1:] * here[:-1]
    return single, pairs


@pytest.mark.parametrize("rate", [BELOW, 0.01])
def test_every_record_and_every_pair(rate: float) -> None:
    """Records by exact binomial tests with the first and the last by name, all together, and neighbours together."""
    size, steps = 60, 20_000
    single, pairs = counts(PoissonSampler(size, rate, SecretKey()), steps)
    for record in (0, 1, size - 1):
        assert stats.binomtest(int(single[record]), steps, rate).pvalue > 1e-7
    chi = ((single - steps * rate) ** 2).sum() / (steps * rate * (1 - rate))
    assert 1e-7 < stats.chi2.cdf(chi, size) < 1 - 1e-7
    assert stats.binomtest(int(pairs.sum()), steps * (size - 1), rate**2).pvalue > 1e-7


def test_how_many_words_are_drawn_at_once_does_not_matter(monkeypatch: pytest.MonkeyPatch) -> None:
    key = SecretKey(bytes(32))
    whole = PoissonSampler(100_000, 0.03, key).indices(step=5)
    assert (np.diff(whole) > 0).all()
    for at_once in (1, 7, 64):
        monkeypatch.setattr(gaps, "_MOST_AT_ONCE", at_once)
        np.testing.assert_array_equal(PoissonSampler(100_000, 0.03, key).indices(step=5), whole)
    for size in (0, 1, 31, 77_777):
        np.testing.assert_array_equal(PoissonSampler(size, 0.03, key).indices(step=5), whole[whole < size])


def test_further_bits_of_a_gap_are_its_own() -> None:
    """Words that need further bits ask for those of their own place in the stream, in whatever chunk they are."""
    rate = 1e-4
    with mpmath.workdps(60):
        word = int(mpmath.floor(mpmath.mpf(2) ** 64 * (1 - mpmath.mpf(rate)) ** 3))
    _, source = drawn([2**63, word, 2**62, word], rate, 100_000)
    assert source.asked == [("1", 1), ("1", 3)]


def test_sizes_and_places_at_small_rates() -> None:
    rate, size, key = 1e-9, 3 * 10**9, SecretKey()
    batches = [records_at_gaps(size, rate, key, purpose="sampling", step=step) for step in range(3000)]
    found = np.bincount([len(batch) for batch in batches], minlength=10)[:10]
    assert stats.chisquare(found, stats.poisson.pmf(np.arange(10), 3) * 3000, sum_check=False).pvalue > 1e-7
    assert stats.kstest(np.concatenate(batches) / size, "uniform").pvalue > 1e-7
    # The first record of a batch, given that there is one; -expm1 of multiples of log1p keeps all digits.
    first = np.array([batch[0] + 1 for batch in batches if len(batch)])
    beyond = np.log1p(-rate)
    assert stats.kstest(np.expm1(first * beyond) / np.expm1(size * beyond), "uniform").pvalue > 1e-7
