import datetime
import math
from typing import Any

import numpy as np
import pytest

from noisette.data import DataError, Declaration
from noisette.data.columns import Columns, ImageForm
from noisette.data.dataset import Target

AGE = {"kind": "number", "low": 0, "high": 80}
JOB = {"kind": "category", "categories": ["cook", "smith"]}


def encoded(column: dict[str, Any], values: Any) -> list[list[float]]:
    return Columns.of({"x": column}).encode({"x": values}).tolist()


def refusal(column: dict[str, Any], values: Any = ()) -> str:
    with pytest.raises(DataError) as caught:
        Columns.of({"x": column}).encode({"x": values})
    assert "CANARY" not in str(caught.value)
    return str(caught.value)


def test_numbers_are_clipped_to_their_bounds_or_used_as_they_are() -> None:
    assert encoded(AGE, ["0", " 40 ", "100", "-inf", "1e400"]) == [[-1], [0], [1], [-1], [1]]
    assert encoded({"kind": "number"}, ["-300", "1e-3"]) == [[-300], [np.float32(1e-3)]]
    assert "not a finite number" in refusal({"kind": "number"}, ["1e39"])


def test_a_missing_number_is_the_declared_constant_or_indicated() -> None:
    assert encoded(AGE | {"missing": 20}, ["", "NA", "80"]) == [[-0.5], [-0.5], [1]]
    assert encoded({"kind": "number", "missing": 7}, ["", "3"]) == [[7], [3]]
    assert encoded(AGE | {"low": -80, "missing": "indicator"}, [None, 40.0, math.nan]) == [[0, 1], [0.5, 0], [0, 1]]
    assert encoded(AGE | {"missing": "indicator"}, ["?", "0"]) == [[0, 1], [-1, 0]]


def test_missing_numbers_and_texts_are_refused_without_a_rule() -> None:
    assert "column 'x': a value is missing in row 2; declare what it counts as" in refusal(AGE, ["1", ""])
    message = refusal(AGE | {"missing": 20}, ["1", "CANARY", ""])
    assert "column 'x': not a finite number (without % or $) in row 2; for 1.234,5 declare" in message


def test_categories_in_any_case_and_of_numbers() -> None:
    assert encoded(JOB, ["smith", " COOK"]) == [[0, 1], [1, 0]]
    assert encoded(JOB | {"categories": ["a", "A"], "other": "own category"}, ["a", "A"]) == [[1, 0, 0], [0, 1, 0]]
    assert encoded({"kind": "category", "categories": [1, 2]}, [2.0, 1, np.int64(2)]) == [[0, 1], [1, 0], [0, 1]]
    texts = {"kind": "category", "categories": ["0", "1"], "missing": "own category"}
    assert encoded(texts, ["1.0", "", "0.0", "1"]) == [[0, 1, 0], [0, 0, 1], [1, 0, 0], [0, 1, 0]]
    assert encoded(texts | {"categories": ["1", "1.0"]}, ["1.0", "1"]) == [[0, 1, 0], [1, 0, 0]]


def test_missing_and_other_texts_count_as_declared() -> None:
    declared = JOB | {"missing": "own category", "other": "own category"}
    assert encoded(declared, ["cook", "", "spy", None]) == [[1, 0, 0, 0], [0, 0, 1, 0], [0, 0, 0, 1], [0, 0, 1, 0]]
    assert Columns.of({"x": declared}).inputs == ("x = cook", "x = smith", "x is missing", "x is other")
    assert encoded(JOB | {"missing": "smith", "other": "cook"}, ["", "spy"]) == [[0, 1], [1, 0]]
    assert encoded(JOB | {"missing": "smith", "other": "own category"}, ["", "spy"]) == [[0, 1, 0], [0, 0, 1]]


def test_other_texts_are_refused_without_a_rule() -> None:
    assert "none of its declared categories in row 2" in refusal(JOB | {"missing": "cook"}, ["", "CANARY", "cook"])
    # A mark of missing values that is declared is a category.
    assert encoded({"kind": "category", "categories": ["", "none"]}, ["none", ""]) == [[0, 1], [1, 0]]


def test_dates_are_days_between_their_bounds() -> None:
    declared = {"kind": "date", "low": "2000-01-01", "high": "2000-01-11", "missing": "indicator"}
    found = encoded(declared, ["2000-01-06", "1999-12-31", "2000-01-11T06:00", None, datetime.date(2000, 1, 1)])
    assert found == [[0, 0], [-1, 0], [1, 0], [0, 1], [-1, 0]]
    german = declared | {"format": "%d.%m.%Y", "missing": "refuse"}
    assert encoded(german, ["06.01.2000"]) == [[0]]
    message = refusal(german, ["2000-01-06", "-", "06.01.2000", "31.02.2000"])
    assert "a value is missing in row 2" in message
    assert "not a date in the format %d.%m.%Y in rows 1 and 4" in message


def test_texts_of_many_kinds_are_hashed_each_by_itself() -> None:
    declared = {"kind": "hashed", "width": 5, "missing": "own category"}
    found = encoded(declared, ["E11.9", "e11.9 ", "Oslo", "", "unknown"])
    assert found[0] == found[1], "in any case"
    assert [sum(row) for row in found] == [1] * 5
    assert found[3] == [0, 0, 0, 0, 0, 1]
    assert encoded(declared | {"missing_words": ["Unknown"]}, ["unknown"]) == [found[3]]
    assert "a value is missing in row 1" in refusal({"kind": "hashed", "width": 5}, [None])


def test_words_for_missing_values() -> None:
    declared = AGE | {"missing": "indicator", "missing_words": ["-9", "k.A."]}
    assert encoded(declared, ["-9", -9.0, "K.A.", "-", "NA", "40"]) == [[0, 1]] * 5 + [[0, 0]]
    assert encoded(JOB | {"missing": "cook", "missing_words": ["unemployed"]}, ["Unemployed", "smith"])[0] == [1, 0]


def test_one_row_never_changes_the_inputs_of_another() -> None:
    columns = Columns.of({"a": AGE | {"missing": "indicator"}, "b": JOB | {"missing": "cook", "other": "own category"}})
    rows = {"a": ["", "3", "99", "nan"], "b": ["spy", "", "smith", "COOK"]}
    together = columns.encode(rows)
    for index in range(4):
        alone = columns.encode({name: [values[index]] for name, values in rows.items()})
        assert np.array_equal(alone[0], together[index])


@pytest.mark.parametrize(
    ("column", "says"),
    [
        ({"kind": "text"}, "expected kind to be one of number, date, category, hashed, ignored, got 'text'"),
        ({"kind": "number", "lowest": 0}, "unknown key lowest: known here: low, high"),
        ({"kind": "category"}, "declare categories"),
        ({"kind": "number", "low": 0}, "declare both low and high"),
        ({"kind": "number", "low": 1, "high": 1}, "expected low < high"),
        ({"kind": "number", "low": 0, "high": math.inf}, "high = inf is not of the expected type: a finite number"),
        (AGE | {"missing": 81}, "expected missing from 0 to 80, got 81"),
        (AGE | {"missing": "mean"}, "missing = 'mean' is not of the expected type: a valid number or 'refuse'"),
        (JOB | {"categories": "cook"}, "expected a list of texts"),
        (JOB | {"missing": "spy"}, "expected missing to be one of the categories"),
        ({"kind": "date", "low": "1.1.2000", "high": "2001-01-01"}, "such as \"2024-12-31\", got '1.1.2000'"),
        ({"kind": "hashed", "width": 1}, "width = 1 is not of the expected type: greater than or equal to 2"),
        ({"kind": "category", "categories": ["refuse"]}, "'refuse' is a rule for missing values"),
    ],
)
def test_contradictions(column: dict[str, Any], says: str) -> None:
    assert says in refusal(column)


COLUMNS = Columns.of({"job": {"kind": "category", "categories": ["cook"]}, "id": {"kind": "ignored"}})


def test_all_contradictions_of_a_declaration_at_once() -> None:
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
        ({"thousands": ".", "decimal": "."}, "thousands: expected"),
        ({"encoding": "latin-99"}, "encoding: expected one that Python knows"),
        ({"encoding": "hex"}, "encoding: expected one that Python knows"),
    ],
)
def test_contradictions_of_a_declaration(declared: dict, says: str) -> None:
    with pytest.raises(DataError, match=says):
        Declaration(**declared)
    with pytest.raises(ValueError, match="height=-1"):
        ImageForm(4, -1)
