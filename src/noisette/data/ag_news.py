"""AG News: is an article about the world, sports, business, or science and technology?"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path

import numpy as np

from noisette.data import files, table
from noisette.data.dataset import DataSet, Split
from noisette.data.errors import in_rows, refuse
from noisette.data.numbering import AnyNumbering
from noisette.data.values import codes

SOURCE = files.Source(
    "https://raw.githubusercontent.com/mhjabreel/CharCnn_Keras/master/data/ag_news_csv/",
    {"train.csv": "md5:b1a00f826fdfbd249f79597b59e1dc12", "test.csv": "md5:d52ea96a97a2d943681189a97654912d"},
)
SUBSET = ("train_subset.csv.gz", "test.csv.gz")
_SUBSET_NOTE = "trained on 18,349 of the 120,000 training articles of AG News: not comparable with published results"

_Read = tuple[Sequence[str], Sequence[str], Sequence[str]]  # texts, labels and the names of the classes of one file
TOKENS = 20  # of a text whose words have GloVe's vectors


def ag_news(data_dir: Path | None, numbering: AnyNumbering) -> DataSet:
    """AG News: 120,000 + 7,600, or a copy with 18,349 of the training articles.

    Inputs (n, tokens) are numbers of the first words of title and description together.

    Guarantee: a record is one article. There is no guarantee for a smaller unit, such as one word, nor for a larger
    one, such as all articles of one author.
    """

    def official(folder: Path) -> DataSet:
        splits = [_split(folder / name, _official, numbering) for name in SOURCE.files]
        return _data_set(splits, 120_000, "", numbering)

    def subset(folder: Path) -> DataSet:
        splits = [_split(folder / name, _subset, numbering) for name in SUBSET]
        return _data_set(splits, 18_349, _SUBSET_NOTE, numbering)

    return files.read("ag_news", SOURCE, official, data_dir=data_dir, copies={SUBSET: subset})


def _official(path: Path) -> _Read:
    rows = table.table(path, header=("class", "title", "description"), rows=table.rows(path))
    texts = [" ".join(parts) for parts in zip(rows["title"], rows["description"], strict=True)]
    return texts, rows["class"], ("1", "2", "3", "4")


def _subset(path: Path) -> _Read:
    """A file of the copy has a header."""
    header, *rows = table.rows(path) or [[]]
    found = table.table(path, header=header, rows=rows)
    refuse(str(path), [f"there is no column {name!r}" for name in ("label", "text") if name not in found])
    return found["text"], found["label"], ("0", "1", "2", "3")


def _split(path: Path, read: Callable[[Path], _Read], numbering: AnyNumbering) -> Split:
    texts, labels, names = read(path)
    targets = codes(labels, names)
    unknown = np.flatnonzero(targets < 0).tolist()
    refuse(str(path), [f"the class is none of {', '.join(names)} {in_rows(unknown)}"] if unknown else [])
    return Split(numbering.number(texts), targets)


def _data_set(splits: Sequence[Split], size: int, note: str, numbering: AnyNumbering) -> DataSet:
    notes, words, vectors = "; ".join(filter(None, [note, numbering.note])), numbering.size, numbering.vectors
    return DataSet("ag-news", *splits, classes=4, declared_size=size, note=notes, words=words, vectors=vectors)
