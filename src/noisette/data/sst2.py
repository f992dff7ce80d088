"""SST-2: is a sentence of a film review positive? The Stanford Sentiment Treebank as GLUE has it."""

from __future__ import annotations

import gzip
import zipfile
import zlib
from pathlib import Path

import numpy as np

from noisette.data import files
from noisette.data.dataset import DataSet, Split
from noisette.data.errors import DataError, in_rows, refuse
from noisette.data.numbering import AnyNumbering
from noisette.data.values import codes

SOURCE = files.Source(
    "https://dl.fbaipublicfiles.com/glue/data/", {"SST-2.zip": "md5:9f81648d4199384278b86e315dac217c"}
)
COPY = ("train.tsv.gz", "dev.tsv.gz")
TOKENS = 32  # of a sentence whose words have GloVe's vectors
CLASSES = ("0", "1")  # negative, positive


def sst2(data_dir: Path | None, numbering: AnyNumbering) -> DataSet:
    """SST-2: 67,349 sentences and phrases for training, GLUE's 872 for development to test with.

    Inputs (n, tokens) are numbers of words.

    Guarantee: a record is one sentence or phrase. Phrases were cut from sentences, so several may be parts of one.

    Raises:
        DataError: the files are absent and cannot be downloaded, or are damaged.
    """

    def official(folder: Path) -> DataSet:
        names = (f"SST-2/{part}.tsv" for part in ("train", "dev"))
        return _data_set([_split(_member(folder / "SST-2.zip", name), numbering, name) for name in names], numbering)

    def copy(folder: Path) -> DataSet:
        return _data_set([_split(_unzipped(folder / name), numbering, name) for name in COPY], numbering)

    return files.read("sst2", SOURCE, official, data_dir=data_dir, copies={COPY: copy})


def _data_set(splits: list[Split], numbering: AnyNumbering) -> DataSet:
    return DataSet(
        "sst2",
        *splits,
        classes=2,
        declared_size=67_349,
        words=numbering.size,
        vectors=numbering.vectors,
        note=numbering.note,
    )


def _member(archive: Path, name: str) -> str:
    try:
        with zipfile.ZipFile(archive) as opened:
            return opened.read(name).decode()
    except (OSError, zipfile.BadZipFile, zlib.error, KeyError, UnicodeDecodeError) as error:
        raise DataError(f"{archive} is damaged or not SST-2 ({error}); download it again") from error


def _unzipped(path: Path) -> str:
    try:
        return gzip.decompress(path.read_bytes()).decode()
    except (OSError, EOFError, zlib.error, UnicodeDecodeError) as error:
        raise DataError(f"{path} is damaged ({error}); copy it again") from error


def _split(content: str, numbering: AnyNumbering, name: str) -> Split:
    """The records of a file: a header that names the columns sentence and label, and fields separated by tabs."""
    header, *rows = [line.split("\t") for line in content.split("\n") if line]
    uneven = [index for index, row in enumerate(rows) if len(row) != 2]
    if sorted(header) != ["label", "sentence"] or uneven:
        refuse(name, ["expected the columns sentence and label" + (f" {in_rows(uneven)}" if uneven else "")])
    columns = dict(zip(header, zip(*rows, strict=True), strict=True))
    targets = codes(columns["label"], CLASSES)
    if unknown := np.flatnonzero(targets < 0).tolist():
        refuse(name, [f"label: neither 0 nor 1 {in_rows(unknown)}"])
    return Split(numbering.number(columns["sentence"]), targets)
