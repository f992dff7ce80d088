"""Tests of data sets use neither the network nor the user's cache, and real files only where they ask for them."""

import gzip
import os
import struct
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pooch
import pytest

REAL = os.environ.get("NOISETTE_DATA")


@pytest.fixture(autouse=True)
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """An empty folder in the place of the user's cache; nothing can be downloaded."""
    empty = tmp_path / "cache"

    def unreachable(url: str, **settings: object) -> str:
        raise ConnectionError(f"no network to get {url}")

    monkeypatch.delenv("NOISETTE_DATA", raising=False)
    monkeypatch.setattr(pooch, "os_cache", lambda project: empty)
    monkeypatch.setattr(pooch, "retrieve", unreachable)
    return empty


@pytest.fixture
def real() -> Callable[[str], Path]:
    """Gives the folder of all real data sets to a test that needs the named one."""

    def folder(name: str) -> Path:
        if not REAL:
            pytest.skip("NOISETTE_DATA is not set: it must be a folder with the files of real data sets")
        if not (Path(REAL) / name).is_dir():
            pytest.skip(f"NOISETTE_DATA has no folder {name}")
        return Path(REAL)

    return folder


def idx_bytes(array: np.ndarray) -> bytes:
    header = struct.pack(">BBBB", 0, 0, 8, array.ndim) + struct.pack(f">{array.ndim}I", *array.shape)
    return gzip.compress(header + array.astype(np.uint8).tobytes())


@pytest.fixture
def idx_of() -> Callable[[np.ndarray], bytes]:
    return idx_bytes


@pytest.fixture
def write_idx_set() -> Callable[..., None]:
    """Writes four idx files: per split ``count`` images 28 x 28 of which image i is all i, with label i % 10."""

    def write(folder: Path, *, train: str = "train", test: str = "t10k") -> None:
        folder.mkdir(parents=True, exist_ok=True)
        for stem, count in ((train, 12), (test, 5)):
            images = np.broadcast_to(np.arange(count)[:, None, None], (count, 28, 28))
            (folder / f"{stem}-images-idx3-ubyte.gz").write_bytes(idx_bytes(images))
            (folder / f"{stem}-labels-idx1-ubyte.gz").write_bytes(idx_bytes(np.arange(count) % 10))

    return write
