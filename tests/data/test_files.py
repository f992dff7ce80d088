"""Finding and downloading files: the order of the folders, and errors without a network."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import numpy as np
import pooch
import pytest

from noisette.data import DataError, DataSet, Split, files, load


def reader(folder: Path) -> DataSet:
    split = Split(np.frombuffer((folder / "whole").read_bytes(), np.uint8)[:, None], np.zeros(4, np.int64))
    return DataSet(name="toy", train=split, test=None, classes=2, declared_size=4)


def test_download_into_the_cache(cache: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def retrieve(url: str, *, known_hash: str, fname: str, path: Path) -> None:
        assert (url, known_hash) == ("https://there/whole", "sha256:00")
        path.mkdir(parents=True)
        (path / fname).write_bytes(bytes(range(4)))

    monkeypatch.setattr(pooch, "retrieve", retrieve)
    found = files.read("toy", files.Source("https://there/", {"whole": "sha256:00"}), reader, data_dir=None)
    assert found.train.inputs.ravel().tolist() == [0, 1, 2, 3]
    assert [path.name for path in (cache / "toy").iterdir()] == ["whole"]


@pytest.mark.parametrize(
    ("error", "reason"),
    [(ValueError("hash"), "the checksum differs"), (OSError(28, "No space left on device"), "No space left on device")],
)
def test_a_failed_download_says_why(error: Exception, reason: str, monkeypatch: pytest.MonkeyPatch) -> None:
    def retrieve(url: str, **settings: object) -> str:
        raise error

    monkeypatch.setattr(pooch, "retrieve", retrieve)
    with pytest.raises(DataError, match=rf"toy is not on this machine and could not be downloaded \({reason}.*: put"):
        files.read("toy", files.Source("https://there/", {"whole": "sha256:00"}), reader, data_dir=None)


@pytest.mark.parametrize("name", ["mnist", "cifar10"])
def test_the_error_without_a_network_says_which_files_to_put_where(name: str, tmp_path: Path, cache: Path) -> None:
    with pytest.raises(DataError) as caught:
        load(name, data_dir=tmp_path)
    message = str(caught.value)
    assert "\n" not in message
    assert "could not be downloaded (ConnectionError)" in message
    assert message.endswith(f" into {tmp_path / name}")
    assert "http" in message
    assert not cache.exists()
    with pytest.raises(DataError, match=f"into {cache / name}$"):
        load(name)


def test_folders_are_searched_in_order(
    tmp_path: Path,
    cache: Path,
    monkeypatch: pytest.MonkeyPatch,
    write_idx_set: Callable[..., None],
    idx_of: Callable[[np.ndarray], bytes],
) -> None:
    given, environment = tmp_path / "given", tmp_path / "environment"
    for mark, parent in enumerate((given, environment, cache)):
        write_idx_set(parent / "mnist")
        (parent / "mnist" / "t10k-labels-idx1-ubyte.gz").write_bytes(idx_of(np.full(5, mark)))
    monkeypatch.setenv("NOISETTE_DATA", str(environment))

    def mark_of(data_dir: Path | None) -> int:
        found = load("mnist", data_dir=data_dir)
        assert found.test is not None
        return found.test.targets[0]

    assert mark_of(given) == 0
    (given / "mnist" / "t10k-labels-idx1-ubyte.gz").unlink()  # three of four files are not the data set
    assert mark_of(given) == 1
    assert mark_of(None) == 1
    monkeypatch.delenv("NOISETTE_DATA")
    assert mark_of(None) == 2
