"""The gaps between the records of a Poisson batch, exactly geometric: the work is that of the batch, not of the data.

With inclusion probability q a gap is k with probability q (1 - q)^(k - 1), which is floor(ln u / ln(1 - q)) + 1 of a
uniform number u. A word of the keystream is the first 64 bits of u. Where all numbers that begin with these bits have
the same gap by logarithms in double precision, whatever their rounding, that is the gap. Elsewhere, in about one of
2^45 q gaps, more bits of u are drawn and the logarithms are computed to as many digits as it takes.
"""

from __future__ import annotations

import math
from decimal import Decimal, localcontext

import numpy as np

from noisette._internal.keystream import SecretKey

DENSEST = 1 / 16
"""From this rate on a word for each record takes less time than gaps."""

_MOST_AT_ONCE = 2**17  # words; those of a batch and a few more unless it is larger
# Two logarithms of up to 4 units in the last place and a quotient err by less than this share of the result, and a
# number near one, whose logarithm is near zero, by less than this.
_RELATIVE, _ABSOLUTE = 2.0**-46, 2.0**-51
_DIGITS = 40
_ROUNDING_OF_DIGITS = Decimal("1e-35")


def records_at_gaps(size: int, rate: float, key: SecretKey, *, purpose: str, step: int) -> np.ndarray:
    """Indices, ascending, of records of which each is included independently with probability ``rate``.

    A data set with more records at its end has the same batch of the first ones.

    Args:
        size: number of records.
        rate: in (0, 1/2].
        key: the secret key.
        purpose: of the stream whose word ``i`` decides the ``i``-th gap.
        step: of the stream.

    Guarantee: each record is included with probability exactly ``rate``, independently of all others, if the words of
    the keystream are uniform: no rounding enters.
    Source: Devroye 1986, "Non-Uniform Random Variate Generation", X.2 (geometric by inversion); Knuth & Yao 1976
    (bits drawn until they decide).
    """
    expected = rate * size
    words = np.empty(int(min(_MOST_AT_ONCE, expected + 4 * math.sqrt(expected) + 8)), dtype=np.uint64)
    found, last, drawn = [], -1, 0
    while last < size:
        key.fill(words, purpose=purpose, name="", step=step, start=drawn)
        gaps = _certain_gaps(words, rate, size)
        for place in np.flatnonzero(gaps == 0).tolist():
            gaps[place] = _gap_of_more_bits(int(words[place]), rate, size, key, purpose, step, drawn + place)
        places = np.cumsum(gaps) + last
        found.append(places[: np.searchsorted(places, size)])
        last, drawn = int(places[-1]), drawn + len(words)
    return np.concatenate(found)


def _certain_gaps(words: np.ndarray, rate: float, size: int) -> np.ndarray:
    """The gaps that the words decide, and 0 for the others; a gap beyond the data is ``size + 1``, (n,) int64."""
    middles = (words.astype(np.float64) + 0.5) * 2.0**-64  # of the numbers that begin with a word
    exponents = -np.log(middles)
    reach = exponents * _RELATIVE + _ABSOLUTE + 2.0**-64 / middles
    with np.errstate(over="ignore"):  # at rates near the smallest number, where every gap is beyond the data
        lowest, highest = ((exponents + side) / -np.log1p(-rate) for side in (-reach, reach))
    lowest, highest = (np.floor(np.clip(quotient, -1, size)) for quotient in (lowest, highest))
    return np.where(lowest == highest, lowest + 1, 0).astype(np.int64)


def _gap_of_more_bits(word: int, rate: float, size: int, key: SecretKey, purpose: str, step: int, place: int) -> int:
    """The gap of a number that begins with this word, by as many further words as decide it; at most ``size + 1``."""
    further, bits = np.empty(1, dtype=np.uint64), 64
    while True:
        low = _quotient(word + 1, bits, rate, size, 1 - _ROUNDING_OF_DIGITS)
        high = _quotient(word, bits, rate, size, 1 + _ROUNDING_OF_DIGITS)
        if low == high:
            return low + 1
        key.fill(further, purpose=f"{purpose}, further bits", name=str(bits // 64), step=step, start=place)
        word, bits = word << 64 | int(further[0]), bits + 64


def _quotient(numerator: int, bits: int, rate: float, size: int, rounding: Decimal) -> int:
    """floor(ln u / ln(1 - rate) * rounding) for u = numerator / 2^bits, or ``size`` if that is less."""
    if numerator == 0:
        return size
    with localcontext() as context:
        # u and 1 - rate keep so many digits of what they lack to one, also where that is tiny.
        context.prec = _DIGITS + bits // 3 + max(0, round(-math.log10(rate)))
        of_number = (Decimal(numerator) / Decimal(1 << bits)).ln()
        return min(size, int(of_number / (1 - Decimal(rate)).ln() * rounding))
