"""Tables whose values have types of their own: JSON lines, Parquet and Excel give what a CSV gives."""

from __future__ import annotations

import gzip
import json
import sys
from pathlib import Path
from typing import Any

import pandas
import pytest

from noisette.data import DataError, Declaration, load
from noisette.data.columns import Columns

LARGE = 2**60 + 1  # no double has this value
ROWS: list[dict[str, Any]] = [
    {"age": 40, "code": "01", "wage": 1.5, "member": True, "id": LARGE, "label": 1},
    {"age": None, "code": "NA", "wage": 2.0, "member": None, "id": None, "label": 0},
]
DECLARED = Declaration(
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


def written(folder: Path, suffix: str, rows: list[dict[str, Any]]) -> str:
    path = folder / f"people{suffix}"
    frame = pandas.DataFrame({name: pandas.Series([row[name] for row in rows], dtype=object) for name in rows[0]})
    if suffix == ".csv":
        frame.to_csv(path, index=False)
    elif suffix == ".parquet":
        pytest.importorskip("pyarrow", reason="pyarrow is not installed")
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
    split = load(written(tmp_path, suffix, ROWS), declaration=DECLARED).train
    assert split.targets.tolist() == [1, 0]
    assert split.inputs.tolist() == [
        [0, 0, 0, 1, 0, 1.5, 1, 0, 0, 0, 1, 0],
        [0, 1, 0, 0, 1, 2, 0, 0, 1, 0, 0, 1],
    ]
    alone = load(written(tmp_path, suffix, ROWS[:1]), declaration=DECLARED).train
    assert (alone.inputs[0] == split.inputs[0]).all(), "a value of one row changes no other row"


@pytest.mark.parametrize("suffix", [".jsonl", ".parquet", ".xlsx"])
def test_wrong_rows_are_named_without_their_values(tmp_path: Path, suffix: str) -> None:
    rows = [*ROWS, {**ROWS[0], "age": None, "code": "CANARY", "label": 7}]
    with pytest.raises(DataError) as caught:
        load(written(tmp_path, suffix, rows), declaration=DECLARED)
    assert "column 'code': none of its declared categories in row 3" in str(caught.value)
    assert "column 'label': not in 0..1" in str(caught.value)
    assert "CANARY" not in str(caught.value)


@pytest.mark.parametrize(
    ("content", "says"),
    [
        ("", "is empty"),
        ('{"a": 1}\n{"a": CANARY}\n[1]\n{"b": 2}\n{"a": [1]}', r"no object of plain values .* in rows 2, 3, 4 and 5;"),
        ("CANARY", "no object of plain values by the names of the first line in row 1;"),
        ('{"0.25": 1, "label": 0}', "its field 1 is a number"),
    ],
)
def test_lines_that_are_no_records(tmp_path: Path, content: str, says: str) -> None:
    (tmp_path / "a.jsonl").write_text(content)
    with pytest.raises(DataError, match=says) as caught:
        load(str(tmp_path / "a.jsonl"), declaration=DECLARED)
    assert "CANARY" not in str(caught.value)


@pytest.mark.parametrize("suffix", [".parquet", ".xlsx"])
def test_damaged_files_and_absent_packages(tmp_path: Path, suffix: str, monkeypatch: pytest.MonkeyPatch) -> None:
    package = "pyarrow" if suffix == ".parquet" else "openpyxl"
    path = tmp_path / f"a{suffix}"
    path.write_bytes(b"CANARY")
    with monkeypatch.context() as patch:
        patch.setitem(sys.modules, package, None)
        with pytest.raises(DataError, match=rf"is read by {package}: pip install 'noisette\[tables\]', or write a CSV"):
            load(str(path), declaration=DECLARED)
    pytest.importorskip(package, reason=f"{package} is not installed")
    with pytest.raises(DataError, match=rf"a{suffix} is no {suffix} file that can be read") as caught:
        load(str(path), declaration=DECLARED)
    assert "CANARY" not in str(caught.value)


def test_an_absent_test_file(tmp_path: Path) -> None:
    declared = Declaration(classes=2, size=2, test=tmp_path / "none.parquet")
    (tmp_path / "a.csv").write_text("x,label\n1,0\n")
    with pytest.raises(DataError, match=r"none.parquet cannot be read: there is no such file"):
        load(str(tmp_path / "a.csv"), declaration=declared)
