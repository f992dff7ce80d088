"""Data sets and their targets are checked, all problems are listed at once, and a part is held out by a secret key."""

from __future__ import annotations

import math

import numpy as np
import pytest

from noisette.data import DataError, DataSet, Split
from noisette.data.dataset import Target, hold_out, refuse

KEY, OTHER = b"k" * 32, b"o" * 32
N = 4000


def split(*targets: int, width: int = 2) -> Split:
    return Split(np.zeros((3, width), np.float32), np.array(targets, np.int64))


def texts(*numbers: int, kind: type = np.int64) -> Split:
    return Split(np.array([numbers] * 2, kind), np.array([0, 1], np.int64))


def refusal(train: Split, test: Split | None = None, **facts) -> str:
    with pytest.raises(DataError) as caught:
        DataSet("toy", train, test, **{"classes": 2, "declared_size": 2} | facts)
    return str(caught.value)


def test_one_problem_is_one_line_and_of_many_the_rest_is_counted() -> None:
    with pytest.raises(DataError, match=r"^a.csv: it is blue$"):
        refuse("a.csv", ["it is blue"])
    with pytest.raises(DataError) as caught:
        refuse("a.csv", [f"problem {number}" for number in range(13)])
    first, *lines = str(caught.value).splitlines()
    assert first == "a.csv: 13 problems"
    assert [line.strip() for line in lines] == [f"problem {number}" for number in range(10)] + ["and 3 more"]


def test_everything_that_does_not_fit_is_listed() -> None:
    message = refusal(split(0, -1, 7), split(0, 0, width=3), classes=7)
    assert "3 problems" in message
    assert "train has 2 labels outside 0..6, the first at index 1" in message
    assert "test has 3 inputs but 2 labels" in message
    assert "shape (2,), those of test (3,)" in message


def test_words_must_have_vectors() -> None:
    vectors = np.zeros((5, 2), np.float32)
    assert DataSet("toy", texts(0, 4), None, classes=2, declared_size=2, vectors=vectors).vectors is vectors
    message = refusal(texts(0, 5), texts(-1, 0), vectors=vectors)
    assert "train has 2 texts with words outside 0..4, the first at index 0" in message
    assert "test has 2 texts with words outside 0..4" in message
    message = refusal(texts(0, 1, kind=np.float32), vectors=vectors)
    assert "train has inputs of type float32 of shape (2, 2)" in message


def test_targets_are_clipped_scaled_and_come_back_in_the_unit() -> None:
    target, values = Target(-40, 60), np.linspace(-40, 60, 23)
    np.testing.assert_allclose(target.unscaled(target.scaled(values)), values, atol=1e-4)
    assert target.scaled(np.array([-99.0, 1e9])).tolist() == [-1, 1]
    regression = Split(np.zeros((2, 1), np.float32), np.array([0, 1.5], np.float32))
    assert "train has 1 targets outside -1..1" in refusal(regression, classes=1, target=target)


@pytest.mark.parametrize("bounds", [(1, 1), (2, 1), (0, math.inf), (math.nan, 1)])
def test_bounds_are_finite_and_ascending(bounds: tuple[float, float]) -> None:
    with pytest.raises(DataError, match="expected finite low < high"):
        Target(*bounds)


def records(n: int = N, users: list[str] | None = None) -> DataSet:
    inputs = np.arange(n, dtype=np.float32)[:, None]
    return DataSet("table", Split(inputs, np.zeros(n, np.int64), users), None, classes=2, declared_size=5000)


def held(data: DataSet) -> set[float]:
    assert data.test is not None
    return set(data.test.inputs[:, 0].tolist())


def test_each_record_is_on_one_side_by_the_key() -> None:
    found = hold_out(records(), 0.2, KEY)
    assert held(found) | set(found.train.inputs[:, 0].tolist()) == set(range(N))
    assert abs(len(held(found)) - 0.2 * N) < 4 * np.sqrt(0.2 * 0.8 * N)
    assert found.declared_size == 4000
    assert held(hold_out(records(), 0.2, KEY)) == held(found) != held(hold_out(records(), 0.2, OTHER))
    assert held(hold_out(records(N - 1), 0.2, KEY)) == held(found) - {N - 1}, "later records do not matter"
    assert sorted(held(found))[:6] == [7, 11, 19, 22, 38, 40], "the same in every version"


def test_all_records_of_a_user_are_on_one_side() -> None:
    users = [f"user {index % 97}" for index in range(N)]
    found = hold_out(records(users=users), 0.3, KEY)
    assert found.test is not None
    assert found.train.users is not None
    assert found.test.users is not None
    assert not set(found.train.users) & set(found.test.users)
    assert [users[int(place)] for place in found.test.inputs[:, 0]] == list(found.test.users)


def test_what_cannot_be_held_out() -> None:
    for share in (0.0, 1.0, -0.1, math.nan):
        with pytest.raises(DataError, match="expected 0 < holdout < 1"):
            hold_out(records(), share, KEY)
    with pytest.raises(DataError, match="has test examples already"):
        hold_out(hold_out(records(), 0.5, KEY), 0.5, KEY)
    with pytest.raises(DataError, match="one part is empty"):
        hold_out(records(1), 0.5, KEY)
