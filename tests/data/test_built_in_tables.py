"""Adult with the quirks of its files; ADBench's sizes, splits and data-independent transforms."""

from __future__ import annotations

import gzip
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest

from noisette.data import DataError, load, names
from noisette.data.built_in_tables import ANOMALIES, Anomalies

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


# Rows for training of the paper's tabular study, which are 80 % of the rows.
PRINTED = {"aloi": 39_627, "campaign": 32_950, "celeba": 162_079, "donors": 495_460, "magic": 15_216}
PRINTED |= {"shuttle": 39_277, "skin": 196_045, "yeast": 1_187}
X, Y = np.arange(20.0).reshape(10, 2), np.array([0, 1] * 5)


@pytest.fixture
def small(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[..., Path]:
    """Writes a set of ten rows that replaces yeast, and returns the folder of data sets."""

    def write(**arrays: np.ndarray) -> Path:
        (tmp_path / "adbench").mkdir()
        np.savez(tmp_path / "adbench/47_yeast.npz", **arrays)  # pyright: ignore[reportArgumentType]
        monkeypatch.setitem(ANOMALIES, "yeast", Anomalies("47_yeast.npz", "0", 10, 2))
        return tmp_path

    return write


def test_sizes_are_those_of_the_paper_and_transforms_do_not_depend_on_the_data() -> None:
    assert {name: ANOMALIES[name].size for name in PRINTED} == PRINTED
    assert {f"adbench-{name}" for name in ANOMALIES} <= set(names())
    shares, counts = ANOMALIES["aloi"].transform, ANOMALIES["shuttle"].transform
    np.testing.assert_allclose(shares(np.array([0.0, 0.25, 1.0, -0.1])), [0, 0.5, 1, 0])
    np.testing.assert_allclose(counts(np.array([0, 100, -100])), [0, np.log(1 + 2**0.5), -np.log(1 + 2**0.5)])
    assert ANOMALIES["magic"].transform(X) is X


def test_four_fifths_are_for_training_and_the_split_is_always_the_same(small: Callable[..., Path]) -> None:
    folder = small(X=X, y=Y)
    found, again = (load("adbench-yeast", data_dir=folder) for _ in range(2))
    assert found.test is not None
    assert (found.classes, found.declared_size) == (2, 8)
    assert (len(found.train.inputs), len(found.test.inputs)) == (8, 2)
    both = np.concatenate([found.train.inputs, found.test.inputs])
    assert sorted(map(tuple, both)) == sorted(map(tuple, X))
    assert (found.train.targets == (found.train.inputs[:, 0] / 2 % 2)).all(), "labels stay with their rows"
    assert "fixed shuffle" in found.note
    assert (found.train.inputs == again.train.inputs).all()
    assert found.train.inputs[:, 0].tolist() != sorted(found.train.inputs[:, 0])


@pytest.mark.parametrize(
    ("arrays", "told"),
    [
        ({"X": X[:9], "y": Y[:9]}, r"rows of shape \(9, 2\).*publishes 10 rows of 2 numbers"),
        ({"X": X, "y": Y[:9]}, r"labels of shape \(9,\)"),
        ({"X": X}, "damaged or not the published file"),
        ({"X": X, "y": Y + 1}, "labels outside 0..1"),
        ({}, r"put 47_yeast.npz from https://.*ADBench.* into .*adbench"),
    ],
)
def test_other_contents_are_refused(small: Callable[..., Path], arrays: dict[str, np.ndarray], told: str) -> None:
    folder = small(**arrays)
    if not arrays:
        (folder / "adbench/47_yeast.npz").unlink()
    with pytest.raises(DataError, match=told):
        load("adbench-yeast", data_dir=folder)


@pytest.mark.parametrize("name", ANOMALIES)
def test_real_files(name: str, real: Callable[[str], Path]) -> None:
    found = load(f"adbench-{name}", data_dir=real("adbench"))
    assert found.train.inputs.shape == (ANOMALIES[name].size, ANOMALIES[name].columns)
    assert np.isfinite(found.train.inputs).all()
    assert 0.02 < found.train.targets.mean() < 0.4
