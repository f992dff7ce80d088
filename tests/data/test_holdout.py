from __future__ import annotations

import numpy as np
import pytest

from noisette.data import DataError, DataSet, Split
from noisette.data.dataset import hold_out

KEY, OTHER = b"k" * 32, b"o" * 32
N = 4000


def records(n: int = N, users: list[str] | None = None) -> DataSet:
    inputs = np.arange(n, dtype=np.float32)[:, None]
    return DataSet("table", Split(inputs, np.zeros(n, np.int64), users), None, classes=2, declared_size=5000)


def held(data: DataSet) -> set[float]:
    assert data.test is not None
    return set(data.test.inputs[:, 0].tolist())


def test_each_record_is_on_one_side() -> None:
    found = hold_out(records(), 0.2, KEY)
    assert held(found) | set(found.train.inputs[:, 0].tolist()) == set(range(N))
    assert abs(len(held(found)) - 0.2 * N) < 4 * np.sqrt(0.2 * 0.8 * N)
    assert found.declared_size == 4000


def test_the_split_is_that_of_the_key() -> None:
    assert held(hold_out(records(), 0.2, KEY)) == held(hold_out(records(), 0.2, KEY))
    assert held(hold_out(records(), 0.2, KEY)) != held(hold_out(records(), 0.2, OTHER))


def test_what_records_say_and_later_records_do_not_matter() -> None:
    positions = held(hold_out(records(), 0.3, KEY))
    shorter = held(hold_out(records(N - 1), 0.3, KEY))
    assert shorter == positions - {N - 1}
    other = DataSet("t", Split(np.zeros((N, 2), np.float32), np.ones(N, np.int64)), None, classes=2, declared_size=9)
    found = hold_out(other, 0.3, KEY).test
    assert found is not None
    assert len(found.inputs) == len(positions)


def test_places_in_the_file_are_drawn_independently() -> None:
    """The shares of neighbours that are both held out, and of every second place, are those of independent draws."""
    chosen = np.zeros(N, bool)
    chosen[[int(place) for place in held(hold_out(records(), 0.5, KEY))]] = True
    for pairs in (chosen[1:] & chosen[:-1], chosen[2:] & chosen[:-2]):
        assert abs(pairs.mean() - 0.25) < 4 * np.sqrt(0.25 * 0.75 / N) * 1.5
    assert abs(chosen[::2].mean() - 0.5) < 4 * np.sqrt(0.25 / (N / 2))


def test_all_records_of_a_user_are_on_one_side() -> None:
    users = [f"user {index % 97}" for index in range(N)]
    found = hold_out(records(users=users), 0.3, KEY)
    assert found.test is not None
    assert found.train.users is not None
    assert found.test.users is not None
    assert not set(found.train.users) & set(found.test.users)
    assert [users[int(place)] for place in found.test.inputs[:, 0]] == list(found.test.users)


@pytest.mark.parametrize("share", [0.0, 1.0, -0.1, float("nan")])
def test_the_share_is_a_fraction(share: float) -> None:
    with pytest.raises(DataError, match="expected 0 < holdout < 1"):
        hold_out(records(), share, KEY)


def test_test_examples_are_not_drawn_twice() -> None:
    with pytest.raises(DataError, match="has test examples already"):
        hold_out(hold_out(records(), 0.5, KEY), 0.5, KEY)


def test_too_few_records() -> None:
    with pytest.raises(DataError, match="one part is empty"):
        hold_out(records(1), 0.5, KEY)
