"""Tables of the user's own: values as declared, problems by row and column, and nothing inferred from the rows."""

import gzip
import json
import re
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pandas
import pytest

from noisette.data import DataError, Declaration, load
from noisette.data.columns import Category, Columns, Number
from noisette.data.dataset import Target
from noisette.data.words import Numbering

COLUMNS = Columns({"age": Number(0, 100), "city": Category(("Rome", "Oslo", "")), "height": Number()})
DECLARED = Declaration(classes=("no", "yes"), size=100, columns=COLUMNS)
CONTENT = "age,city,height,label\n50,Oslo,1.5,yes\n150,Rome,2,no\n0,,-3e2,no\n"
TWO = Declaration(classes=2, size=2)
TEXT = Declaration(classes=2, size=60, text="text")


def written(tmp_path: Path, content: str | bytes, name: str = "people.csv") -> str:
    (tmp_path / name).write_bytes(content.encode() if isinstance(content, str) else content)
    return str(tmp_path / name)


def refusal(path: str, declaration: Declaration) -> str:
    with pytest.raises(DataError) as caught:
        load(path, declaration=declaration)
    assert "CANARY" not in str(caught.value).replace(str(Path(path).parent), "")
    return str(caught.value)


def inputs(path: str, declaration: Declaration = TWO) -> list:
    return load(path, declaration=declaration).train.inputs.tolist()


def test_columns_as_declared(tmp_path: Path) -> None:
    found = load(written(tmp_path, CONTENT), declaration=DECLARED)
    assert (found.name, found.classes, found.declared_size, found.test) == ("people.csv", 2, 100, None)
    assert found.train.inputs.dtype == np.float32
    assert found.train.inputs.tolist() == [[0, 0, 1, 0, 1.5], [1, 1, 0, 0, 2], [-1, 0, 0, 1, -300]]
    assert found.train.targets.tolist() == [1, 0, 0]
    few = load(written(tmp_path, "age,city,height,label\n1,Rome,1,no\n"), declaration=DECLARED)
    assert few.train.inputs.shape[1] == found.train.inputs.shape[1], "the width does not depend on the records"


def test_every_column_is_declared_where_columns_are(tmp_path: Path) -> None:
    columns = Columns.of({"age": {"kind": "number", "low": 0, "high": 80}, "id": {"kind": "ignored"}})
    declared = Declaration(classes=2, size=2, columns=columns)
    assert inputs(written(tmp_path, "id,age,label\nx,0,1\ny,80,0\n"), declared) == [[-1], [1]]
    path = written(tmp_path, "id,age,wage,label\n1,2,3,1\n")
    assert "columns: column 'wage' is not declared" in refusal(path, declared)


def test_a_test_split_in_another_order_of_columns(tmp_path: Path) -> None:
    train = written(tmp_path, "a,b,label\n1,2,0\n")
    declared = Declaration(classes=2, size=1, test=tmp_path / "later.csv")
    assert "later.csv cannot be read: No such file" in refusal(train, declared)
    written(tmp_path, "label,b,a\n1,20,10\n", "later.csv")
    found = load(train, declaration=declared)
    assert (found.test.inputs.tolist(), found.test.targets.tolist()) == ([[10, 20]], [1])
    written(tmp_path, "a,c,label\n1,2,0\n", "later.csv")
    assert "later.csv must have the columns of people.csv" in refusal(train, declared)
    written(tmp_path, "a,b,label\n,1,0\n", "later.csv")
    (tmp_path / "people.csv").write_text("a,b,label\n1,,0\n")
    missing = "{} (rows are numbered as in an editor): column '{}': a value is missing in row 2"
    of_train, of_test = refusal(train, declared).splitlines()
    assert of_train.startswith(missing.format("people.csv", "b"))
    assert of_test.startswith(missing.format("later.csv", "a"))


def test_all_problems_at_once_by_row_and_column_without_values(tmp_path: Path) -> None:
    content = (
        "\nage,city,height,label\n,Oslo,1.5,yes\n\n30,CANARY,tall,no\n\r\n40,Rome, nan ,CANARY\n50,Rome,inf,\n60,"
        '"Rome\n",1e39,no\n'
    )
    message = refusal(written(tmp_path, content), DECLARED)
    assert "6 problems" in message
    assert "rows are numbered as in an editor" in message
    for line in (
        "column 'age': a value is missing in row 3;",
        "column 'city': none of its declared categories in row 5",
        "column 'height': a value is missing in row 7;",
        "column 'height': not a finite number (without % or $) in rows 5, 8 and 9; for 1.234,5 declare",
        "column 'label': a value is missing in row 8; fill it in or leave the row out (--skip-unlabelled)",
        "column 'label': none of the declared classes in row 7",
    ):
        assert line in message


def test_columns_classes_and_size_must_be_declared(tmp_path: Path) -> None:
    message = refusal(written(tmp_path, CONTENT), Declaration())
    assert all(words in message for words in ("2 problems", "declare classes", "declare size"))
    columns = Columns({"agge": Number(0, 1), "zzz": Category(("a", "b"))})
    declared = Declaration(classes=2, size=3, label="outcome", columns=columns)
    message = refusal(written(tmp_path, "age,label\n1,0\n"), declared)
    assert "label: there is no column 'outcome'; it has 'age', 'label'" in message
    assert "columns: there is no column 'agge'; did you mean 'age'?" in message
    assert "columns: there is no column 'zzz'" in message


@pytest.mark.parametrize("label", ["2", "-1", "0.5"])
def test_labels_out_of_range(tmp_path: Path, label: str) -> None:
    message = refusal(written(tmp_path, f"x,label\n1,0\n2,{label}\n"), TWO)
    assert "column 'label': not in 0..1 (if labels are text, declare classes as the list of their names)" in message
    assert message.endswith("in row 3")


@pytest.mark.parametrize(
    ("classes", "labels"), [(("No", "Yes"), ("YES", "no ")), (("0", "1"), ("1.0", "0.0 ")), (2, ("1.0", "0.0"))]
)
def test_labels_in_any_case_and_with_decimals(tmp_path: Path, classes: Any, labels: tuple[str, str]) -> None:
    path = written(tmp_path, "x,label\n" + "".join(f"1,{label}\n" for label in labels))
    assert load(path, declaration=Declaration(classes=classes, size=2)).train.targets.tolist() == [1, 0]


def test_rows_without_a_label_are_left_out_where_this_is_declared(tmp_path: Path) -> None:
    path = written(tmp_path, "x,label\n1,yes \n2, \n3,NA\n,?\n4,No\n")
    split = load(path, declaration=Declaration(classes=("no", "yes"), size=2, skip_unlabelled=True)).train
    assert (split.inputs.tolist(), split.targets.tolist()) == ([[1], [4]], [1, 0])
    assert "a value is missing" in refusal(path, Declaration(classes=("no", "yes"), size=2))
    path = written(tmp_path, "x,label\n1,none\n2,\n3,some\n")  # a class may have the name of a missing value
    declared = Declaration(classes=("None", "some"), size=2, skip_unlabelled=True)
    assert load(path, declaration=declared).train.targets.tolist() == [0, 1]
    declared = Declaration(classes=2, size=2, skip_unlabelled=True)
    assert "no row has a label" in refusal(written(tmp_path, "x,label\n1,\n"), declared)
    assert "column 'label': not in 0..1 (if labels are text, declare classes as the list of their names) in row 3" in (
        refusal(written(tmp_path, "x,label\n1,\n1,7\n"), declared)
    )


def test_numbers_to_predict(tmp_path: Path) -> None:
    declared = Declaration(target=Target(0, 100, "h"), size=3, label="hours")
    found = load(written(tmp_path, "x,hours\n1,25\n2,-7\n3,1e9\n"), declaration=declared)
    assert (found.train.targets.dtype, found.train.targets.tolist()) == (np.float32, [-0.5, -1, 1])
    assert (found.classes, found.target) == (1, Target(0, 100, "h"))
    message = refusal(written(tmp_path, "x,hours\n1,\n2,CANARY\n3,4\n"), declared)
    assert "column 'hours': a value is missing in row 2" in message
    assert "column 'hours': not a number in row 3" in message


def test_a_comma_before_the_decimals_of_numbers_and_of_the_target(tmp_path: Path) -> None:
    path = written(tmp_path, "age;city;rent\n50,5;a,b;1,5\n1;c.d;2\n")
    columns = Columns({"age": Number(0, 101), "city": Category(("a,b", "c.d"))})
    declared = Declaration(None, 2, "rent", columns=columns, target=Target(0, 3), decimal=",")
    split = load(path, declaration=declared).train
    np.testing.assert_allclose(split.inputs, [[0, 1, 0], [2 / 101 - 1, 0, 1]], atol=1e-6)
    np.testing.assert_allclose(split.targets, [0, 1 / 3], rtol=1e-6)
    thousands = Declaration(classes=2, size=2, decimal=",", thousands=".")
    assert inputs(written(tmp_path, "x;label\n1.234,5;0\n1,5;1\n"), thousands) == [[1234.5], [1.5]]
    for text in ("1.234,5", "1.5"):  # points are no decimals where commas are
        path = written(tmp_path, f"x;label\n{text};0\n")
        assert "column 'x': not a finite number" in refusal(path, Declaration(classes=2, size=2, decimal=","))


def test_a_column_of_texts(tmp_path: Path) -> None:
    few = Numbering(tokens=3, words=50)
    path = written(tmp_path, 'id;review;stars\n7;"good; very";1.0\n8;;0\n')
    found = load(path, declaration=Declaration(classes=2, size=2, label="stars", text="review", numbering=few))
    assert found.train.inputs.tolist() == few.number(["good; very", ""]).tolist()
    assert (found.train.targets.tolist(), found.words) == ([1, 0], 50)
    misspelt = Declaration(classes=2, size=2, label="stars", text="reveiw")
    assert "text: there is no column 'reveiw'; did you mean 'review'" in refusal(path, misspelt)
    assert load(written(tmp_path, "\n \na,label\n1,0\n2,1\n"), declaration=TWO).train.targets.tolist() == [0, 1]
    long = written(tmp_path, f'text,label\n"{"word " * 40_000}",0\n')
    assert load(long, declaration=TEXT).train.inputs.shape == (1, 64)


@pytest.mark.parametrize(
    ("content", "says"),
    [
        ("", "is empty; its first line must name the columns"),
        ("a,label\n", "has a header but no rows"),
        ("a,b,a,label\n1,2,3,0\n", "must give each column a different name; column 3 has that of column 1"),
        ("a,b,7.25\n1,2,0\n", "the first line must name the columns; its field 3 is a number"),
        ('"a\nCANARY",label\n1,0\n', "the quotes in the first line, the header, do not match"),
        ("label\n0\n", "there is no column besides the label"),
        ("a,label\n1,0\n2\n\n3,0,9\n", "differs from the 2 of the header in rows 3 and 5"),
        ("n\u00e4me,label\n1,0\n".encode("latin-1"), "is not text in UTF-8"),
    ],
)
def test_no_table(tmp_path: Path, content: str | bytes, says: str) -> None:
    message = refusal(written(tmp_path, content), TWO).replace(str(tmp_path), "")
    assert says in message
    assert "7.25" not in message


def with_row(line: str, *, after: str = "") -> str:
    """A table of 60 rows, of which row 51 is this line, and all later ones end with a text."""
    rows = [f"{k % 2},text {k}" for k in range(60)]
    rows[50:] = [line, *(row + after for row in rows[51:])]
    return "\n".join(["label,text", *rows, ""])


@pytest.mark.parametrize("after", ["", ', "quoted"'])
@pytest.mark.parametrize("line", ['0, "CANARY', '0,"CANARY"" and', '"0,CANARY'])
def test_a_quote_without_an_end_takes_in_no_other_record(tmp_path: Path, line: str, after: str) -> None:
    message = refusal(written(tmp_path, with_row(line, after=after)), TEXT)
    assert "people.csv: in row 52 (rows are numbered as in an editor) a quote opens a field" in message


@pytest.mark.parametrize("text", ['"two\nlines"', '"a ""b"" c"', 'a "b" c', 'a"', '5" screen', '""', '"a\r\n""b"'])
def test_quotes_that_change_no_other_record(tmp_path: Path, text: str) -> None:
    found = load(written(tmp_path, with_row(f"1,{text}")), declaration=TEXT).train
    other = load(written(tmp_path, with_row("1,")), declaration=TEXT).train
    assert found.targets.tolist() == other.targets.tolist()
    assert np.delete(found.inputs, 50, axis=0).tolist() == np.delete(other.inputs, 50, axis=0).tolist()


@pytest.mark.parametrize(("separator", "name"), [(";", "p.csv"), ("\t", "P.TSV.gz"), (",", "p.txt.GZ")])
def test_what_separates_the_names_in_the_header_separates_all_fields(tmp_path: Path, separator: str, name: str) -> None:
    header, *rows = (("\ufeffa", '"b ""c"", d;e"', "label"), ("1", "2", "0"), ('" 3"', "4", "1"))
    content = "\r\n".join(separator.join(row) for row in (header, *rows, ())).encode() + b"\r\n"
    path = written(tmp_path, gzip.compress(content) if name.lower().endswith("gz") else content, name)
    assert inputs(path) == [[1, 2], [3, 4]]


def test_a_damaged_gzip_is_not_quoted(tmp_path: Path) -> None:
    for content in (gzip.compress(CONTENT.encode())[:-10], b"\x9eSECRET,label\n1,0\n"):
        path = written(tmp_path, content, "cut.csv.gz")
        assert refusal(path, DECLARED) == f"{path} cannot be read: its .gz format is damaged or cut; copy it again"


LARGE = 2**60 + 1  # no double has this value
ROWS: list[dict[str, Any]] = [
    {"age": 40, "code": "01", "wage": 1.5, "member": True, "id": LARGE, "label": 1},
    {"age": None, "code": "NA", "wage": 2.0, "member": None, "id": None, "label": 0},
]
TYPED = Declaration(
    classes=2,
    size=2,
    columns=Columns.of(
        {
            "age": {"kind": "number", "low": 0, "high": 80, "missing": "indicator"},
            "code": {"kind": "category", "categories": ["1", "01"], "missing": "own category"},
            "wage": {"kind": "number"},
            "member": {"kind": "category", "categories": [True, False], "missing": "own category"},
            "id": {"kind": "category", "categories": [str(LARGE - 1), str(LARGE)], "missing": "own category"},
        }
    ),
)


def typed_table(folder: Path, suffix: str, rows: list[dict[str, Any]]) -> str:
    path = folder / f"people{suffix}"
    frame = pandas.DataFrame({name: pandas.Series([row[name] for row in rows], dtype=object) for name in rows[0]})
    if suffix == ".csv":
        frame.to_csv(path, index=False)
    elif suffix == ".parquet":
        frame.to_parquet(path, index=False)
    elif suffix == ".xlsx":
        pytest.importorskip("openpyxl", reason="openpyxl is not installed")
        texts = frame.assign(id=[None if value is None else str(value) for value in frame["id"]])  # cells hold doubles
        texts.to_excel(path, index=False)
    else:
        lines = "\n".join(json.dumps(row) for row in rows).encode()
        path.write_bytes(gzip.compress(lines) if suffix.endswith(".gz") else lines)
    return str(path)


@pytest.mark.parametrize("suffix", [".csv", ".jsonl", ".jsonl.gz", ".parquet", ".xlsx"])
def test_values_are_read_as_declared_in_every_format(tmp_path: Path, suffix: str) -> None:
    split = load(typed_table(tmp_path, suffix, ROWS), declaration=TYPED).train
    assert split.targets.tolist() == [1, 0]
    assert split.inputs.tolist() == [[0, 0, 0, 1, 0, 1.5, 1, 0, 0, 0, 1, 0], [0, 1, 0, 0, 1, 2, 0, 0, 1, 0, 0, 1]]
    alone = load(typed_table(tmp_path, suffix, ROWS[:1]), declaration=TYPED).train
    assert (alone.inputs[0] == split.inputs[0]).all(), "a value of one row changes no other row"


def test_a_name_that_a_line_of_json_leaves_out_is_a_missing_value(tmp_path: Path) -> None:
    (tmp_path / "a.jsonl").write_text('{"x": 1, "label": 0}\n{"label": 1}\n{"label": 1, "x": null}\n')
    declared = Declaration(
        classes=2, size=3, columns=Columns.of({"x": {"kind": "number", "low": 0, "high": 2, "missing": "indicator"}})
    )
    inputs = load(str(tmp_path / "a.jsonl"), declaration=declared).train.inputs
    assert inputs[:, 1].tolist() == [0, 1, 1], "that the value is missing is an input of its own"


@pytest.mark.parametrize(("suffix", "number"), [(".jsonl", 4), (".parquet", 4), (".xlsx", 5)])
def test_wrong_rows_are_named_as_they_are_shown_without_their_values(tmp_path: Path, suffix: str, number: int) -> None:
    rows = [*ROWS, dict.fromkeys(ROWS[0]), {**ROWS[0], "age": None, "code": "CANARY", "label": 7}]
    message = refusal(typed_table(tmp_path, suffix, rows), TYPED)
    assert f"column 'code': none of its declared categories in row {number}" in message
    assert ("column 'label': a value is missing in row 3" in message) is (suffix != ".xlsx")
    assert "column 'label': not in 0..1" in message


@pytest.mark.parametrize(
    ("content", "says"),
    [
        ("", "is empty"),
        (
            '{"a": 1, "label": 0}\n\n{"a": CANARY}\n[1]\n{"b": 2}\n{"a": [1]}',
            r"no object of plain values .* in rows 3, 4, 5 and 6; .* all names on the first one, with null where .*$",
        ),
        ("CANARY", "no object of plain values by the names of the first line in row 1; .* has no value$"),
        ('{"0.25": 1, "label": 0}', "its field 1 is a number"),
    ],
)
def test_lines_that_are_no_records(tmp_path: Path, content: str, says: str) -> None:
    assert re.search(says, refusal(written(tmp_path, content, "a.jsonl"), TWO))


@pytest.mark.parametrize("suffix", [".parquet", ".xlsx"])
def test_damaged_files_and_absent_packages(tmp_path: Path, suffix: str, monkeypatch: pytest.MonkeyPatch) -> None:
    package = "pyarrow" if suffix == ".parquet" else "openpyxl"
    path = tmp_path / f"a{suffix}"
    path.write_bytes(b"CANARY")
    with monkeypatch.context() as patch:
        patch.setitem(sys.modules, package, None)
        with pytest.raises(DataError, match=rf"is read by {package}: pip install 'noisette\[tables\]', or write a CSV"):
            load(str(path), declaration=TYPED)
    pytest.importorskip(package, reason=f"{package} is not installed")
    assert f"a{suffix} is no {suffix} file that can be read" in refusal(str(path), TYPED)
