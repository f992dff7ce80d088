from __future__ import annotations

import io
import tarfile
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

from noisette.data import DataError, load

BATCHES = [f"data_batch_{number}.bin" for number in range(1, 6)]


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    made = tmp_path / "cifar10"
    made.mkdir()
    return made


def write_binary(folder: Path, members: dict[str, bytes]) -> None:
    with tarfile.open(folder / "cifar-10-binary.tar.gz", "w:gz") as opened:
        for name, content in members.items():
            info = tarfile.TarInfo(f"cifar-10-batches-bin/{name}")
            info.size = len(content)
            opened.addfile(info, io.BytesIO(content))


def record(label: int, red: int, green: int, blue: int) -> bytes:
    return bytes([label]) + bytes([red]) * 1024 + bytes([green]) * 1024 + bytes([blue]) * 1024


def write_jpeg(path: Path, colours: list[tuple[int, int, int]], labels: list[int]) -> None:
    streams = []
    for colour in colours:
        buffer = io.BytesIO()
        Image.new("RGB", (32, 32), colour).save(buffer, format="JPEG", quality=75)
        streams.append(buffer.getvalue())
    shared = 100  # bytes kept once for all
    assert len({stream[:shared] for stream in streams}) == 1
    scans = [stream[shared:] for stream in streams]
    np.savez(
        path,
        header=np.frombuffer(streams[0][:shared], np.uint8),
        scans=np.frombuffer(b"".join(scans), np.uint8),
        offsets=np.cumsum([0] + [len(scan) for scan in scans]),
        labels=np.array(labels, np.uint8),
    )


def test_binary_version_in_the_order_of_the_batches(tmp_path: Path, folder: Path) -> None:
    members = {name: record(index, 10 * index, 255, 0) for index, name in enumerate(BATCHES)}
    # The archive's own order is not that of the batches, and it holds a text prior_events.
    write_binary(folder, dict(reversed(members.items())) | {"test_batch.bin": record(9, 1, 2, 3), "readme.html": b"hi"})
    found = load("cifar10", data_dir=tmp_path)
    assert (found.classes, found.declared_size, found.note) == (10, 50_000, "")
    assert found.train.targets.tolist() == [0, 1, 2, 3, 4]
    assert found.train.inputs.shape == (5, 3, 32, 32)
    np.testing.assert_allclose(found.train.inputs[:, 0, 5, 5], np.arange(5) * 10 / 255, rtol=1e-6)
    assert (found.train.inputs[:, 1] == 1).all()
    assert (found.train.inputs[:, 2] == 0).all()
    assert found.test is not None
    np.testing.assert_allclose(found.test.inputs[0, :, 0, 0], np.array([1, 2, 3]) / 255, rtol=1e-6)
    assert [path.name for path in folder.iterdir()] == ["cifar-10-binary.tar.gz"]  # nothing was unpacked


def test_rows_of_a_plane_stay_rows(tmp_path: Path, folder: Path) -> None:
    rows = np.repeat(np.arange(32, dtype=np.uint8), 32).tobytes()  # each pixel holds the number of its row
    write_binary(folder, dict.fromkeys([*BATCHES, "test_batch.bin"], bytes([0]) + rows * 3))
    inputs = load("cifar10", data_dir=tmp_path).train.inputs
    np.testing.assert_allclose(inputs[0, 0, :, 7], np.arange(32) / 255, rtol=1e-6)


@pytest.mark.parametrize(
    ("name", "content", "found"), [("data_batch_3.bin", record(0, 0, 0, 0)[:-1], 3072), ("test_batch.bin", b"", 0)]
)
def test_truncated_member(tmp_path: Path, folder: Path, name: str, content: bytes, found: int) -> None:
    whole = dict.fromkeys([*BATCHES, "test_batch.bin"], record(0, 0, 0, 0))
    write_binary(folder, whole | {name: content})
    with pytest.raises(DataError, match=rf"{name} in .*records of 3073 bytes, but {found} bytes were found"):
        load("cifar10", data_dir=tmp_path)


def test_absent_member(tmp_path: Path, folder: Path) -> None:
    write_binary(folder, {"data_batch_1.bin": record(0, 0, 0, 0)})
    with pytest.raises(DataError, match=r"data_batch_2.bin in .* 0 bytes were found"):
        load("cifar10", data_dir=tmp_path)


def test_damaged_archive(tmp_path: Path, folder: Path) -> None:
    (folder / "cifar-10-binary.tar.gz").write_bytes(b"no archive")
    with pytest.raises(DataError, match=r"cifar-10-binary.tar.gz is damaged"):
        load("cifar10", data_dir=tmp_path)


def test_jpeg_copy_says_that_it_is_lossy(tmp_path: Path, folder: Path) -> None:
    write_jpeg(folder / "cifar10_train_jpegq75.npz", [(200, 100, 50), (0, 0, 0), (255, 255, 255)], [7, 8, 9])
    write_jpeg(folder / "cifar10_test_jpegq75.npz", [(0, 0, 0)], [3])
    found = load("cifar10", data_dir=tmp_path)
    assert found.declared_size == 50_000
    assert "not comparable" in found.note
    assert found.train.targets.tolist() == [7, 8, 9]
    np.testing.assert_allclose(found.train.inputs[0].mean((1, 2)) * 255, [200, 100, 50], atol=3)
    np.testing.assert_allclose(found.train.inputs[1:].mean((1, 2, 3)), [0, 1], atol=0.01)


def test_jpeg_copy_damaged(tmp_path: Path, folder: Path) -> None:
    for file in ("cifar10_train_jpegq75.npz", "cifar10_test_jpegq75.npz"):
        np.savez(folder / file, header=np.zeros(3), scans=np.zeros(9), offsets=np.array([0, 9]), labels=np.zeros(1))
    with pytest.raises(DataError, match=r"cifar10_train_jpegq75.npz is damaged"):
        load("cifar10", data_dir=tmp_path)
