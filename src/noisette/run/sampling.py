"""How the batches of a run are drawn: declared schemes, what a step of each releases, and its sampler."""

import math
import os
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from numbers import Number
from typing import Any, TypeAlias

import numpy as np
from torch import Tensor

from noisette.accounting import events
from noisette.accounting.events import Parts, PoissonGaussian, StepRelease, UserLevel
from noisette.core.batches import PoissonSampler, Records, drawn_records
from noisette.core.noise import SecretKey
from noisette.core.steps import Sampler
from noisette.errors import PrivacyError, all_of, count, first_few
from noisette.run.loading import each_record

__all__ = ["BallsInBins", "CyclicPoisson", "Poisson", "TruncatedPoisson", "Users"]


@dataclass(frozen=True)
class BallsInBinsSampler:
    """In each pass, every record chooses one of ``bins`` batches, uniformly and independently of all others.

    The first pass begins with ``first_step``: a resumed run begins a new pass.

    Guarantee: a choice is independent across records and passes, from 64 bits of the secret key's keystream each.
    Source: Chua et al. 2024, "Balls-and-Bins Sampling for DP-SGD".
    """

    size: int
    bins: int
    key: SecretKey
    first_step: int = 0

    def indices(self, *, step: int) -> np.ndarray:
        passed, own = divmod(step - self.first_step, self.bins)
        start, end = (place * 2**64 // self.bins for place in (own, own + 1))
        # A record has one word in each pass; the words of a pass are in the stream of the pass's number.
        return drawn_records(self.size, self.key, purpose="bins", step=passed, low=start, width=end - start)


@dataclass(frozen=True)
class TruncatedPoissonSampler(PoissonSampler):
    """Draws a Poisson batch; of one with more than ``largest_batch`` records, a random subset of that size.

    Guarantee: given the records of the Poisson batch, every subset of that size is equally likely, up to the
    probability of equal words among 64-bit words of the secret key's keystream, of which each record has one.
    """

    largest_batch: int
    most_records: int

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.size > self.most_records:
            raise PrivacyError(
                f"the data set has {self.size} records, but truncated batches are paid for at most "
                f"most_records={self.most_records}: how often a batch is cut depends on it. Declare a larger number"
            )

    def indices(self, *, step: int) -> np.ndarray:
        drawn = super().indices(step=step)
        if len(drawn) <= self.largest_batch:
            return drawn
        words = np.empty(len(drawn), dtype=np.uint64)
        self.key.fill(words, purpose="truncation", name="", step=step)
        return np.sort(drawn[np.argpartition(words, self.largest_batch)[: self.largest_batch]])


@dataclass(frozen=True)
class CyclicPoissonSampler(PoissonSampler):
    """Step t draws a Poisson batch of the records of group t modulo ``bands``, counted from the first step.

    Each record's group is drawn once, uniformly and independently of all others. A resumed run draws new groups.

    Guarantee: a record is in at most one of ``bands`` consecutive batches.
    Source: as :class:`CyclicPoisson`, algorithm 2; groups of equal sizes would depend on the number of records.
    """

    bands: int
    first_step: int = 0

    @cached_property
    def _groups(self) -> np.ndarray:
        """The group of each record: the interval in which its word of 64 bits lies."""
        ends = [end * 2**64 // self.bands for end in range(1, self.bands)]  # the first word of the next group
        found = np.empty(self.size, dtype=np.min_scalar_type(self.bands - 1))
        for start in range(0, self.size, 2**20):
            words = np.empty(min(2**20, self.size - start), dtype=np.uint64)
            self.key.fill(words, purpose="groups", name="", step=0, start=start)
            found[start : start + len(words)] = np.searchsorted(np.array(ends, dtype=np.uint64), words, side="right")
        return found

    def indices(self, *, step: int) -> np.ndarray:
        # Drawn among all records and then sorted out, so that each record's draws are its own.
        drawn = super().indices(step=step)
        return drawn[self._groups[drawn] == (step - self.first_step) % self.bands]


# Types that are compared by value; the elements of other ids are looked at one by one.
_PLAIN = {int, str, bytes, float, bool}


@dataclass(frozen=True, eq=False)
class Users:
    """Whose record each record is, for a guarantee that covers all records of a user.

    Args:
        ids: the user of each record, in the order of the data set: a list, an array, a tensor or a column of a table;
            or a function from a record, as the data set returns it, to its user. Ids are compared by value.
        most_records: the most records of one user that are used. Which of them is drawn by the secret key, and anew
            when a run is resumed.
        public_users: declared number of users, where it is public. Batches may then sample users instead of records.

    Guarantee: none by itself; that of the run is for adding or removing all records of one user.

    Raises:
        TypeError, ValueError: a number is not a whole number of at least 1.
    """

    ids: Sequence[Any] | np.ndarray | Tensor | Callable[[Any], Any]
    most_records: int
    public_users: int | None = None

    def __post_init__(self) -> None:
        all_of(
            lambda: count(most_records=self.most_records),
            lambda: self.public_users is None or count(public_users=self.public_users),
        )

    def __repr__(self) -> str:
        declared = "" if self.public_users is None else f", public_users={self.public_users}"
        return f"Users(most_records={self.most_records}{declared})"

    def numbers(self, dataset: Any, size: int) -> np.ndarray:
        """The users of all records as numbers from 0 on, in the order of their first records, int64, (size,)."""
        ids = _listed(map(self.ids, each_record(dataset)) if callable(self.ids) else self.ids)
        if len(ids) != size:
            raise ValueError(f"users has {len(ids)} ids for {size} records; give one for each record, in their order")
        if isinstance(ids, np.ndarray):
            return _numbered(ids)
        if not set(map(type, ids)) <= _PLAIN:
            ids = [_by_value(index, value) for index, value in enumerate(ids)]
        numbers = {value: number for number, value in enumerate(dict.fromkeys(ids))}
        found = np.fromiter(map(numbers.__getitem__, ids), dtype=np.int64, count=size)
        _refuse_without_id(np.isin(found, [number for value, number in numbers.items() if _is_missing(value)]))
        if len(kinds := {_kind(of) for of in set(map(type, ids))}) > 1:
            mixed = " and ".join(sorted(kinds))
            raise ValueError(f"ids are {mixed}: 1 and '1' would count as two users; give ids of one kind")
        return found


class UserRecords:
    """The records by their users (numbers from 0 on), of whom each keeps ``most_records`` at most, drawn by the key."""

    def __init__(self, users: np.ndarray, most_records: int, key: SecretKey) -> None:
        self.users = users
        words = np.empty(len(users), dtype=np.uint64)
        key.fill(words, purpose="kept records", name="", step=0)
        # The records of each user together, in an order that whoever orders the data set cannot steer: by words that
        # begin with the user. ``np.lexsort`` takes twice as long.
        bits = int(users.max(initial=0)).bit_length()
        words >>= np.uint64(bits)
        words |= users.view(np.uint64) << np.uint64(64 - bits)
        by_user = np.argsort(words)
        del words
        counts = np.bincount(users)
        place = np.arange(len(users), dtype=np.min_scalar_type(-len(users)))  # of a record among its user's
        place -= np.repeat((np.cumsum(counts) - counts).astype(place.dtype), counts)
        self.by_user = by_user = by_user[place < most_records]  # the kept records, those of one user together
        self.counts = np.minimum(counts, most_records)  # of each user
        self.first = np.cumsum(self.counts) - self.counts  # where those of each user begin in ``by_user``
        self.kept = np.zeros(len(users), dtype=bool)
        self.kept[self.by_user] = True
        self.in_order = np.flatnonzero(self.kept)  # the kept records in the order of the data set

    def of(self, records: Records, most_in_batch: int) -> Records:
        """The records, of which a batch may have kept ones alone, and of one user at most ``most_in_batch``."""
        first = 0 if records.own is None else records.own.start

        def check_batch(held: np.ndarray) -> None:
            at = held + first
            most = int(np.unique(self.users[at], return_counts=True)[1].max(initial=0))
            if not self.kept[at].all() or most > most_in_batch:
                raise PrivacyError(
                    f"the batch is not one that the run has drawn: it may have at most {most_in_batch} of the kept "
                    "records of each user. Take the batches of run.batches() as they are"
                )

        return replace(records, check_batch=check_batch)


@dataclass(frozen=True)
class KeptRecordsSampler:
    """Includes each kept record in a step's batch independently with probability ``sampling_rate``."""

    records: UserRecords
    sampling_rate: float
    key: SecretKey

    def indices(self, *, step: int) -> np.ndarray:
        kept = self.records.in_order
        return kept[PoissonSampler(len(kept), self.sampling_rate, self.key).indices(step=step)]


class UserSampler(KeptRecordsSampler):
    """Includes each user in a step's batch independently with probability ``sampling_rate``, with one kept record."""

    def indices(self, *, step: int) -> np.ndarray:
        counts = self.records.counts
        users = PoissonSampler(len(counts), self.sampling_rate, self.key).indices(step=step)
        words = np.empty(len(users), dtype=np.uint64)
        self.key.fill(words, purpose="record of a user", name="", step=step)
        # The remainder is uniform but for one part in 2^64 / count; no guarantee depends on which record it is.
        chosen = self.records.first[users] + (words % counts[users].astype(np.uint64)).astype(np.int64)
        return np.sort(self.records.by_user[chosen])


def _numbered(ids: np.ndarray) -> np.ndarray:
    """The number of each id, in the order in which they first appear: of 1e8 ids in less than a minute and 4 GiB."""
    digits, bits = ids[:, None].view(f"u{math.gcd(ids.itemsize, 8)}"), len(ids).bit_length()
    left = np.arange(len(ids), dtype=np.min_scalar_type(len(ids)))
    first, table = left.copy(), np.empty(2**bits, dtype=left.dtype)  # the first record of each one's user, of each slot
    while len(left):
        # Each time the users who come first in a slot are found. The others, also those of forged ids, are few in any
        # slot, as the factors are random and odd: multiply-shift hashing, Dietzfelbinger et al. 1997.
        factors, others = np.frombuffer(os.urandom(8 * digits.shape[1]), dtype=np.uint64) | 1, []
        table.fill(len(ids))
        for block in np.array_split(left, 1 + len(left) // 2**16):  # in order, so that no later one comes before
            slots = (digits[block] @ factors >> np.uint64(64 - bits)).astype(np.intp)
            np.minimum.at(table, slots, block)
            first[block] = table[slots]
            others.append(block[ids[first[block]] != ids[block]])
        left = np.concatenate(others)
    is_first = first == np.arange(len(ids))
    numbers = (np.cumsum(is_first, dtype=first.dtype) - 1)[first].astype(np.int64)
    if ids.dtype.kind in "US" and (blank := np.char.strip(ids[is_first]) == ids.dtype.type()).any():
        _refuse_without_id(blank[numbers])
    return numbers


def _listed(ids: Any) -> list[Any] | np.ndarray:
    """The ids: an array of whole numbers or texts as it is, others as a list of Python values where they have such."""
    if isinstance(ids, Tensor):
        ids = ids.detach().cpu().numpy()
    elif hasattr(ids, "to_numpy"):  # a column of a table
        ids = ids.to_numpy()
    if isinstance(ids, str | bytes) or not isinstance(ids, Iterable) or isinstance(ids, dict | set | frozenset):
        raise TypeError(f"expected users as one id for each record, in their order, got a {type(ids).__name__}")
    if not isinstance(ids, np.ndarray):
        return list(ids)
    if ids.ndim != 1:
        raise TypeError(f"expected users as one id for each record, got an array of shape {ids.shape}")
    _refuse_without_id(np.ma.getmaskarray(ids))
    if ids.dtype.kind in "iuUS":
        return np.ascontiguousarray(ids)
    # A time in nanoseconds becomes a number by ``tolist``, also one that is missing.
    return list(ids) if ids.dtype.kind in "mM" else ids.tolist()


def _by_value(index: int, value: Any) -> Any:
    """The id of a record as a value that is equal for equal users."""
    if isinstance(value, Tensor | np.ndarray) and value.ndim == 0:
        value = value.item()
    if isinstance(value, tuple):
        return tuple(_by_value(index, part) for part in value)
    if value is not None and type(value).__hash__ in (None, object.__hash__, Tensor.__hash__):
        raise TypeError(
            f"the user of record {index} is a {type(value).__name__}, which is not compared by value, so records of "
            "one user would count as those of several; give numbers, texts or tuples of them"
        )
    return value


def _is_missing(value: Any) -> bool:
    """Whether an id stands for none: ``None``, a blank text, or a value like NaN that does not equal itself."""
    if isinstance(value, tuple):
        return any(map(_is_missing, value))
    if isinstance(value, str | bytes):
        return not value.strip()
    return value is None or type(value).__name__ == "NAType" or bool(value != value)


def _kind(of: type) -> str:
    """What ids of a type are called; those of different kinds never equal each other, whatever they look like."""
    kinds = {str: "texts", bytes: "bytes", Number: "numbers"}
    return next((name for kind, name in kinds.items() if issubclass(of, kind)), "other values")


def _refuse_without_id(missing: np.ndarray) -> None:
    if len(rows := np.flatnonzero(missing)):
        raise ValueError(
            f"{len(rows)} records have no user (index {first_few([str(row) for row in rows.tolist()])}); together they "
            "would count as one user. Leave them out, or give each an id of its own if each is of another user"
        )


ReleaseOf: TypeAlias = Callable[[float], StepRelease]  # of one step, given the noise multiplier


@dataclass(frozen=True)
class Poisson:
    """Each record enters each batch independently; batches differ in size, and the cost is the lowest known."""

    def release(self, sampling_rate: float, public_size: int | None, parts: Parts) -> ReleaseOf:
        return lambda noise: PoissonGaussian(sampling_rate, noise, parts)


@dataclass(frozen=True)
class TruncatedPoisson:
    """Poisson batches of at most a fixed size: a larger one is replaced by a random subset.

    Args:
        largest_batch: the most records of a batch. Five standard deviations above the expected batch size, each its
            square root, cost next to nothing.
        most_records: the most records that the data set may have; the declared ``public_size`` unless given.

    >>> TruncatedPoisson(largest_batch=160).release(0.01, 10_000, ())(1.0)
    TruncatedPoissonGaussian(sampling_rate=0.01, noise_multiplier=1.0, largest_batch=160, most_records=10000)
    """

    largest_batch: int
    most_records: int | None = None

    def __post_init__(self) -> None:
        all_of(
            lambda: count(largest_batch=self.largest_batch),
            lambda: self.most_records is None or count(most_records=self.most_records),
        )

    def release(self, sampling_rate: float, public_size: int | None, parts: Parts) -> ReleaseOf:
        most = public_size if self.most_records is None else self.most_records
        if most is None:
            raise ValueError(
                "truncated batches need the most records that the data set may have: declare public_size, or "
                "TruncatedPoisson(largest_batch, most_records)"
            )
        return lambda noise: events.TruncatedPoissonGaussian(sampling_rate, noise, self.largest_batch, most, parts)


@dataclass(frozen=True)
class BallsInBins:
    """Passes over the data in which each record enters exactly one batch, drawn at random.

    Args:
        bins: the batches of one pass, at least 1; as many as the sampling rate asks for, rounded up, unless given.
    """

    bins: int | None = None

    def __post_init__(self) -> None:
        if self.bins is not None:
            count(bins=self.bins)

    def release(self, sampling_rate: float, public_size: int | None, parts: Parts) -> ReleaseOf:
        rounded_up = math.ceil(1 / sampling_rate * (1 - 1e-12))  # 1 / (1 / 49) is above 49
        bins = rounded_up if self.bins is None else self.bins
        return lambda noise: events.BallsInBinsGaussian(bins, noise, parts)


@dataclass(frozen=True)
class CyclicPoisson:
    """Batches of groups of records in turn, with noise that later steps partly take back: less noise on the weights.

    Step t draws a Poisson batch of group t modulo ``bands``, of the same expected size as otherwise. Its noise is
    correlated with that of the ``bands`` - 1 steps before, which are kept in memory.

    Args:
        bands: a whole number of at least 1, which is :class:`Poisson`. More bands take back more noise and amplify
            less; ``bands * sampling_rate`` is at most 1.

    Source: Choquette-Choo et al. 2023, "(Amplified) Banded Matrix Factorization: A unified approach to private
    training".
    """

    bands: int

    def __post_init__(self) -> None:
        count(bands=self.bands)

    def release(self, sampling_rate: float, public_size: int | None, parts: Parts) -> ReleaseOf:
        events.BandedGaussian(sampling_rate, 1.0, self.bands)  # checks the rate
        return lambda noise: events.BandedGaussian(sampling_rate, noise, self.bands, parts)


Sampling: TypeAlias = Poisson | TruncatedPoisson | BallsInBins | CyclicPoisson


def releases(
    sampling: Sampling, users: Users | None, rate: float, batch_size: float, public_size: int | None, parts: Parts
) -> Sequence[ReleaseOf]:
    """The releases that a step may make with these parts, as declared: one, or with users of records and of users."""
    if not isinstance(sampling, Sampling):
        known = "Poisson(), TruncatedPoisson(..), BallsInBins() or CyclicPoisson(..)"
        raise TypeError(f"expected sampling to be {known}, got {sampling!r}")
    if users is None:
        return [sampling.release(rate, public_size, parts)]
    if not isinstance(users, Users):
        raise TypeError(f"expected users to be Users(ids, most_records), got a {type(users).__name__}")
    if not isinstance(sampling, Poisson):
        raise ValueError(f"with users batches are Poisson, because no privacy cost is known of users in {sampling!r}")
    rates = {users.most_records: rate}
    if users.public_users is not None:
        if public_size is not None:  # of which at most so many are kept
            rates[users.most_records] = batch_size / min(public_size, users.most_records * users.public_users)
        rates[1] = batch_size / users.public_users
    possible = [(most_records, rate) for most_records, rate in rates.items() if rate <= 1]
    if not possible:
        raise ValueError(
            f"{users.public_users} users with at most {users.most_records} records each do not give "
            f"{batch_size} records for a batch; declare a smaller expected_batch_size"
        )
    return [lambda noise, n=n, rate=rate: UserLevel(PoissonGaussian(rate, noise, parts), n) for n, rate in possible]


def user_records(event: StepRelease, users: Users | None, data: Any, size: int, key: SecretKey) -> UserRecords | None:
    """The records by their users, where the release of a step has a guarantee for users."""
    if not isinstance(event, UserLevel):
        if users is not None:
            raise PrivacyError(f"the run has a guarantee to {event.relation}, not for users; leave users out")
        return None
    if users is None:
        raise PrivacyError("the run has a guarantee for users; give it users=Users(ids, most_records)")
    if event.records not in (1, users.most_records):  # at 1, users are sampled, however many records they keep
        raise PrivacyError(
            f"the run is paid for {event.records} records of each user, not for most_records={users.most_records}; "
            f"give it Users(ids, most_records={event.records})"
        )
    return UserRecords(users.numbers(data, size), users.most_records, key)


def sampler_of(event: StepRelease, size: int, key: SecretKey, *, first_step: int, users: UserRecords | None) -> Sampler:
    """The sampler whose batches of ``size`` records the release of a step describes, from ``first_step`` on."""
    match event:
        case PoissonGaussian():
            return PoissonSampler(size, event.sampling_rate, key)
        case events.TruncatedPoissonGaussian():
            return TruncatedPoissonSampler(size, event.sampling_rate, key, event.largest_batch, event.most_records)
        case events.BallsInBinsGaussian():
            return BallsInBinsSampler(size, event.bins, key, first_step)
        case events.BandedGaussian():
            return CyclicPoissonSampler(size, event.of_round.sampling_rate, key, event.bands, first_step)
        case UserLevel():
            assert users is not None, "grouped by user_records"
            return (UserSampler if event.records == 1 else KeptRecordsSampler)(users, event.sampling_rate, key)
