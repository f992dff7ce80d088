"""EMNIST Letters: the letters A to Z, upper and lower case in one class, as 28 x 28 grey images."""

from __future__ import annotations

import zipfile
from pathlib import Path

import numpy as np

from noisette.data import files, idx
from noisette.data.dataset import DataSet, Split, unit_pixels
from noisette.data.errors import DataError

SOURCE = files.Source(
    "https://biometrics.nist.gov/cs_links/EMNIST/",
    {"gzip.zip": "md5:58c8d27c78d21e728a6bc7b3cc06412e"},
)
SUBSET = idx.file_names("train-subset", "test-subset")


def letters(data_dir: Path | None) -> DataSet:
    """EMNIST Letters: 124,800 + 20,800, or a copy with a subset of 26,000 + 5,200.

    Inputs (n, 1, 28, 28) in [0, 1], upright; classes 0..25 for A..Z.
    """
    return files.read("emnist-letters", SOURCE, _whole, data_dir=data_dir, copies={SUBSET: _subset})


def _whole(folder: Path) -> DataSet:
    train, test = (_split_in_archive(folder / "gzip.zip", split) for split in ("train", "test"))
    return DataSet(name="emnist-letters", train=train, test=test, classes=26, declared_size=124_800)


def _split_in_archive(archive: Path, split: str) -> Split:
    images = _read_member(archive, f"gzip/emnist-letters-{split}-images-idx3-ubyte.gz", dimensions=3)
    labels = _read_member(archive, f"gzip/emnist-letters-{split}-labels-idx1-ubyte.gz", dimensions=1)
    # The official images are transposed, and the official labels count from 1.
    return Split(unit_pixels(images.transpose(0, 2, 1)), labels.astype(np.int64) - 1)


def _read_member(archive: Path, member: str, *, dimensions: int) -> np.ndarray:
    try:
        with zipfile.ZipFile(archive) as opened, opened.open(member) as stream:
            return idx.parse(stream, dimensions=dimensions, source=f"{member} in {archive}")
    except (zipfile.BadZipFile, KeyError) as error:
        raise DataError(f"{archive} is damaged or not EMNIST ({error}); download it again") from error


def _subset(folder: Path) -> DataSet:
    train, test = (idx.read_split(folder, stem=stem) for stem in ("train-subset", "test-subset"))
    note = (
        "trained on 26,000 of the 124,800 training images of EMNIST Letters and tested on 5,200 of 20,800: "
        "not comparable with published results"
    )
    return DataSet(name="emnist-letters", train=train, test=test, classes=26, declared_size=26_000, note=note)
