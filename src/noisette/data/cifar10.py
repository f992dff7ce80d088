"""CIFAR-10: ten classes of 32 x 32 colour images, from the binary version or a copy compressed as JPEG."""

from __future__ import annotations

import io
import tarfile
import zlib
from pathlib import Path

import numpy as np

from noisette.data import files
from noisette.data.dataset import DataSet, Split, unit_pixels
from noisette.data.errors import DataError

SOURCE = files.Source(  # the binary version: the "python" version is a pickle, which can run code when loaded
    "https://www.cs.toronto.edu/~kriz/",
    {"cifar-10-binary.tar.gz": "md5:c32a1d4ab5d03f1284b67883e8d87530"},
)
JPEG = ("cifar10_train_jpegq75.npz", "cifar10_test_jpegq75.npz")

_SIDE = 32
_RECORD = 1 + 3 * _SIDE * _SIDE  # the label, then the red, green and blue planes


def cifar10(data_dir: Path | None) -> DataSet:
    """CIFAR-10: 50,000 + 10,000, inputs (n, 3, 32, 32) in [0, 1].

    The JPEG copy is sorted by class, so batches must be sampled from all of it, as Poisson sampling does.
    """
    return files.read("cifar10", SOURCE, _binary, data_dir=data_dir, copies={JPEG: _jpeg})


def _data_set(train: Split, test: Split, note: str = "") -> DataSet:
    return DataSet(name="cifar10", train=train, test=test, classes=10, declared_size=50_000, note=note)


def _binary(folder: Path) -> DataSet:
    archive = folder / "cifar-10-binary.tar.gz"
    train = _records(archive, [f"data_batch_{number}.bin" for number in range(1, 6)])
    return _data_set(train, _records(archive, ["test_batch.bin"]))


def _records(archive: Path, names: list[str]) -> Split:
    """The examples of the named files of the archive, in this order."""
    read = {}
    try:
        with tarfile.open(archive, "r:gz") as opened:  # members are read in memory, nothing is unpacked
            for member in opened:
                name = Path(member.name).name
                stream = opened.extractfile(member) if name in names else None
                if stream is not None:
                    read[name] = stream.read()
    except (tarfile.TarError, OSError, EOFError, zlib.error) as error:
        raise DataError(f"{archive} is damaged ({error}); download it again") from error
    for name in names:
        if len(read.get(name, b"")) % _RECORD or not read.get(name):
            raise DataError(
                f"{name} in {archive} should hold records of {_RECORD} bytes, "
                f"but {len(read.get(name, b''))} bytes were found; download it again"
            )
    records = np.frombuffer(b"".join(read[name] for name in names), np.uint8).reshape(-1, _RECORD)
    planes = records[:, 1:].reshape(-1, 3, _SIDE, _SIDE)
    return Split(unit_pixels(np.moveaxis(planes, 1, 3)), records[:, 0].astype(np.int64))


def _jpeg(folder: Path) -> DataSet:
    note = "CIFAR-10 recompressed as JPEG, which loses detail: not comparable with published results"
    return _data_set(_decoded(folder / JPEG[0]), _decoded(folder / JPEG[1]), note)


def _decoded(path: Path) -> Split:
    """The examples of an NPZ of JPEG images: ``header`` is common to all, ``scans`` are cut at ``offsets``."""
    from PIL import Image

    arrays = files.read_npz(path, "header", "scans", "offsets", "labels")
    header, scans, offsets = arrays[0].tobytes(), arrays[1].tobytes(), arrays[2]
    try:
        images = np.empty((len(offsets) - 1, _SIDE, _SIDE, 3), np.uint8)
        for index in range(len(images)):
            stream = header + scans[offsets[index] : offsets[index + 1]]
            images[index] = np.asarray(Image.open(io.BytesIO(stream), formats=("JPEG",)))
        return Split(unit_pixels(images), arrays[3].astype(np.int64))
    except (OSError, ValueError) as error:
        raise DataError(f"{path} is damaged ({error}); download it again") from error
