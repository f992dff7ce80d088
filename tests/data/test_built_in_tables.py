"""Adult, with the quirks of its files."""

from __future__ import annotations

import gzip
from pathlib import Path

import pytest

from noisette.data import DataError, load

ROWS = [
    "39, State-gov, 77516, Bachelors, 13, Never-married, Adm-clerical, Not-in-family, White, Male, 2174, 0, 40, "
    "United-States, <=50K",
    "90, ?, 77516, HS-grad, 9, Widowed, ?, Unmarried, Black, Female, 99999, 4356, 100, ?, >50K",
]


def write(folder: Path, train: list[str], *, zipped: bool = False) -> None:
    folder.mkdir()
    for name, rows in (("adult.data", train), ("adult.test", ["|1x3 Cross validator", *(f"{row}." for row in ROWS)])):
        content = ("\n".join(rows) + "\n\n").encode()
        if zipped:
            (folder / f"{name}.gz").write_bytes(gzip.compress(content))
        else:
            (folder / name).write_bytes(content)


@pytest.mark.parametrize("zipped", [False, True])
def test_official_files_with_their_quirks_and_one_record_by_hand(tmp_path: Path, zipped: bool) -> None:
    write(tmp_path / "adult", ROWS, zipped=zipped)
    found = load("adult", data_dir=tmp_path)
    assert found.test is not None
    assert (found.classes, found.declared_size, found.note) == (2, 32_561, "")
    assert found.train.targets.tolist() == found.test.targets.tolist() == [0, 1]
    assert (found.train.inputs == found.test.inputs).all()
    first, second = found.train.inputs
    assert first.shape == (113,)  # 6 numbers and 8 + 16 + 7 + 14 + 6 + 5 + 2 + 41 categories and 8 times unknown
    assert first[0] == pytest.approx(2 * (39 - 17) / (90 - 17) - 1, abs=1e-6)
    assert first[1:10].tolist() == [0, 0, 0, 0, 0, 1, 0, 0, 0]  # State-gov is the sixth
    assert second[1:10].tolist() == [0, 0, 0, 0, 0, 0, 0, 0, 1]  # unknown is the last
    assert second[0] == 1
    numeric = [0, 10, 28, 68, 69, 70]  # age, fnlwgt, education-num, capital-gain, capital-loss, hours-per-week
    categories = [place for place in range(113) if place not in numeric]
    assert first[categories].sum() == second[categories].sum() == 8
    assert second[68] == 1  # the highest capital gain is clipped to the declared range
    assert first[70] == pytest.approx(-0.2, abs=1e-6)


@pytest.mark.parametrize(
    ("rows", "says"),
    [
        ([*ROWS, ROWS[0].replace("State-gov", "Pirate")], "'workclass': none of its declared categories in row 3"),
        ([ROWS[0], ROWS[1][:30]], r"adult.data: .*differs from the 15 of the header in row 2"),
    ],
)
def test_damaged_records(tmp_path: Path, rows: list[str], says: str) -> None:
    write(tmp_path / "adult", rows)
    with pytest.raises(DataError, match=says) as caught:
        load("adult", data_dir=tmp_path)
    assert "Pirate" not in str(caught.value)
