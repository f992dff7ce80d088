"""Declarations that contradict themselves are refused, all problems at once."""

from __future__ import annotations

import pytest

from noisette.data import DataError, Declaration
from noisette.data.columns import Columns
from noisette.data.dataset import Target
from noisette.data.declaration import ImageForm

COLUMNS = Columns.of({"job": {"kind": "category", "categories": ["cook"]}, "id": {"kind": "ignored"}})


def test_all_contradictions_at_once() -> None:
    with pytest.raises(DataError) as caught:
        Declaration(classes=("a", "a"), size=0, label="y", users="y", decimal=";", text="y")
    message = str(caught.value)
    assert "5 problems" in message
    for word in ("classes", "size", "'y' cannot be both", "decimal", "'y' is the text"):
        assert word in message


@pytest.mark.parametrize(
    ("declared", "says"),
    [
        *(({"classes": classes}, "classes: expected two or more different classes") for classes in (1, -3, ())),
        ({"classes": 99_999_999_999}, "classes: expected at most 1000000, got 99999999999"),
        ({"classes": 2, "target": Target(0, 1)}, "declare one of them"),
        ({"text": "review", "columns": COLUMNS}, "a text is the only input"),
        ({"text": "label"}, "it cannot be the label"),
        ({"columns": COLUMNS, "label": "job"}, "column 'job' is the label"),
        ({"columns": COLUMNS, "users": "job"}, "column 'job' is the column of users"),
        ({"thousands": ".", "decimal": "."}, "thousands: expected"),
        ({"encoding": "latin-99"}, "encoding: expected one that Python knows"),
    ],
)
def test_contradictions(declared: dict, says: str) -> None:
    with pytest.raises(DataError, match=says):
        Declaration(**declared)
    with pytest.raises(ValueError, match="height=-1"):
        ImageForm(4, -1)
