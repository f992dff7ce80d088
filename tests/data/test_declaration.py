from __future__ import annotations

import math

import pytest

from noisette.data import DataError, Declaration


def test_all_contradictions_at_once() -> None:
    with pytest.raises(DataError) as caught:
        Declaration(
            classes=("a", "a"),
            size=0,
            label="y",
            ranges={"low": (2, 1), "flat": (1, 1), "open": (0, math.inf), "both": (0, 1)},
            categories={"none": (), "twice": ("a", "a"), "both": ("a", "b"), "y": ("a", "b")},
        )
    message = str(caught.value)
    assert "9 problems" in message
    for word in ("classes", "size", "'low'", "'flat'", "'open'", "'none'", "'twice'", "'both'", "'y'"):
        assert word in message


@pytest.mark.parametrize("classes", [1, 0, -3, (), ("only",)])
def test_two_classes_at_least(classes: int | tuple[str, ...]) -> None:
    with pytest.raises(DataError, match="classes: expected two or more different classes"):
        Declaration(classes=classes)


def test_names_of_too_many_classes_are_not_made() -> None:
    with pytest.raises(DataError, match="classes: expected at most 1000000, got 99999999999"):
        Declaration(classes=99_999_999_999)


def test_a_range_that_is_not_a_number() -> None:
    with pytest.raises(DataError, match="expected finite low < high"):
        Declaration(ranges={"a": (math.nan, 1)})
