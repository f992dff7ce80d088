"""The built-in sets of images: their files, damaged ones and partial copies, images that are drawn, and real files."""

import gzip
import io
import struct
import tarfile
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
from sklearn.datasets import load_digits

from noisette.data import DataError, built_in_images, load
from noisette.data.built_in_images import CLASSES, dead_leaves, read_idx, shaded_leaves

Idx = Callable[[np.ndarray], bytes]
WriteIdxSet = Callable[..., None]


def read(content: bytes, dimensions: int) -> np.ndarray:
    return read_idx(content, dimensions=dimensions, source="some-idx3-ubyte.gz")


def zipped(dimensions: int, content: bytes) -> bytes:
    return gzip.compress(bytes([0, 0, 8, dimensions]) + content, mtime=0)


def test_reads_what_was_written(idx_of: Idx) -> None:
    array = np.random.default_rng(0).integers(0, 256, (7, 3, 5))
    found = read(idx_of(array), 3)
    assert found.dtype == np.uint8
    np.testing.assert_array_equal(found, array)
    assert read(idx_of(np.zeros((0, 3, 5))), 3).shape == (0, 3, 5)


@pytest.mark.parametrize(
    ("content", "dimensions"),
    [
        (zipped(3, struct.pack(">3I", 10, 4, 4) + bytes(100)), 3),
        (zipped(1, struct.pack(">I", 10) + bytes(11)), 1),
        (zipped(1, struct.pack(">I", 5) + bytes(5)), 3),
        (zipped(3, bytes(2)), 3),
        (gzip.compress(b"", mtime=0), 1),
    ],
)
def test_damaged_idx_files(content: bytes, dimensions: int) -> None:
    with pytest.raises(DataError, match=f"some-idx3-ubyte.gz is no whole idx file of bytes with {dimensions} axes"):
        read(content, dimensions)


def test_a_huge_declared_size_takes_no_memory() -> None:
    with pytest.raises(DataError, match="no whole idx file"):
        read(zipped(3, b"\xff" * 12 + bytes(100)), 3)


def test_a_truncated_gzip_stream_and_a_flipped_bit_are_noticed(idx_of: Idx) -> None:
    content = idx_of(np.arange(4000).reshape(5, 20, 40) % 251)
    flipped = bytearray(content)
    flipped[-6] ^= 1  # in the checksum which ends the stream
    for damaged in (content[: len(content) // 2], bytes(flipped), b"<html>404</html>"):
        with pytest.raises(DataError, match=r"some-idx3-ubyte.gz is not a valid gzip file .*download it again"):
            read(damaged, 3)


@pytest.mark.parametrize("name", ["fashion-mnist", "kmnist"])
def test_official_files(name: str, tmp_path: Path, write_idx_set: WriteIdxSet) -> None:
    write_idx_set(tmp_path / name)
    write_idx_set(tmp_path / name, train="train-first7011")  # the whole takes precedence over its part
    found = load(name, data_dir=tmp_path)
    assert (found.name, found.classes, found.declared_size, found.note) == (name, 10, 60_000, "")
    assert (found.train.inputs.shape, found.train.inputs.dtype) == ((12, 1, 28, 28), np.float32)
    np.testing.assert_allclose(found.train.inputs[:, 0, 3, 4], np.arange(12) / 255, rtol=1e-6)
    assert found.train.targets.dtype == np.int64
    assert found.train.targets.tolist() == [0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 0, 1]
    assert found.test.inputs.shape == (5, 1, 28, 28)


def test_labels_that_do_not_fit(tmp_path: Path, write_idx_set: WriteIdxSet, idx_of: Idx) -> None:
    for name, labels, told in (
        ("train", np.zeros(11), "mnist: train has 12 inputs but 11 labels"),
        ("t10k", np.array([0, 1, 9, 10, 200]), r"test has 2 labels outside 0\.\.9, the first at index 3"),
    ):
        write_idx_set(tmp_path / "mnist")
        (tmp_path / "mnist" / f"{name}-labels-idx1-ubyte.gz").write_bytes(idx_of(labels))
        with pytest.raises(DataError, match=told):
            load("mnist", data_dir=tmp_path)


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


def test_binary_version_in_the_order_of_the_batches(tmp_path: Path, folder: Path) -> None:
    members = {name: record(index, 10 * index, 255, 0) for index, name in enumerate(BATCHES)}
    # The archive's own order is not that of the batches, and it holds a text.
    write_binary(folder, dict(reversed(members.items())) | {"test_batch.bin": record(9, 1, 2, 3), "readme.html": b"hi"})
    found = load("cifar10", data_dir=tmp_path)
    assert (found.classes, found.declared_size, found.note) == (10, 50_000, "")
    assert (found.train.targets.tolist(), found.train.inputs.shape) == ([0, 1, 2, 3, 4], (5, 3, 32, 32))
    np.testing.assert_allclose(found.train.inputs[:, 0, 5, 5], np.arange(5) * 10 / 255, rtol=1e-6)
    assert (found.train.inputs[:, 1] == 1).all()
    np.testing.assert_allclose(found.test.inputs[0, :, 0, 0], np.array([1, 2, 3]) / 255, rtol=1e-6)
    assert [path.name for path in folder.iterdir()] == ["cifar-10-binary.tar.gz"]  # nothing was unpacked
    rows = np.repeat(np.arange(32, dtype=np.uint8), 32).tobytes()  # each pixel holds the number of its row
    write_binary(folder, dict.fromkeys([*BATCHES, "test_batch.bin"], bytes([0]) + rows * 3))
    inputs = load("cifar10", data_dir=tmp_path).train.inputs
    np.testing.assert_allclose(inputs[0, 0, :, 7], np.arange(32) / 255, rtol=1e-6)


def test_truncated_members_and_damaged_files(tmp_path: Path, folder: Path) -> None:
    whole = dict.fromkeys([*BATCHES, "test_batch.bin"], record(0, 0, 0, 0))
    for name, content in (("data_batch_3.bin", record(0, 0, 0, 0)[:-1]), ("test_batch.bin", b"")):
        write_binary(folder, whole | {name: content})
        with pytest.raises(DataError, match=rf"has no whole records in {name}; download"):
            load("cifar10", data_dir=tmp_path)
    (folder / "cifar-10-binary.tar.gz").write_bytes(b"no archive")
    with pytest.raises(DataError, match=r"cifar-10-binary.tar.gz is damaged"):
        load("cifar10", data_dir=tmp_path)
    (folder / "cifar-10-binary.tar.gz").unlink()
    damaged = {"header": np.zeros(3), "scans": np.zeros(9), "offsets": np.array([0, 9]), "labels": np.zeros(1)}
    for split in ("train", "test"):
        np.savez(folder / f"cifar10_{split}_jpegq75.npz", **damaged)
    with pytest.raises(DataError, match=r"cifar10_train_jpegq75.npz is damaged"):
        load("cifar10", data_dir=tmp_path)


def test_every_record_of_the_digits_is_in_one_split_with_its_label() -> None:
    found = load("digits")
    assert (found.classes, found.declared_size, found.note) == (10, 1437, "")
    assert (found.train.inputs.shape, found.test.inputs.shape) == ((1437, 1, 8, 8), (360, 1, 8, 8))
    ours = np.concatenate([found.train.inputs, found.test.inputs]).reshape(1797, 64) * 16
    labels = np.concatenate([found.train.targets, found.test.targets])
    expected = load_digits()
    rows = sorted(map(tuple, np.column_stack([expected.data, expected.target])))
    assert sorted(map(tuple, np.column_stack([ours, labels]))) == rows
    assert found.test.targets[:8].tolist() == [2, 8, 2, 6, 6, 7, 1, 9]  # frozen: results are compared across versions
    assert np.bincount(found.test.targets).min() >= 25


def edges(images: np.ndarray, down: int, right: int) -> np.ndarray:
    """For each image the share of pixels that differ from the one so far below and to the right."""
    side = images.shape[-1]
    here = images[:, :, 1 : side - 1, 1 : side - 1]
    there = images[:, :, 1 + down : side - 1 + down, 1 + right : side - 1 + right]
    return (here != there).any(1).mean((1, 2))


@pytest.fixture(scope="module")
def leaves() -> tuple[np.ndarray, np.ndarray]:
    split = dead_leaves(200, seed=3)
    return split.inputs, split.targets


@pytest.fixture(scope="module")
def shaded() -> np.ndarray:
    return shaded_leaves(100, seed=3)


def test_the_same_seed_gives_the_same_images(leaves: tuple[np.ndarray, np.ndarray], shaded: np.ndarray) -> None:
    for draw in (lambda seed: dead_leaves(5, seed, side=9).inputs, lambda seed: shaded_leaves(5, seed, side=9)):
        assert np.array_equal(draw(3), draw(3))
        assert not np.array_equal(draw(3), draw(4))
    for images in (leaves[0], shaded):
        assert images.dtype == np.float32
        assert images.min() >= 0
        assert images.max() <= 1
    # Frozen: features are learned from these images, and results are compared across versions.
    assert leaves[1][:6].tolist() == [10, 8, 9, 3, 8, 8]
    np.testing.assert_allclose([leaves[0][0, 0, 0, 0], shaded[0, 0, 0, 0]], [0.6919775, 0.7657604], atol=1e-6)


@pytest.mark.parametrize(
    ("kind", "along"), [("lying", (0, 1)), ("standing", (1, 0)), ("rising", (-1, 1)), ("falling", (1, 1))]
)
def test_bars_lie_in_the_direction_of_their_class(leaves, kind, along) -> None:
    chosen = leaves[0][np.isin(leaves[1], [k for k, name in enumerate(CLASSES) if f"large {kind}" in name])]
    down, right = along
    same, across = edges(chosen, down, right).mean(), edges(chosen, right, -down).mean()
    assert same < 0.5 * across


def test_shaded_leaves_are_closer_to_photographs(leaves: tuple[np.ndarray, np.ndarray], shaded: np.ndarray) -> None:
    def share_of_brightness(images: np.ndarray) -> float:
        apart = images - images.mean((2, 3), keepdims=True)
        return 3 * apart.mean(1).var() / apart.var(axis=(0, 2, 3)).sum()

    assert share_of_brightness(shaded) > 0.75
    assert share_of_brightness(leaves[0]) < 0.5
    steps = np.abs(np.diff(shaded, axis=3))
    assert np.median(steps) > 1e-3  # inside a leaf, where those of dead leaves are 0
    assert (steps > 0.5).mean() < 0.5 * (np.abs(np.diff(leaves[0], axis=3)) > 0.5).mean()


def test_drawn_images_have_the_shape_that_was_asked_for(monkeypatch: pytest.MonkeyPatch) -> None:
    assert dead_leaves(2, seed=0, side=28, channels=1).inputs.shape == (2, 1, 28, 28)
    assert shaded_leaves(2, seed=0, side=28, channels=1).shape == (2, 1, 28, 28)
    with pytest.raises(ValueError, match="images=0"):
        dead_leaves(0, seed=0)
    with pytest.raises(ValueError, match="side=0"):
        shaded_leaves(1, seed=0, side=0)
    monkeypatch.setattr(built_in_images, "TRAIN", 30)
    monkeypatch.setattr(built_in_images, "TEST", 10)
    data = load("shaded-leaves")
    assert (data.train.inputs.shape, len(data.test.inputs)) == ((30, 3, 32, 32), 10)
    assert not np.array_equal(data.test.inputs, data.train.inputs[:10])
    assert np.array_equal(data.train.inputs, shaded_leaves(30, seed=0))


Real = Callable[[str], Path]

# Per class, as published or counted independently of these readers.
TRAIN = {
    "mnist": [5923, 6742, 5958, 6131, 5842, 5421, 5918, 6265, 5851, 5949],
    "kmnist": [690, 690, 695, 702, 757, 708, 688, 708, 672, 701],
    **{"fashion-mnist": [6000] * 10, "cifar10": [5000] * 10},
}
TEST = dict.fromkeys(TRAIN, [1000] * 10) | {"mnist": [980, 1135, 1032, 1010, 982, 892, 958, 1028, 974, 1009]}
MEAN = {"mnist": [0.1307], "fashion-mnist": [0.2860], "cifar10": [0.4914, 0.4822, 0.4465]}  # per channel, published


# Each image of CIFAR-10 is decoded, which takes long.
@pytest.mark.parametrize("name", ["mnist", "fashion-mnist", "kmnist", pytest.param("cifar10", marks=pytest.mark.slow)])
def test_counts_shapes_and_means(name: str, real: Real) -> None:
    found = load(name, data_dir=real(name))
    assert np.bincount(found.train.targets).tolist() == TRAIN[name]
    assert np.bincount(found.test.targets).tolist() == TEST[name]
    assert found.train.inputs.shape == (sum(TRAIN[name]), *{"cifar10": (3, 32, 32)}.get(name, (1, 28, 28)))
    assert (found.declared_size, found.train.inputs.min()) == (sum(TRAIN[name]), 0)
    assert found.train.inputs.max() == 1
    if name in MEAN:
        np.testing.assert_allclose(found.train.inputs.mean((0, 2, 3), dtype=np.float64), MEAN[name], atol=1.5e-4)
    assert (found.note != "") == (name in ("kmnist", "cifar10"))
