"""Declarations of a table: all that is missing or wrong is said at once, and nothing is read without permission."""

from __future__ import annotations

import numpy as np
import pytest

from noisette.integrations.scikit_learn import Declarations, bounds_of_rows, feature_bounds


def test_what_is_missing_is_listed_with_the_ways_out() -> None:
    declared = Declarations(may_read=False)

    def never() -> int:
        pytest.fail("the rows were read")

    assert declared.given("size", None, never) is None
    assert declared.given("bounds", None, never) is None
    assert declared.given("classes", [0, 1], never) == [0, 1]  # type: ignore[arg-type]
    with pytest.raises(ValueError, match="not declared: size, bounds") as error:
        declared.refuse_missing()
    assert all(way in str(error.value) for way in ("size=N", "bounds=(low, high)", "undeclared_from_rows=True"))
    assert declared.read == []


def test_what_is_read_from_the_rows_is_noted() -> None:
    declared = Declarations(may_read=True)
    assert declared.given("size", None, lambda: 7) == 7
    assert declared.given("bounds", (0, 1), lambda: (5, 6)) == (0, 1)
    declared.refuse_missing()
    assert declared.read == ["size"]


@pytest.mark.parametrize("bounds", [(0, 1), ([0, 0], 1), (np.zeros(2), np.ones(2)), {"a": (0, 1), "b": (0, 1)}])
def test_forms_of_bounds(bounds: object) -> None:
    pair = feature_bounds(bounds, ["a", "b"], 2)  # type: ignore[arg-type]
    assert pair.tolist() == [[0, 0], [1, 1]]


@pytest.mark.parametrize(
    ("bounds", "said"),
    [
        ((0, 0), "each low one below its high one"),
        ((0, np.inf), "finite"),
        ((0, [1, 2, 3]), "each a number or 2 numbers"),
        (5, "as \\(low, high\\)"),
        ((0, 1, 2), "as \\(low, high\\)"),
        ((0, "high"), "as \\(low, high\\)"),
        ({"a": (0, 1)}, "'b' has no bounds"),
        ({"a": (0, 1), "b": (0, 1), "c": (0, 1)}, "there is no column 'c'"),
    ],
)
def test_wrong_bounds_are_refused(bounds: object, said: str) -> None:
    with pytest.raises(ValueError, match=said):
        feature_bounds(bounds, ["a", "b"], 2)  # type: ignore[arg-type]


def test_bounds_of_constant_columns_are_apart() -> None:
    low, high = bounds_of_rows(np.array([[1.0, 1e20], [3.0, 1e20]]))
    assert (low < high).all()
