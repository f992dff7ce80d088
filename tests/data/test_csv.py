from __future__ import annotations

import gzip
from pathlib import Path

import numpy as np
import pytest

from noisette.data import DataError, Declaration, load
from noisette.data.dataset import Target

DECLARED = Declaration(
    classes=("no", "yes"), size=100, ranges={"age": (0, 100)}, categories={"city": ("Rome", "Oslo", "")}
)
CONTENT = "age,city,height,label\n50,Oslo,1.5,yes\n150,Rome,2,no\n0,,-3e2,no\n"


def written(tmp_path: Path, content: str, name: str = "people.csv") -> str:
    path = tmp_path / name
    path.write_text(content, encoding="utf-8")
    return str(path)


def refusal(path: str, declaration: Declaration) -> str:
    with pytest.raises(DataError) as caught:
        load(path, declaration=declaration)
    return str(caught.value)


def test_columns_as_declared(tmp_path: Path) -> None:
    found = load(written(tmp_path, CONTENT), declaration=DECLARED)
    assert (found.name, found.classes, found.declared_size, found.test) == ("people.csv", 2, 100, None)
    assert found.train.inputs.dtype == np.float32
    assert found.train.inputs.tolist() == [[0, 0, 1, 0, 1.5], [1, 1, 0, 0, 2], [-1, 0, 0, 1, -300]]
    assert found.train.targets.tolist() == [1, 0, 0]


def test_gzipped_with_byte_order_mark_quotes_and_empty_lines(tmp_path: Path) -> None:
    path = tmp_path / "PEOPLE.CSV.GZ"
    path.write_bytes(gzip.compress(b'\xef\xbb\xbflabel,"a ""b"", c",x\r\n\r\n0,"2",1\r\n1,4,3\r\n\r\n'))
    found = load(str(path), declaration=Declaration(classes=2, size=2))
    assert found.train.inputs.tolist() == [[2, 1], [4, 3]]
    assert found.train.targets.tolist() == [0, 1]


def test_test_split_in_another_order_of_columns(tmp_path: Path) -> None:
    train = written(tmp_path, "a,b,label\n1,2,0\n")
    test = written(tmp_path, "label,b,a\n1,20,10\n", "later.csv")
    found = load(train, declaration=Declaration(classes=2, size=1, test=Path(test)))
    assert found.test is not None
    assert found.test.inputs.tolist() == [[10, 20]]
    assert found.test.targets.tolist() == [1]


def test_test_split_with_other_columns(tmp_path: Path) -> None:
    test = written(tmp_path, "a,c,label\n1,2,0\n", "later.csv")
    declared = Declaration(classes=2, size=1, test=Path(test))
    assert "later.csv must have the columns of people.csv" in refusal(written(tmp_path, "a,b,label\n1,2,0\n"), declared)


def test_problems_of_the_test_split_name_its_file(tmp_path: Path) -> None:
    test = written(tmp_path, "a,label\n,0\n", "later.csv")
    declared = Declaration(classes=2, size=1, test=Path(test))
    message = refusal(written(tmp_path, "a,label\n1,0\n"), declared)
    assert "later.csv: column 'a': a value is missing in row 1" in message


def test_classes_and_size_must_be_declared(tmp_path: Path) -> None:
    message = refusal(written(tmp_path, CONTENT), Declaration())
    assert "2 problems" in message
    assert "declare classes" in message
    assert "declare size" in message


def test_all_problems_at_once_by_row_and_column(tmp_path: Path) -> None:
    content = (
        "age,city,height,label\n,Oslo,1.5,yes\n30,Paris,tall,no\n40,Rome, nan ,maybe\n50,Rome,inf,\n60,Rome,1e39,no\n"
    )
    message = refusal(written(tmp_path, content), DECLARED)
    assert "5 problems" not in message
    assert "6 problems" in message
    assert "row 1 is the first below the header" in message
    for line in (
        "column 'age': a value is missing in row 1;",
        "column 'city': none of its declared categories in row 2",
        "column 'height': a value is missing in row 3;",
        "column 'height': not a finite number (for a column of text, declare its categories) in rows 2, 4 and 5",
        "column 'label': a value is missing in row 4;",
        "column 'label': none of the declared classes in row 3",
    ):
        assert line in message


def test_errors_contain_no_values(tmp_path: Path) -> None:
    content = "age,city,height,label\nCANARY1,CANARY2,CANARY3,CANARY4\n"
    assert "CANARY" not in refusal(written(tmp_path, content), DECLARED)


def test_text_label_without_names(tmp_path: Path) -> None:
    message = refusal(written(tmp_path, "x,label\n1,cat\n2,dog\n3,0\n"), Declaration(classes=2, size=3))
    assert "column 'label': not in 0..1 (if labels are text, declare classes as the list of their names)" in message
    assert "in rows 1 and 2" in message


@pytest.mark.parametrize("label", ["2", "-1", "0.5", "1e0"])
def test_label_out_of_range(tmp_path: Path, label: str) -> None:
    message = refusal(written(tmp_path, f"x,label\n1,0\n2,{label}\n"), Declaration(classes=2, size=3))
    assert "column 'label': not in 0..1" in message
    assert message.endswith("in row 2")


def test_declared_columns_that_are_absent(tmp_path: Path) -> None:
    declared = Declaration(classes=2, size=3, label="outcome", ranges={"agge": (0, 1)}, categories={"zzz": ("a", "b")})
    message = refusal(written(tmp_path, "age,label\n1,0\n"), declared)
    assert "label: there is no column 'outcome'; it has 'age', 'label'" in message
    assert "ranges: there is no column 'agge'; did you mean 'age'?" in message
    assert "categories: there is no column 'zzz'" in message


@pytest.mark.parametrize(
    ("content", "says"),
    [
        ("", "is empty; its first line must name the columns"),
        ("a,label\n", "has a header but no rows"),
        ("a,a,label\n1,2,0\n", "must give each column a different name"),
        ("a,,label\n1,2,0\n", "must give each column a different name"),
        ("a,b,7.25\n1,2,0\n", "the first line must name the columns; its field 3 is a number"),
        ('a;b;"7,25"\n1;2;0\n', "the first line must name the columns; its field 3 is a number"),
        ('"a\nCANARY",label\n1,0\n', "the quotes in the first line, the header, do not match"),
        ('a,"label\nCANARY,0\n', "the quotes in the first line, the header, do not match"),
        ("label\n0\n", "there is no column besides the label"),
        ("a,label\n1,0\n2\n3,0,9\n", "differs from the 2 of the header in rows 2 and 3"),
    ],
)
def test_no_table(tmp_path: Path, content: str, says: str) -> None:
    message = refusal(written(tmp_path, content), Declaration(classes=2, size=3)).replace(str(tmp_path), "")
    assert says in message
    assert "CANARY" not in message
    assert "7.25" not in message


def with_row(line: str, *, after: str = "") -> str:
    """A table of 60 rows, of which row 51 is this line, and all later ones end with a text."""
    rows = [f"{k % 2},text {k}" for k in range(60)]
    rows[50:] = [line, *(row + after for row in rows[51:])]
    return "\n".join(["label,text", *rows, ""])


@pytest.mark.parametrize("after", ["", ', "quoted"', ' "quoted" text'])
@pytest.mark.parametrize("line", ['0,"CANARY', '0, "CANARY', '0,"CANARY""', '0,"CANARY"" and', '"0,CANARY'])
def test_a_quote_without_an_end_takes_in_no_other_record(tmp_path: Path, line: str, after: str) -> None:
    message = refusal(written(tmp_path, with_row(line, after=after)), Declaration(classes=2, size=60, text="text"))
    assert "people.csv: in row 51 (row 1 is the first below the first line) a quote opens a field" in message
    assert "CANARY" not in message.replace(str(tmp_path), "")


@pytest.mark.parametrize("text", ['"two\nlines"', '"a ""b"" c"', 'a "b" c', 'a"', '5" screen', '""', '"a\r\n""b"'])
def test_quotes_that_change_no_other_record(tmp_path: Path, text: str) -> None:
    declared = Declaration(classes=2, size=60, text="text")
    found = load(written(tmp_path, with_row(f"1,{text}")), declaration=declared).train
    other = load(written(tmp_path, with_row("1,")), declaration=declared).train
    assert found.targets.tolist() == other.targets.tolist()
    assert np.delete(found.inputs, 50, axis=0).tolist() == np.delete(other.inputs, 50, axis=0).tolist()


@pytest.mark.parametrize("name", ["p.tsv", "p.txt", "p.TSV.gz", "p.txt.gz"])
def test_tables_of_other_names(tmp_path: Path, name: str) -> None:
    content = b"x\tlabel\n1,5\t1\n2\t0\n"
    (tmp_path / name).write_bytes(gzip.compress(content) if name.endswith("gz") else content)
    found = load(str(tmp_path / name), declaration=Declaration(classes=2, size=2, decimal=","))
    assert found.train.inputs.tolist() == [[1.5], [2]]


def test_not_utf8(tmp_path: Path) -> None:
    path = tmp_path / "old.csv"
    path.write_bytes("näme,label\n1,0\n".encode("latin-1"))
    assert "is not text in UTF-8" in refusal(str(path), Declaration(classes=2, size=3))


def test_damaged_gzip(tmp_path: Path) -> None:
    path = tmp_path / "cut.csv.gz"
    path.write_bytes(gzip.compress(CONTENT.encode())[:-10])
    assert "cannot be read" in refusal(str(path), DECLARED)


def test_a_gzip_that_is_none_is_not_quoted(tmp_path: Path) -> None:
    path = tmp_path / "plain.csv.gz"
    path.write_bytes(b"\x9eSECRET,label\n1,0\n")
    message = refusal(str(path), DECLARED)
    assert message == f"{path} cannot be read: its .gz format is damaged or cut; copy it again"


def test_absent_test_file(tmp_path: Path) -> None:
    declared = Declaration(classes=2, size=3, test=tmp_path / "none.csv")
    assert "none.csv cannot be read: No such file" in refusal(written(tmp_path, "x,label\n1,0\n"), declared)


def test_width_does_not_depend_on_the_records(tmp_path: Path) -> None:
    few = load(written(tmp_path, "age,city,height,label\n1,Rome,1,no\n"), declaration=DECLARED)
    many = load(written(tmp_path, CONTENT), declaration=DECLARED)
    assert few.train.inputs.shape[1] == many.train.inputs.shape[1]
    assert few.declared_size == many.declared_size


@pytest.mark.parametrize("separator", [";", "\t", ","])
def test_what_separates_the_names_in_the_header_separates_all_fields(tmp_path: Path, separator: str) -> None:
    content = "\n".join(separator.join(row) for row in (("a", "b", "label"), ("1", "2", "0"), ('" 3"', "4", "1")))
    found = load(written(tmp_path, content), declaration=Declaration(classes=2, size=2))
    assert found.train.inputs.tolist() == [[1, 2], [3, 4]]


def test_separators_in_quoted_names_do_not_count(tmp_path: Path) -> None:
    path = written(tmp_path, '"a;b;c",label\n1,0\n')
    assert load(path, declaration=Declaration(classes=2, size=1)).train.inputs.tolist() == [[1]]


def test_labels_in_any_case_and_with_decimals(tmp_path: Path) -> None:
    named = load(written(tmp_path, "x,label\n1,YES\n2,no \n"), declaration=Declaration(classes=("No", "Yes"), size=2))
    assert named.train.targets.tolist() == [1, 0]
    listed = load(written(tmp_path, "x,label\n1,1.0\n2,0.0 \n"), declaration=Declaration(classes=("0", "1"), size=2))
    assert listed.train.targets.tolist() == [1, 0]
    numbered = load(written(tmp_path, "x,label\n1,1.0\n2,0.0\n"), declaration=Declaration(classes=2, size=2))
    assert numbered.train.targets.tolist() == [1, 0]


def test_a_long_text_in_a_field(tmp_path: Path) -> None:
    path = written(tmp_path, f'text,label\n"{"word " * 40_000}",0\n')
    assert load(path, declaration=Declaration(classes=2, size=1, text="text")).train.inputs.shape == (1, 64)


def test_a_comma_before_the_decimals_of_numbers_and_of_the_target(tmp_path: Path) -> None:
    path = written(tmp_path, "age;city;rent\n50,5;a,b;1,5\n1;c.d;2\n")
    declared = Declaration(
        size=2,
        label="rent",
        target=Target(0, 3),
        ranges={"age": (0, 101)},
        categories={"city": ("a,b", "c.d")},
        decimal=",",
    )
    split = load(path, declaration=declared).train
    np.testing.assert_allclose(split.inputs, [[0, 1, 0], [2 / 101 - 1, 0, 1]], atol=1e-6)
    np.testing.assert_allclose(split.targets, [0, 1 / 3], rtol=1e-6)


def test_points_are_no_decimals_where_commas_are(tmp_path: Path) -> None:
    declared = Declaration(classes=2, size=2, decimal=",")
    for text in ("1.234,5", "1.5"):
        assert "column 'x': not a finite number" in refusal(written(tmp_path, f"x;label\n{text};0\n"), declared)


def test_rows_without_a_label_are_left_out_where_this_is_declared(tmp_path: Path) -> None:
    path = written(tmp_path, "x,label\n1,yes \n2, \n3,NA\n,?\n4,No\n")
    declared = Declaration(classes=("no", "yes"), size=2, skip_unlabelled=True)
    split = load(path, declaration=declared).train
    assert (split.inputs.tolist(), split.targets.tolist()) == ([[1], [4]], [1, 0])
    assert "a value is missing" in refusal(path, Declaration(classes=("no", "yes"), size=2))


def test_a_class_may_have_the_name_of_a_missing_value(tmp_path: Path) -> None:
    path = written(tmp_path, "x,label\n1,none\n2,\n3,some\n")
    declared = Declaration(classes=("None", "some"), size=2, skip_unlabelled=True)
    assert load(path, declaration=declared).train.targets.tolist() == [0, 1]


def test_no_row_with_a_label(tmp_path: Path) -> None:
    declared = Declaration(classes=2, size=2, skip_unlabelled=True)
    assert "no row has a label" in refusal(written(tmp_path, "x,label\n1,\n"), declared)
    assert "row 1 is the first with a label" in refusal(written(tmp_path, "x,label\n1,\n1,7\n"), declared)
