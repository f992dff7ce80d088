from __future__ import annotations

import zipfile
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest

from noisette.data import DataError, load

Idx = Callable[[np.ndarray], bytes]


@pytest.fixture
def archive(tmp_path: Path) -> Path:
    folder = tmp_path / "emnist-letters"
    folder.mkdir()
    return folder / "gzip.zip"


def test_official_images_are_transposed_and_labels_start_at_zero(tmp_path: Path, archive: Path, idx_of: Idx) -> None:
    upright = np.random.default_rng(0).integers(0, 256, (4, 28, 28))
    with zipfile.ZipFile(archive, "w") as opened:
        for split in ("train", "test"):
            opened.writestr(f"gzip/emnist-letters-{split}-images-idx3-ubyte.gz", idx_of(np.swapaxes(upright, 1, 2)))
            opened.writestr(f"gzip/emnist-letters-{split}-labels-idx1-ubyte.gz", idx_of(np.array([1, 26, 2, 3])))
    found = load("emnist-letters", data_dir=tmp_path)
    assert (found.classes, found.declared_size, found.note) == (26, 124_800, "")
    assert found.train.targets.tolist() == [0, 25, 1, 2]
    np.testing.assert_allclose(found.train.inputs[:, 0], upright / 255, rtol=1e-6)
    assert sorted(path.name for path in archive.parent.iterdir()) == ["gzip.zip"]  # nothing was unpacked


def test_subset_is_upright_already(tmp_path: Path, write_idx_set: Callable[..., None]) -> None:
    write_idx_set(tmp_path / "emnist-letters", train="train-subset", test="test-subset")
    found = load("emnist-letters", data_dir=tmp_path)
    assert (found.declared_size, found.train.targets[0]) == (26_000, 0)
    assert "not comparable" in found.note


def test_archive_without_the_letters(tmp_path: Path, archive: Path) -> None:
    with zipfile.ZipFile(archive, "w") as opened:
        opened.writestr("gzip/readme.txt", "nothing")
    with pytest.raises(DataError, match=r"gzip.zip is damaged or not EMNIST .*emnist-letters-train-images"):
        load("emnist-letters", data_dir=tmp_path)


def test_damaged_archive(tmp_path: Path, archive: Path) -> None:
    archive.write_bytes(b"PK\x03\x04 and then nothing")
    with pytest.raises(DataError, match=r"gzip.zip is damaged"):
        load("emnist-letters", data_dir=tmp_path)
