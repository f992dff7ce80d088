from __future__ import annotations

import pytest

from noisette.data import DataError
from noisette.data.dataset import in_rows, refuse


def test_one_problem_is_one_line() -> None:
    with pytest.raises(DataError) as caught:
        refuse("a.csv", ["it is blue"])
    assert str(caught.value) == "a.csv: it is blue"


def test_ten_problems_are_shown_and_the_rest_is_counted() -> None:
    with pytest.raises(DataError) as caught:
        refuse("a.csv", [f"problem {number}" for number in range(13)])
    lines = str(caught.value).splitlines()
    assert lines[0] == "a.csv: 13 problems"
    assert [line.strip() for line in lines[1:]] == [f"problem {number}" for number in range(10)] + ["and 3 more"]


@pytest.mark.parametrize(
    ("indices", "words"),
    [
        ([0], "in row 1"),
        ([0, 1], "in rows 1 and 2"),
        ([0, 1, 2, 3, 4], "in rows 1, 2, 3, 4 and 5"),
        ([0, 1, 2, 3, 4, 9], "in rows 1, 2, 3, 4, 5 and 1 more"),
    ],
)
def test_rows_count_from_one(indices: list[int], words: str) -> None:
    assert in_rows(indices) == words
