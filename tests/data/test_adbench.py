"""ADBench's tables: their sizes, their split, and the data-independent transforms of their values."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest

from noisette.data import DataError, load, names
from noisette.data.built_in_tables import ANOMALIES as TABLES
from noisette.data.built_in_tables import Anomalies as Table

# Rows for training of the paper's tabular study, which are 80 % of the rows.
PRINTED = {
    "aloi": (39_627, 27),
    "campaign": (32_950, 62),
    "celeba": (162_079, 39),
    "donors": (495_460, 10),
    "magic": (15_216, 10),
    "shuttle": (39_277, 9),
    "skin": (196_045, 3),
    "yeast": (1_187, 8),
}


@pytest.fixture
def small(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[..., Path]:
    """Writes a set of ten rows that replaces yeast, and returns the folder of data sets."""

    def write(**arrays: np.ndarray) -> Path:
        (tmp_path / "adbench").mkdir()
        np.savez(tmp_path / "adbench/47_yeast.npz", **arrays)
        monkeypatch.setitem(TABLES, "yeast", Table("47_yeast.npz", "0", 10, 2))
        return tmp_path

    return write


ROWS, ANOMALIES = np.arange(20.0).reshape(10, 2), np.array([0, 1] * 5)


def test_sizes_are_those_of_the_paper() -> None:
    assert {name: (TABLES[name].size, TABLES[name].columns) for name in PRINTED} == PRINTED
    assert {f"adbench-{name}" for name in TABLES} <= set(names())


def test_four_fifths_are_for_training_and_no_row_is_in_both_parts(small: Callable[..., Path]) -> None:
    found = load("adbench-yeast", data_dir=small(X=ROWS, y=ANOMALIES))
    assert found.test is not None
    assert (found.classes, found.declared_size) == (2, 8)
    assert (len(found.train.inputs), len(found.test.inputs)) == (8, 2)
    both = np.concatenate([found.train.inputs, found.test.inputs])
    assert sorted(map(tuple, both)) == sorted(map(tuple, ROWS))
    assert (found.train.targets == (found.train.inputs[:, 0] / 2 % 2)).all(), "labels stay with their rows"
    assert "fixed shuffle" in found.note


def test_the_split_is_the_same_at_every_reading(small: Callable[..., Path]) -> None:
    folder = small(X=ROWS, y=ANOMALIES)
    once, again = (load("adbench-yeast", data_dir=folder) for _ in range(2))
    assert (once.train.inputs == again.train.inputs).all()
    assert once.train.inputs[:, 0].tolist() != sorted(once.train.inputs[:, 0])


def test_transforms_do_not_depend_on_the_data() -> None:
    shares, counts = TABLES["aloi"].transform, TABLES["shuttle"].transform
    np.testing.assert_allclose(shares(np.array([0.0, 0.25, 1.0, -0.1])), [0, 0.5, 1, 0])
    np.testing.assert_allclose(counts(np.array([0, 100, -100])), [0, np.log(1 + 2**0.5), -np.log(1 + 2**0.5)])
    assert TABLES["magic"].transform(ROWS) is ROWS


@pytest.mark.parametrize(
    ("arrays", "told"),
    [
        ({"X": ROWS[:9], "y": ANOMALIES[:9]}, r"rows of shape \(9, 2\).*publishes 10 rows of 2 numbers"),
        ({"X": ROWS, "y": ANOMALIES[:9]}, r"labels of shape \(9,\)"),
        ({"X": ROWS}, "damaged or not the published file"),
        ({"X": ROWS, "y": ANOMALIES + 1}, "labels outside 0..1"),
    ],
)
def test_other_contents_are_refused(small: Callable[..., Path], arrays: dict[str, np.ndarray], told: str) -> None:
    folder = small(**arrays)
    with pytest.raises(DataError, match=told):
        load("adbench-yeast", data_dir=folder)


def test_the_error_for_an_absent_file_says_where_to_put_it(tmp_path: Path) -> None:
    with pytest.raises(DataError, match=r"put 47_yeast.npz from https://.*ADBench.* into .*adbench"):
        load("adbench-yeast", data_dir=tmp_path)


@pytest.mark.parametrize("name", TABLES)
def test_real_files(name: str, real: Callable[[str], Path]) -> None:
    found = load(f"adbench-{name}", data_dir=real("adbench"))
    assert found.train.inputs.shape == (TABLES[name].size, TABLES[name].columns)
    assert np.isfinite(found.train.inputs).all()
    assert 0.02 < found.train.targets.mean() < 0.4
