"""Limits that no statistical test can detect have the documented values."""

from fractions import Fraction

import numpy as np
import pytest

from noisette import PrivacyError, RdpAccountant, privatize
from noisette.core.batches import PoissonSampler
from noisette.core.noise import SecretKey
from small_run import NUMBERS, parts


class Coins:
    def __init__(self, words: list[int]) -> None:
        self._words = np.array(words, dtype=np.uint64)

    def fill(self, words: np.ndarray, *, purpose: str, name: str, step: int, start: int = 0) -> None:
        words[:] = self._words[start : start + words.size]


@pytest.mark.parametrize("rate", [1 / 16, 0.1, 0.3, 0.5, 1 - 1e-9])
def test_a_record_is_drawn_where_its_coin_of_64_bits_is_below_the_rate(rate: float) -> None:
    limit = int(Fraction(rate) * 2**64)
    coins = Coins([0, limit - 1, limit, limit + 1, 2**64 - 1])
    sampler = PoissonSampler(size=5, sampling_rate=rate, key=coins)  # pyright: ignore[reportArgumentType]
    assert sampler.indices(step=0).tolist() == [0, 1]


def test_a_small_rate_is_not_rounded_up() -> None:
    sampler = PoissonSampler(size=2_000_000, sampling_rate=1e-6, key=SecretKey())
    assert 250 < sum(len(sampler.indices(step=step)) for step in range(200)) < 600  # 400 on average


def test_a_budget_is_kept_to_its_last_digits() -> None:
    declared = {"sampling_rate": 0.2, "expected_batch_size": 18, "steps": 40, "noise_multiplier": 1.5, "delta": 1e-4}
    accountant = RdpAccountant()
    with privatize(*parts(), NUMBERS, **declared, accountant=accountant) as run:
        price = accountant.compose({run.event: 40}).epsilon(delta=1e-4)
    privatize(*parts(), NUMBERS, **declared, epsilon=price, accountant=accountant).close()
    with pytest.raises(PrivacyError, match="beyond the budget"):
        privatize(*parts(), NUMBERS, **declared, epsilon=price * (1 - 1e-6), accountant=accountant)
