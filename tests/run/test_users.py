"""Records by their users: ids of all kinds, few records of each drawn by the key alone, and batches of both kinds."""

import time
import tracemalloc
from itertools import combinations
from typing import Any

import numpy as np
import pytest
import torch
from scipy import stats
from torch.utils.data import TensorDataset

from noisette import PrivacyError, Users
from noisette.core.noise import SecretKey
from noisette.run.loading import records_of
from noisette.run.sampling import KeptRecordsSampler, UserRecords, UserSampler

X, IDS = torch.arange(12.0).view(6, 2), ["ann", "bob", "ann", "eve", "bob", "ann"]
NUMBERS = torch.tensor([7, 9, 7, 8, 9, 7])


def key(number: int) -> SecretKey:
    return SecretKey(number.to_bytes(32, "little"))


class Column:
    def to_numpy(self) -> np.ndarray:
        return np.array(IDS, dtype=object)


GIVEN: dict[str, tuple[Any, Any]] = {
    "tuples": ([(name, 1) for name in IDS], X),
    "array of times": (NUMBERS.numpy().astype("M8[ns]"), X),
    "tensor": (NUMBERS, X),
    "column": (Column(), X),
    "function of a row": (lambda record: record[1], (X, NUMBERS)),
    "function of a TensorDataset": (lambda record: record[1], TensorDataset(X, NUMBERS)),
    "function of a record": (lambda record: record[1], list(zip(X, IDS, strict=True))),
}


@pytest.mark.parametrize("given", GIVEN)
def test_ids_of_all_kinds(given):
    ids, dataset = GIVEN[given]
    assert Users(ids, most_records=2).numbers(dataset, 6).tolist() == [0, 1, 0, 2, 1, 0]


@pytest.mark.parametrize("kind", [np.int64, np.uint8, "S7", "U7"])
def test_ids_in_arrays_are_numbered_in_the_order_of_their_first_records(kind):
    ids = np.random.default_rng(0).integers(0, 200, 5000).astype(kind)
    assert Users(ids, 1).numbers(None, 5000).tolist() == Users(ids.tolist(), 1).numbers(None, 5000).tolist()
    assert len(Users(ids[:0], 1).numbers(None, 0)) == 0


def test_ids_of_a_million_records_take_seconds_and_little_memory():
    """At most as much as five arrays of numbers; a list of Python values takes twelve."""
    ids = np.random.default_rng(0).integers(0, 100_000, 1_000_000)
    tracemalloc.start()
    begun = time.process_time()
    Users(ids, 1).numbers(None, len(ids))
    took, most = time.process_time() - begun, tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert took < 2
    assert most < 5 * ids.nbytes


NAN = float("nan")
REFUSED: dict[str, tuple[Any, str]] = {
    "too few": (IDS[1:], "5 ids for 6 records"),
    "none": ([*IDS[:5], None], r"1 records have no user \(index 5\)"),
    "nan": ([1.0, NAN, 2.0, NAN, 1.0, 1.0], r"2 records have no user \(index 1, 3\)"),
    "masked": (np.ma.masked_equal([1, 2, 3, 1, 1, 1], 3), r"no user \(index 2\)"),
    "blank": (["a", " ", "b", "", "a", "a"], r"2 records have no user \(index 1, 3\)"),
    "lists": ([[1]] * 6, "is a list, which is not compared by value"),
    "objects": ([object()] * 6, "is a object"),
    "two columns": (X, "shape"),
    "one text": ("abcdef", "got a str"),
}


@pytest.mark.parametrize("given", REFUSED)
def test_ids_that_are_refused(given):
    ids, message = REFUSED[given]
    with pytest.raises((TypeError, ValueError), match=message):
        Users(ids, most_records=2).numbers(X, 6)


@pytest.mark.parametrize("numbers", [(0, None), (2.5, None), (True, None), (2, 0)])
def test_declared_numbers_outside_their_domain(numbers):
    with pytest.raises(ValueError, match=r"most_records|public_users"):
        Users(IDS, *numbers)


def test_each_user_keeps_at_most_the_declared_number():
    users = np.random.default_rng(0).integers(0, 50, 400)
    for most in (1, 3, 1000):
        kept = UserRecords(users, most, SecretKey()).kept
        np.testing.assert_array_equal(np.bincount(users[kept]), np.minimum(np.bincount(users), most))


@pytest.mark.parametrize("users", [[0, 0, 0, 0, 1], [1, 0, 0, 1, 0, 0]])
def test_every_set_of_records_of_a_user_is_kept_equally_often(users):
    """Also the last ones in the order of the data set; users are those of either end of it."""
    own = np.flatnonzero(np.array(users) == 0)
    counts = dict.fromkeys(combinations(own.tolist(), 2), 0)
    for number in range(3000):
        kept = UserRecords(np.array(users), 2, key(number)).kept
        counts[tuple(own[kept[own]].tolist())] += 1
    assert stats.chisquare(list(counts.values())).pvalue > 1e-6


def counted(sampler: KeptRecordsSampler | UserSampler, steps: int) -> np.ndarray:
    """How many records each user has in each batch, (steps, users)."""
    users = sampler.records.users
    return np.array([np.bincount(users[sampler.indices(step=s)], minlength=users.max() + 1) for s in range(steps)])


def test_records_of_a_user_enter_independently():
    counts = counted(KeptRecordsSampler(UserRecords(np.repeat(np.arange(40), 7), 3, key(1)), 0.3, key(1)), 1000)
    expected = counts.size * stats.binom.pmf(range(4), 3, 0.3)
    assert counts.max() == 3
    assert stats.chisquare(np.bincount(counts.ravel()), expected).pvalue > 1e-6
    assert abs(counts.sum(1).var() / (120 * 0.3 * 0.7) - 1) < 6 * (2 / 1000) ** 0.5


def test_a_user_enters_with_one_record_whatever_it_has():
    users = np.concatenate([np.repeat(np.arange(20), 4), np.arange(20, 40)])
    sampler = UserSampler(UserRecords(users, 3, key(2)), 0.3, key(2))
    counts = counted(sampler, 1000)
    assert counts.max() == 1
    for kind in (counts[:, :20], counts[:, 20:]):  # of users with many records, and with one
        assert abs(kind.mean() - 0.3) < 6 * (0.21 / kind.size) ** 0.5
    centred = counts - 0.3
    assert abs((centred[1:] * centred[:-1]).mean()) < 6 * 0.21 / (999 * 40) ** 0.5, "no memory"
    assert abs((centred[:, 1:] * centred[:, :-1]).mean()) < 6 * 0.21 / (1000 * 39) ** 0.5, "no pairs"
    own = np.flatnonzero(sampler.records.kept & (users == 5))
    taken = np.array([np.isin(own, sampler.indices(step=step)) for step in range(1000)]).sum(0)
    assert stats.chisquare(taken).pvalue > 1e-6


def test_batches_that_were_not_drawn_are_refused():
    by_user = UserRecords(np.array([0, 0, 0, 1, 1, 1]), 2, key(3))
    records = by_user.of(records_of(X), 2)
    assert records.check_batch is not None
    records.check_batch(np.flatnonzero(by_user.kept))
    records.check_batch(np.arange(0))
    for at in (np.arange(6), np.flatnonzero(~by_user.kept)[:1], np.repeat(np.flatnonzero(by_user.kept), 2)):
        with pytest.raises(PrivacyError, match="at most 2 of the kept records"):
            records.check_batch(at)
    with pytest.raises(PrivacyError, match="at most 1"):
        by_user.of(records_of(X), 1).check_batch(np.flatnonzero(by_user.kept))  # pyright: ignore[reportOptionalCall]


@pytest.mark.parametrize("ids", [[1, "1", 1, "1"], [b"a", "a", "a", "a"], ["2", 2.0, "3", "3"]])
def test_ids_of_different_kinds_are_refused(ids):
    """1 and "1" are two values, but hardly two users."""
    with pytest.raises(ValueError, match="would count as two users"):
        Users(ids, most_records=2).numbers(torch.zeros(4, 1), 4)


@pytest.mark.parametrize("ids", [[1, 2.0, True, 2], [("a", 1), ("a", 2), ("a", 1), ("a", 2)]])
def test_ids_of_one_kind_are_compared_by_value(ids):
    assert Users(ids, most_records=2).numbers(torch.zeros(4, 1), 4).tolist() == [0, 1, 0, 1]
