from __future__ import annotations

import math
from pathlib import Path

import numpy as np
import pytest

from noisette.data import DataError, DataSet, Declaration, Split, load
from noisette.data.dataset import Target

HOURS = Declaration(target=Target(0, 100, "h"), size=3, label="hours")


def written(tmp_path: Path, content: str) -> str:
    (tmp_path / "work.csv").write_text(content)
    return str(tmp_path / "work.csv")


def test_numbers_to_predict_are_clipped_and_scaled(tmp_path: Path) -> None:
    found = load(written(tmp_path, "x,hours\n1,25\n2,-7\n3,1e9\n"), declaration=HOURS)
    assert found.train.targets.dtype == np.float32
    assert found.train.targets.tolist() == [-0.5, -1, 1]
    assert (found.classes, found.target) == (1, Target(0, 100, "h"))


def test_predictions_come_back_in_the_unit() -> None:
    target = Target(-40, 60)
    values = np.linspace(-40, 60, 23)
    np.testing.assert_allclose(target.unscaled(target.scaled(values)), values, atol=1e-4)


def test_a_number_that_is_missing_or_none(tmp_path: Path) -> None:
    with pytest.raises(DataError) as caught:
        load(written(tmp_path, "x,hours\n1,\n2,CANARY\n3,4\n"), declaration=HOURS)
    message = str(caught.value)
    assert "column 'hours': a value is missing in row 1" in message
    assert "column 'hours': not a number in row 2" in message
    assert "CANARY" not in message


def test_from_arrays(tmp_path: Path) -> None:
    np.savez(tmp_path / "a.npz", X=np.ones((2, 3)), y=np.array([50, 1000]))
    found = load(str(tmp_path / "a.npz"), declaration=Declaration(target=Target(0, 100), size=2))
    assert found.train.targets.tolist() == [0, 1]
    np.savez(tmp_path / "b.npz", X=np.ones((2, 3)), y=np.array([50, math.nan]))
    with pytest.raises(DataError, match="expected finite real numbers"):
        load(str(tmp_path / "b.npz"), declaration=Declaration(target=Target(0, 100), size=2))


@pytest.mark.parametrize("bounds", [(1, 1), (2, 1), (0, math.inf), (math.nan, 1)])
def test_bounds_are_finite_and_ascending(bounds: tuple[float, float]) -> None:
    with pytest.raises(DataError, match="expected finite low < high"):
        Target(*bounds)


def test_classes_and_a_target_contradict_each_other() -> None:
    with pytest.raises(DataError, match="declare one of them"):
        Declaration(classes=2, target=Target(0, 1))


def test_targets_outside_of_the_scale_are_refused() -> None:
    split = Split(np.zeros((2, 1), np.float32), np.array([0, 1.5], np.float32))
    with pytest.raises(DataError, match=r"train has 1 targets outside -1\.\.1"):
        DataSet("d", split, None, classes=1, declared_size=2, target=Target(0, 1))


def test_a_folder_of_images_has_classes(tmp_path: Path) -> None:
    with pytest.raises(DataError, match="images, which have classes"):
        load(str(tmp_path), declaration=Declaration(target=Target(0, 1), size=3))
