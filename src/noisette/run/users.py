"""The users whom records belong to, and batches in which each of them has few records.

Which records of a user are kept is drawn by the secret key: a choice by the order of the data set could be steered by
whoever orders it.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, replace
from numbers import Number
from typing import Any

import numpy as np
from torch import Tensor

from noisette import errors as checks
from noisette.core.batches import PoissonSampler
from noisette.core.noise import SecretKey
from noisette.errors import PrivacyError, first_few
from noisette.run.loading import Records, each_record

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

    Guarantee: none by itself; with :func:`noisette.privatize` that of the run is for adding or removing all records of
    one user, whatever their number.

    Raises:
        TypeError, ValueError: a number is not a whole number of at least 1.

    >>> Users(["ann", "bob", "ann"], most_records=1)
    Users(most_records=1)
    """

    ids: Sequence[Any] | np.ndarray | Tensor | Callable[[Any], Any]
    most_records: int
    public_users: int | None = None

    def __post_init__(self) -> None:
        checks.all_of(
            lambda: checks.count(most_records=self.most_records),
            lambda: self.public_users is None or checks.count(public_users=self.public_users),
        )

    def __repr__(self) -> str:
        declared = "" if self.public_users is None else f", public_users={self.public_users}"
        return f"Users(most_records={self.most_records}{declared})"

    def numbers(self, dataset: Any, size: int) -> np.ndarray:
        """The users of all records as numbers from 0 on, in the order of their first records, int64, (size,).

        Raises:
            TypeError: an id cannot be compared by value.
            ValueError: the number of ids is not that of the records, or a record has no id.
        """
        ids = _listed(map(self.ids, each_record(dataset)) if callable(self.ids) else self.ids)
        if len(ids) != size:
            raise ValueError(f"users has {len(ids)} ids for {size} records; give one for each record, in their order")
        if not set(map(type, ids)) <= _PLAIN:
            ids = [_by_value(index, value) for index, value in enumerate(ids)]
        numbers = {value: number for number, value in enumerate(dict.fromkeys(ids))}
        found = np.fromiter(map(numbers.__getitem__, ids), dtype=np.int64, count=size)
        _refuse_without_id(np.isin(found, [number for value, number in numbers.items() if _is_missing(value)]))
        if len(kinds := {_kind(of) for of in set(map(type, ids))}) > 1:
            raise ValueError(
                f"ids are {' and '.join(sorted(kinds))}: 1 and '1' would count as two users; give ids of one kind"
            )
        return found


class UserRecords:
    """The records of a data set by their users, of whom each keeps at most ``most_records``.

    Args:
        users: the user of each record, as numbers from 0 on, (n,).
        most_records: the most that are kept of one user.
        key: draws which records are kept: each set of that size is equally likely.
    """

    def __init__(self, users: np.ndarray, most_records: int, key: SecretKey) -> None:
        self.users = users
        self.most_records = most_records
        words = np.empty(len(users), dtype=np.uint64)
        key.fill(words, purpose="kept records", name="", step=0)
        by_user = np.lexsort((words, users))  # the records of each user together, in an order drawn by the key
        counts = np.bincount(users)
        place = np.arange(len(users)) - np.repeat(np.cumsum(counts) - counts, counts)  # of a record among its user's
        self.by_user = by_user[place < most_records]
        """The kept records, those of one user together."""
        self.counts = np.minimum(counts, most_records)
        """How many records each user keeps."""
        self.first = np.cumsum(self.counts) - self.counts
        """Where the records of each user begin in ``by_user``."""
        self.kept = np.zeros(len(users), dtype=bool)
        self.kept[self.by_user] = True
        self.in_order = np.flatnonzero(self.kept)
        """The kept records in the order of the data set."""

    def of(self, records: Records, most_in_batch: int) -> Records:
        """The records of the data set, from which no batch has others than the kept ones.

        Args:
            records: all of them.
            most_in_batch: the most records of one user in a batch.
        """

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
        """Indices of the records in this step's batch, ascending; possibly none."""
        kept = self.records.in_order
        return kept[PoissonSampler(len(kept), self.sampling_rate, self.key).indices(step=step)]


@dataclass(frozen=True)
class UserSampler:
    """Includes each user in a step's batch independently with probability ``sampling_rate``, with one kept record.

    Which of its kept records it is, is drawn anew in each step.
    """

    records: UserRecords
    sampling_rate: float
    key: SecretKey

    def indices(self, *, step: int) -> np.ndarray:
        """Indices of the records in this step's batch, ascending; possibly none."""
        counts = self.records.counts
        users = PoissonSampler(len(counts), self.sampling_rate, self.key).indices(step=step)
        words = np.empty(len(users), dtype=np.uint64)
        self.key.fill(words, purpose="record of a user", name="", step=step)
        # The remainder is uniform but for one part in 2^64 / count; no guarantee depends on which record it is.
        chosen = self.records.first[users] + (words % counts[users].astype(np.uint64)).astype(np.int64)
        return np.sort(self.records.by_user[chosen])


def _listed(ids: Any) -> list[Any]:
    """The ids as a list of Python values, where they have such values.

    Raises:
        TypeError: they are not one id for each record.
        ValueError: some are masked.
    """
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
    # A time in nanoseconds becomes a number by ``tolist``, also one that is missing.
    return list(ids) if ids.dtype.kind in "mM" else ids.tolist()


def _by_value(index: int, value: Any) -> Any:
    """The id of a record as a value that is equal for equal users.

    Raises:
        TypeError: it has no such value.
    """
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
