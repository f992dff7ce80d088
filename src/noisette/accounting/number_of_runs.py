"""The random number of runs of a search: its distribution, and an exact draw from secret bits."""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass
from decimal import ROUND_CEILING, Context, Decimal, localcontext
from functools import cached_property
from itertools import count
from typing import Protocol

import numpy as np

from noisette.accounting.events import RepeatAndSelect
from noisette.errors import open_fraction


class Keystream(Protocol):
    """Secret random words."""

    def fill(self, words: np.ndarray, *, purpose: str, name: str, step: int, start: int = 0) -> None:
        """Write the words from ``start`` on of this stream's step into an array of 64-bit words."""
        ...


# Decimal digits of a 64-bit word, rounded upwards, and those that the error of a sum of probabilities may take.
_DIGITS_PER_WORD = 20
_ERROR_DIGITS = 20

# Digits of the parameter gamma.
_DIGITS = 60


@dataclass(frozen=True)
class NumberOfRuns:
    """The truncated negative binomial distribution of a search, or the Poisson distribution for an infinite shape.

    With the parameter gamma in (0, 1], P(k) is proportional to (1 - gamma)^k times the product over l < k of
    (shape + l) / (l + 1), for k >= 1. Its mean is shape (1 - gamma) / (gamma (1 - gamma^shape)). The Poisson
    distribution alone has a chance of no run.

    Args:
        mean: expected number of runs, at least 1.
        shape: 0 or more; 0 is the logarithmic distribution, 1 the geometric one.

    Guarantee: the mean of the distribution that is drawn from is at most ``mean``, by less than one part in 1e50, so
    that it costs no more than the event in the ledger.

    Source: Papernot and Steinke 2022, Definition 1.

    >>> [round(NumberOfRuns(mean=4.0, shape=1.0).probability(k), 4) for k in (0, 1, 2)]
    [0.0, 0.25, 0.1875]
    """

    mean: float
    shape: float

    @classmethod
    def of(cls, event: RepeatAndSelect) -> NumberOfRuns:
        """The number of runs of this search."""
        return cls(float(event.mean), float(event.shape))

    def probability(self, number: int) -> float:
        """The probability of exactly so many runs."""
        with localcontext(Context(prec=_DIGITS + self._lost_digits)):
            for k, chance in self._chances():
                if k >= number:
                    return float(chance) if k == number else 0.0
        raise AssertionError("the numbers of runs have no end")

    def quantile(self, share: float) -> int:
        """The least number that is not exceeded with this probability, in (0, 1).

        >>> NumberOfRuns(mean=10.0, shape=1.0).quantile(0.5), NumberOfRuns(mean=10.0, shape=1.0).quantile(0.9)
        (7, 22)
        """
        open_fraction(share=share)
        with localcontext(Context(prec=_DIGITS + self._lost_digits)):
            total = Decimal(0)
            for number, chance in self._chances():
                total += chance
                if total >= Decimal(share):
                    return number
        raise AssertionError("the numbers of runs have no end")

    def draw(self, key: Keystream) -> int:
        """A number drawn from the secret key. The same key gives the same number, so it is used for one search only.

        The keystream is a uniform number of unlimited binary digits. Digits are added until the number, with all
        digits that might follow, lies between two neighbouring sums of probabilities, whatever their rounding errors.
        """
        for doublings in count(1):
            words = np.empty(2**doublings, dtype=np.uint64)
            key.fill(words, purpose="number of runs", name="", step=0)
            numerator = int.from_bytes(words.astype(">u8").tobytes())
            if (number := self._inverse(numerator, bits=64 * len(words))) is not None:
                return number
        raise AssertionError("the digits of the keystream have no end")

    def _inverse(self, numerator: int, *, bits: int) -> int | None:
        """The number of runs at numerator / 2^bits of the distribution; ``None`` where more bits are needed."""
        digits = _DIGITS_PER_WORD * bits // 64
        with localcontext(Context(prec=digits + 2 * _ERROR_DIGITS + self._lost_digits)):
            low, high = (Decimal(end) / 2**bits for end in (numerator, numerator + 1))
            error = Decimal(10) ** -digits
            total = Decimal(0)
            for number, chance in self._chances():
                total += chance
                if high <= total - error:
                    return number
                if low < total + error:
                    return None
        raise AssertionError("the numbers of runs have no end")

    def _chances(self) -> Iterator[tuple[int, Decimal]]:
        """The numbers of runs with their probabilities, in the precision of the context."""
        mean, shape, gamma = Decimal(self.mean), Decimal(self.shape), self._gamma
        if shape.is_infinite():
            chance = (-mean).exp()
            for number in count():
                yield number, chance
                chance *= mean / (number + 1)
        if gamma == 1:
            chance = Decimal(1)
        else:
            chance = (1 - gamma) / -gamma.ln() if shape == 0 else shape * (1 - gamma) / (gamma**-shape - 1)
        for number in count(1):
            yield number, chance
            chance *= (1 - gamma) * (number + shape) / (number + 1)

    @property
    def _lost_digits(self) -> int:
        """How many leading digits gamma^shape shares with 1."""
        return max(0, -Decimal(self.shape).adjusted()) if 0 < self.shape < math.inf else 0

    @cached_property
    def _gamma(self) -> Decimal:
        """The parameter gamma by bisection, rounded upwards, so that the mean is rounded downwards."""
        if math.isinf(self.shape) or self.mean == 1:
            return Decimal(1)
        shape = Decimal(self.shape)
        with localcontext(Context(prec=2 * (_DIGITS + self._lost_digits))):

            def mean(gamma: Decimal) -> Decimal:
                tail = -gamma.ln() if shape == 0 else (1 - gamma**shape) / shape
                return (1 - gamma) / (gamma * tail)

            low, high = Decimal(0), Decimal(1)
            while high - low > high.scaleb(-_DIGITS):
                middle = (low + high) / 2
                low, high = (low, middle) if mean(middle) <= Decimal(self.mean) else (middle, high)
        return Context(prec=_DIGITS, rounding=ROUND_CEILING).plus(high)
