"""AG News: is an article about the world, sports, business, or science and technology?"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import numpy as np

from noisette.data import columns, files, glove, table
from noisette.data.dataset import DataSet, Split
from noisette.data.errors import in_rows, refuse
from noisette.data.words import Vocabulary

SOURCE = files.Source(
    "https://raw.githubusercontent.com/mhjabreel/CharCnn_Keras/master/data/ag_news_csv/",
    {"train.csv": "md5:b1a00f826fdfbd249f79597b59e1dc12", "test.csv": "md5:d52ea96a97a2d943681189a97654912d"},
)
SUBSET = ("train_subset.csv.gz", "test.csv.gz")

TOKENS = 20  # of title and description together, the first ones


def ag_news(data_dir: Path | None) -> DataSet:
    """AG News: 120,000 + 7,600, or a copy with 18,349 of the training articles; inputs (n, 20), words as numbers.

    The words and their vectors are those of :func:`noisette.data.glove.glove`.

    Guarantee: a record is one article. No claim is made for a smaller unit, such as one word, nor for a larger one,
    such as all articles of one author.
    """
    vocabulary = glove.glove(data_dir)
    return files.read(
        "ag_news",
        SOURCE,
        lambda folder: _whole(folder, vocabulary),
        data_dir=data_dir,
        copies={SUBSET: lambda folder: _subset(folder, vocabulary)},
    )


def _whole(folder: Path, vocabulary: Vocabulary) -> DataSet:
    def split(path: Path) -> Split:
        rows = table.table(path, header=("class", "title", "description"), rows=table.rows(path))
        texts = [
            f"{title} {description}" for title, description in zip(rows["title"], rows["description"], strict=True)
        ]
        return _split(path, texts, rows["class"], ("1", "2", "3", "4"), vocabulary)

    return _data_set(split(folder / "train.csv"), split(folder / "test.csv"), 120_000, [], vocabulary)


def _subset(folder: Path, vocabulary: Vocabulary) -> DataSet:
    def split(path: Path) -> Split:
        header, *rows = table.rows(path) or [[]]
        found = table.table(path, header=header, rows=rows)
        refuse(str(path), [f"there is no column {name!r}" for name in ("label", "text") if name not in found])
        return _split(path, found["text"], found["label"], ("0", "1", "2", "3"), vocabulary)

    note = "trained on 18,349 of the 120,000 training articles of AG News: not comparable with published results"
    return _data_set(split(folder / SUBSET[0]), split(folder / SUBSET[1]), 18_349, [note], vocabulary)


def _split(
    path: Path, texts: Sequence[str], labels: Sequence[str], names: Sequence[str], vocabulary: Vocabulary
) -> Split:
    targets = columns.codes(labels, names)
    unknown = np.flatnonzero(targets < 0).tolist()
    refuse(str(path), [f"the class is none of {', '.join(names)} {in_rows(unknown)}"] if unknown else [])
    return Split(vocabulary.number(texts, tokens=TOKENS), targets)


def _data_set(train: Split, test: Split, size: int, notes: list[str], vocabulary: Vocabulary) -> DataSet:
    return DataSet(
        name="ag-news",
        train=train,
        test=test,
        classes=4,
        declared_size=size,
        note="; ".join(filter(None, [*notes, vocabulary.note])),
        vectors=vocabulary.numbered_vectors,
    )
