"""ADBench's sizes, splits and data-independent transforms."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest

from noisette.data import DataError
from papers.bethune_2024.adbench import ANOMALIES, Anomalies, load
from papers.bethune_2024.table_tabular import PRINTED

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
    assert {name: ANOMALIES[name].size for name in PRINTED} == {name: size for name, (size, *_) in PRINTED.items()}
    shares, counts = ANOMALIES["aloi"].transform, ANOMALIES["shuttle"].transform
    np.testing.assert_allclose(shares(np.array([0.0, 0.25, 1.0, -0.1])), [0, 0.5, 1, 0])
    np.testing.assert_allclose(counts(np.array([0, 100, -100])), [0, np.log(1 + 2**0.5), -np.log(1 + 2**0.5)])
    assert ANOMALIES["magic"].transform(X) is X


def test_four_fifths_are_for_training_and_the_split_is_always_the_same(small: Callable[..., Path]) -> None:
    folder = small(X=X, y=Y)
    found, again = (load("adbench-yeast", folder) for _ in range(2))
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
    ],
)
def test_other_contents_are_refused(small: Callable[..., Path], arrays: dict[str, np.ndarray], told: str) -> None:
    folder = small(**arrays)
    with pytest.raises(DataError, match=told):
        load("adbench-yeast", folder)
