"""Which records a step sees: Poisson batches from the secret key, processed in microbatches."""

import math
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from decimal import Decimal, localcontext
from typing import Any, Literal, Protocol, Self

import numpy as np
import torch

from noisette.core.noise import SecretKey
from noisette.errors import PrivacyError, count, probability

DENSEST = 1 / 16  # from this rate on a word for each record takes less time than gaps
_MOST_AT_ONCE = 2**17  # words; those of a batch and a few more unless it is larger
# Two logarithms of up to 4 units in the last place and a quotient err by less than this share of the result, and a
# number near one, whose logarithm is near zero, by less than this.
_RELATIVE, _ABSOLUTE = 2.0**-46, 2.0**-51
_DIGITS = 40
_ROUNDING_OF_DIGITS = Decimal("1e-35")


def records_at_gaps(size: int, rate: float, key: SecretKey, *, purpose: str, step: int) -> np.ndarray:
    """Indices, ascending, of records of which each is included independently with probability ``rate``.

    A data set with more records at its end has the same batch of the first ones.

    The rate is in (0, 1/2], and word ``i`` of the stream of this purpose and step decides the ``i``-th gap.

    Guarantee: for uniform words each record is included with probability exactly ``rate``, independently of all others.
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
        quotients = np.array([exponents - reach, exponents + reach]) / -np.log1p(-rate)
    lowest, highest = np.floor(np.minimum(quotients, size, out=quotients), out=quotients)
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


_CHUNK = 2**20  # records whose inclusion is drawn at once


@dataclass(frozen=True)
class PoissonSampler:
    """Includes each of ``size`` records in a step's batch independently with probability ``sampling_rate``.

    Below a rate of 1/16 the gaps between the records of a batch are drawn, in time proportional to the batch.

    Guarantee: inclusion is independent across records and steps, from the secret key's keystream. Its probability is
    the sampling rate: exactly where gaps are drawn, and otherwise at most 2^-64 below it, never above.
    Source: Abadi et al. 2016, algorithm 1 and section 3.1 (lots).

    >>> len(PoissonSampler(size=5, sampling_rate=1.0, key=SecretKey()).indices(step=0))
    5
    """

    size: int
    sampling_rate: float
    key: SecretKey

    def __post_init__(self) -> None:
        probability(sampling_rate=self.sampling_rate)

    def indices(self, *, step: int) -> np.ndarray:
        if self.sampling_rate < DENSEST:
            return records_at_gaps(self.size, self.sampling_rate, self.key, purpose="sampling", step=step)
        width = int(self.sampling_rate * 2**64)
        return drawn_records(self.size, self.key, purpose="sampling", step=step, width=width)


def drawn_records(size: int, key: SecretKey, *, purpose: str, step: int, width: int, low: int = 0) -> np.ndarray:
    """Indices, ascending, of the records whose word of 64 bits is one of the ``width`` words from ``low`` on.

    Each record has a word of its own in the stream of this purpose and step; ``low + width`` is at most 2**64.
    """
    if width == 2**64:
        return np.arange(size)
    first, below = np.uint64(low), np.uint64(width)
    words = np.empty(min(size, _CHUNK), dtype=np.uint64)
    found = []
    for start in range(0, size, _CHUNK):
        drawn = words[: min(_CHUNK, size - start)]
        key.fill(drawn, purpose=purpose, name="", step=step, start=start)
        found.append(np.flatnonzero(drawn - first < below) + start)  # the difference wraps around for smaller words
    return np.concatenate(found) if found else np.arange(0)


class OtherRankRanOut(torch.OutOfMemoryError):
    """Memory ran out on another process, so nothing of this microbatch counts on any."""


@dataclass(frozen=True)
class Records:
    """The records of a data set: how many there are, and how some of them are fetched as one microbatch.

    ``gather`` can be pickled if the data set can. It is all that a loading process gets.
    """

    size: int  # that batches are drawn from
    gather: Callable[[np.ndarray], Any]  # indices of records -> one collated microbatch
    buckets: np.ndarray | None = None  # the bucket of each record, if a microbatch may hold one bucket only
    check_batch: Callable[[np.ndarray], None] | None = None  # refuses records that no batch may have together
    own: range | None = None  # the records that this process holds, where every process holds others
    columns: tuple[torch.Tensor, ...] = ()  # that rows are gathered from

    def held(self, indices: np.ndarray) -> np.ndarray:
        """Those of a batch's records, ascending, that this process holds, as ``gather`` counts them."""
        assert self.own is not None, "processes that hold the same records share them out"
        first, end = np.searchsorted(indices, (self.own.start, self.own.stop))
        return indices[first:end] - self.own.start


class Fetch(Protocol):
    """Hands out the microbatch with these indices, and fetches those that will follow by plan, until it is closed."""

    def __call__(self, part: np.ndarray, plan: Iterator[np.ndarray]) -> Any: ...
    def close(self) -> None: ...


class MicrobatchSize:
    """The largest number of examples in the next microbatch, ``now``: the one that was given, checked to be one."""

    def __init__(self, size: int) -> None:
        if type(size) is not int or size < 1:
            count(size=size)
        self.now = size

    def in_bucket(self, bucket: int) -> Self:
        """The size for examples of this bucket, each bucket by itself: longer examples take more memory."""
        return self

    def begin(self) -> None:
        """A microbatch is about to be processed."""

    def end(self, examples: int) -> None:
        """The microbatch, of so many examples, was added to the sum."""

    def halve(self, examples: int) -> bool:
        """Memory ran out in a microbatch of so many examples; returns whether a smaller size can be tried."""
        return False


@dataclass(repr=False)
class Batch:
    """The examples of one step, possibly none, to be processed in microbatches that fit in memory.

    Where the records have buckets, the examples are in the order of their buckets.
    """

    indices: np.ndarray
    records: Records
    measured: MicrobatchSize  # chooses the sizes of ``microbatches("auto")``
    fetch: Fetch
    begin: Callable[[], None] = lambda: None  # called before records are read
    later: Callable[[], Iterator[Self]] = lambda: iter(())  # the next batches, of steps that are accounted for
    expected: float | None = None  # the declared size of the whole batch, of all ranks
    current: int | None = None  # number of examples in the microbatch that awaits its gradients
    bounded: int = 0  # number of examples whose gradients were added
    size: MicrobatchSize | None = None  # chooses the size of the microbatch under way
    is_blank: bool = False  # the microbatch that awaits its gradients holds no record of this process

    def __post_init__(self) -> None:
        self._buckets: np.ndarray | None = None  # of each example, ascending
        if self.records.buckets is not None:
            found = self.records.buckets[self.indices]
            order = np.argsort(found, kind="stable")
            self.indices, self._buckets = self.indices[order], found[order]

    def __repr__(self) -> str:
        """What was declared: the drawn records and their number are secret, and notebooks are published."""
        return f"<Batch: expected size {'unknown' if self.expected is None else f'{self.expected:g}'}>"

    def microbatches(self, size: int | Literal["auto"]) -> Iterator[Any]:
        """The batch in microbatches of at most ``size`` examples, which only bounds memory: the sum is the same.

        A microbatch has the form in which the data set returns its examples, collated. An empty batch has none. Where
        the records have buckets (:class:`~noisette.PaddedBuckets`), a microbatch holds records of one bucket.

        With ``"auto"`` the size starts at one example and doubles while twice the memory of the last microbatch is
        free; it is kept for the next batches. Where memory runs out in ``run.accumulate``, the same examples come again
        in halves; where it runs out in your own call of the model, catch the error and call ``microbatches("auto")``
        again, which continues with half the size where it stopped.

        Raises:
            TypeError, ValueError: ``size`` is neither a whole number of at least one nor ``"auto"``.
            PrivacyError: some examples would be left out or processed a second time.
        """
        if isinstance(size, str) and size != "auto":
            raise ValueError(f'expected size to be a whole number or "auto", got size={size!r}')
        sizes = self.measured if isinstance(size, str) else MicrobatchSize(size)
        start = 0
        if self.current is not None:  # the loop was left before this microbatch's gradients were added
            start = self.bounded
            self._size_and_end(sizes, start)[0].halve(self.current)
        self.check_bounded(start)
        if self.records.check_batch is not None:
            self.records.check_batch(self.indices)
        self.begin()
        while start < len(self.indices):
            chosen, end = self._size_and_end(sizes, start)
            microbatch = self.fetch(self.indices[start:end], self._planned(sizes, end))
            self.size = chosen
            chosen.begin()
            self.current = end - start
            yield microbatch
            if self.current is None and self.bounded == start:
                continue  # memory ran out: the same examples again, fewer at once
            self.check_bounded(end)
            chosen.end(end - start)
            start = end
        self.current = None

    def _planned(self, sizes: MicrobatchSize, start: int) -> Iterator[np.ndarray]:
        """The microbatches that probably follow, from this place on: those of this batch and of later ones."""
        yield from self._parts(sizes, start)
        for batch in self.later():
            yield from batch._parts(sizes, 0)

    def _parts(self, sizes: MicrobatchSize, start: int) -> Iterator[np.ndarray]:
        while start < len(self.indices):
            _, end = self._size_and_end(sizes, start)
            yield self.indices[start:end]
            start = end

    def _size_and_end(self, sizes: MicrobatchSize, start: int) -> tuple[MicrobatchSize, int]:
        """What chooses the size of the microbatch from ``start`` on, and where it ends: within its bucket."""
        if start == len(self.indices):
            return sizes, start
        if self._buckets is None:
            chosen = sizes.in_bucket(0)
            return chosen, min(start + chosen.now, len(self.indices))
        bucket = self._buckets[start]
        chosen = sizes.in_bucket(int(bucket))
        return chosen, min(start + chosen.now, int(np.searchsorted(self._buckets, bucket, side="right")))

    def retry_smaller(self) -> bool:
        """After memory ran out: yield the same examples again, fewer at once; whether that is possible."""
        if self.current is None or self.size is None or not self.size.halve(self.current):
            return False
        self.current = None
        return True

    def check_bounded(self, expected: int) -> None:
        """Check that the gradients of so many examples of the batch were added until now, each once."""
        if self.bounded != expected:
            raise PrivacyError(
                f"{self.bounded} examples of this batch went through run.accumulate() where {expected} should have: "
                "each belongs to its step once. Call it once for each microbatch, in place of loss.backward(), and "
                "microbatches() once for each batch"
            )
