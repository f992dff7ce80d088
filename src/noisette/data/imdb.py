"""IMDB: is a film review positive? The Large Movie Review Dataset.

Source: Maas et al. 2011.
"""

from __future__ import annotations

import csv
import io
import lzma
import re
import tarfile
import zlib
from pathlib import Path

import numpy as np

from noisette.data import files, table
from noisette.data.dataset import DataSet, Split
from noisette.data.errors import DataError, refuse
from noisette.data.numbering import AnyNumbering
from noisette.data.values import codes

SOURCE = files.Source(
    "https://ai.stanford.edu/~amaas/data/sentiment/", {"aclImdb_v1.tar.gz": "md5:7c2ac02c03563afcf9b574c7e56c153a"}
)
COPY = ("train.csv.xz", "test.csv.xz")
CLASSES = ("neg", "pos")
TOKENS = 128  # of a review whose words have GloVe's vectors
_REVIEW = re.compile(r"aclImdb/(train|test)/(neg|pos)/\d+_\d+\.txt")


def imdb(data_dir: Path | None, numbering: AnyNumbering) -> DataSet:
    """IMDB: 25,000 reviews for training and 25,000 to test with; inputs (n, tokens) are numbers of words.

    Guarantee: a record is one review. There is none for a larger unit, such as all reviews of one author.

    Raises:
        DataError: the files are absent and cannot be downloaded, or are damaged.
    """

    def official(folder: Path) -> DataSet:
        return _data_set(_archived(folder / "aclImdb_v1.tar.gz", numbering), numbering)

    def copy(folder: Path) -> DataSet:
        return _data_set([_split(folder / name, numbering) for name in COPY], numbering)

    return files.read("imdb", SOURCE, official, data_dir=data_dir, copies={COPY: copy})


def _data_set(splits: list[Split], numbering: AnyNumbering) -> DataSet:
    return DataSet(
        "imdb",
        *splits,
        classes=2,
        declared_size=25_000,
        words=numbering.size,
        vectors=numbering.vectors,
        note=numbering.note,
    )


def _archived(path: Path, numbering: AnyNumbering) -> list[Split]:
    """The training and the test reviews of the official archive, each a file in the folder of its class."""
    found: dict[str, list[tuple[str, str]]] = {"train": [], "test": []}
    try:
        with tarfile.open(path) as archive:
            for member in archive:
                stream = archive.extractfile(member) if (place := _REVIEW.fullmatch(member.name)) else None
                if place and stream:
                    found[place[1]].append((stream.read().decode(), place[2]))
    except (OSError, EOFError, zlib.error, tarfile.TarError, UnicodeDecodeError) as error:
        raise DataError(f"{path} is damaged or not IMDB ({error}); download it again") from error
    refuse(str(path), [f"there are no reviews in {part}" for part, reviews in found.items() if not reviews])
    parts = (zip(*found[part], strict=True) for part in ("train", "test"))
    return [Split(numbering.number(list(texts)), codes(list(labels), CLASSES)) for texts, labels in parts]


def _split(path: Path, numbering: AnyNumbering) -> Split:
    """The reviews of a table with the columns text and label, 0 or 1."""
    try:
        content = lzma.decompress(path.read_bytes()).decode()
    except (OSError, EOFError, lzma.LZMAError, UnicodeDecodeError) as error:
        raise DataError(f"{path} is damaged ({error}); copy it again") from error
    try:
        header, *rows = table.fields(io.StringIO(content, newline="")) or [[]]
    except csv.Error as error:
        raise DataError(f"{path}: {error}") from error
    columns = table.table(path, header=header, rows=rows)
    refuse(str(path), [f"there is no column {name!r}" for name in ("label", "text") if name not in columns])
    targets = codes(columns["label"], ("0", "1"))
    refuse(str(path), ["a label is neither 0 nor 1"] if np.any(targets < 0) else [])
    return Split(numbering.number(columns["text"]), targets)
