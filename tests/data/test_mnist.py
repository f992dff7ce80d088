from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest

from noisette.data import DataError, load


@pytest.mark.parametrize("name", ["mnist", "fashion-mnist", "kmnist"])
def test_official_files(name: str, tmp_path: Path, write_idx_set: Callable[..., None]) -> None:
    write_idx_set(tmp_path / name)
    found = load(name, data_dir=tmp_path)
    assert (found.name, found.classes, found.declared_size, found.note) == (name, 10, 60_000, "")
    assert found.train.inputs.shape == (12, 1, 28, 28)
    assert found.train.inputs.dtype == np.float32
    np.testing.assert_allclose(found.train.inputs[:, 0, 3, 4], np.arange(12) / 255, rtol=1e-6)
    assert found.train.targets.dtype == np.int64
    assert found.train.targets.tolist() == [0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 0, 1]
    assert found.test is not None
    assert found.test.inputs.shape == (5, 1, 28, 28)


def test_the_note_of_kmnist_names_the_partial_copy(tmp_path: Path, write_idx_set: Callable[..., None]) -> None:
    write_idx_set(tmp_path / "kmnist", train="train-first7011")
    found = load("kmnist", data_dir=tmp_path)
    assert found.declared_size == 7_011
    assert "not comparable" in found.note
    assert len(found.train.inputs) == 12


def test_the_whole_of_kmnist_takes_precedence_over_its_part(tmp_path: Path, write_idx_set: Callable[..., None]) -> None:
    write_idx_set(tmp_path / "kmnist", train="train-first7011")
    write_idx_set(tmp_path / "kmnist")
    assert load("kmnist", data_dir=tmp_path).declared_size == 60_000


def test_inputs_and_labels_of_different_length(
    tmp_path: Path, write_idx_set: Callable[..., None], idx_of: Callable[[np.ndarray], bytes]
) -> None:
    write_idx_set(tmp_path / "mnist")
    (tmp_path / "mnist" / "train-labels-idx1-ubyte.gz").write_bytes(idx_of(np.zeros(11)))
    with pytest.raises(DataError, match="mnist: train has 12 inputs but 11 labels"):
        load("mnist", data_dir=tmp_path)


def test_labels_out_of_range(
    tmp_path: Path, write_idx_set: Callable[..., None], idx_of: Callable[[np.ndarray], bytes]
) -> None:
    write_idx_set(tmp_path / "mnist")
    (tmp_path / "mnist" / "t10k-labels-idx1-ubyte.gz").write_bytes(idx_of(np.array([0, 1, 9, 10, 200])))
    with pytest.raises(DataError, match=r"test has 2 labels outside 0\.\.9, the first at index 3"):
        load("mnist", data_dir=tmp_path)
