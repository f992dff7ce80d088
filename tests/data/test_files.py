"""Finding and downloading files: the order of the folders, errors without a network, and no partial files."""

from __future__ import annotations

import hashlib
import threading
from collections.abc import Callable, Iterator
from functools import partial
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import numpy as np
import pooch
import pytest

from noisette.data import DataError, DataSet, Split, files, load

RETRIEVE = pooch.retrieve  # before the fixture replaces it
CONTENT = bytes(range(256)) * 100


@pytest.fixture
def address() -> Iterator[str]:
    """A local server: ``whole`` is the content, ``other`` differs from it, and ``cut`` ends too early."""

    class Handler(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            if self.path == "/gone":
                self.send_error(404)
                return
            self.send_response(200)
            self.send_header("Content-Length", str(len(CONTENT)))
            self.end_headers()
            self.wfile.write({"/whole": CONTENT, "/other": CONTENT[::-1], "/cut": CONTENT[:5000]}[self.path])

        def log_message(self, format: str, *args: object) -> None:
            pass

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    thread = threading.Thread(target=partial(server.serve_forever, poll_interval=0.01))
    thread.start()
    yield f"http://127.0.0.1:{server.server_port}/"
    server.shutdown()
    server.server_close()
    thread.join()


def reader(folder: Path, *, file: str) -> DataSet:
    split = Split(np.frombuffer((folder / file).read_bytes()[:4], np.uint8)[:, None], np.zeros(4, np.int64))
    return DataSet(name="toy", train=split, test=None, classes=2, declared_size=4, note="")


def fetch(address: str, file: str, *, monkeypatch: pytest.MonkeyPatch) -> DataSet:
    monkeypatch.setattr(pooch, "retrieve", RETRIEVE)
    source = files.Source(address, {file: f"sha256:{hashlib.sha256(CONTENT).hexdigest()}"})
    return files.read("toy", source, partial(reader, file=file), data_dir=None)


def test_download_into_the_cache(address: str, cache: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    assert fetch(address, "whole", monkeypatch=monkeypatch).train.inputs.ravel().tolist() == [0, 1, 2, 3]
    assert [path.name for path in (cache / "toy").iterdir()] == ["whole"]
    assert (cache / "toy" / "whole").read_bytes() == CONTENT


@pytest.mark.parametrize(("file", "reason"), [("other", "the checksum differs"), ("cut", ""), ("gone", "HTTPError")])
def test_a_failed_download_leaves_no_file(
    address: str, file: str, reason: str, cache: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with pytest.raises(DataError, match=rf"toy is not on this machine and could not be downloaded \({reason}.*: put"):
        fetch(address, file, monkeypatch=monkeypatch)
    assert not [path for path in cache.rglob("*") if path.is_file()]


@pytest.mark.parametrize("name", ["mnist", "fashion-mnist", "kmnist", "emnist-letters", "cifar10", "adult"])
def test_the_error_without_a_network_says_which_files_to_put_where(name: str, tmp_path: Path, cache: Path) -> None:
    with pytest.raises(DataError) as caught:
        load(name, data_dir=tmp_path)
    message = str(caught.value)
    assert "\n" not in message
    assert "could not be downloaded (ConnectionError)" in message
    assert message.endswith(f" into {tmp_path / name}")
    assert "http" in message
    assert not cache.exists()


def test_without_a_data_folder_the_error_names_the_cache(cache: Path) -> None:
    with pytest.raises(DataError, match=f"into {cache / 'mnist'}$"):
        load("mnist")


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


def test_a_data_folder_that_does_not_exist(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(DataError, match=r"data_dir is .*nowhere, which is not a folder"):
        load("mnist", data_dir=tmp_path / "nowhere")
    monkeypatch.setenv("NOISETTE_DATA", str(tmp_path / "nowhere"))
    with pytest.raises(DataError, match=r"NOISETTE_DATA is .*nowhere, which is not a folder"):
        load("mnist")


def test_disk_full_while_downloading(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def full(url: str, **settings: object) -> str:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(pooch, "retrieve", full)
    with pytest.raises(DataError, match="No space left on device"):
        load("mnist")
