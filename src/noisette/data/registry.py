"""The built-in data sets. To add one, write its reader and a test, and add a line here."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from pathlib import Path

from noisette.data import (
    adbench,
    adult,
    ag_news,
    cifar10,
    dead_leaves,
    digits,
    emnist,
    glove,
    imdb,
    mnist,
    shaded_leaves,
    sst2,
)
from noisette.data.dataset import DataSet
from noisette.data.numbering import AnyNumbering, Numbering, VectorNumbering


@dataclass(frozen=True)
class BuiltIn:
    """A built-in data set: its reader, which is called with ``data_dir``, and one line for help texts."""

    read: Callable[[Path | None], DataSet]
    description: str

    def load(self, data_dir: Path | None, numbering: Numbering) -> DataSet:
        """The data set, in which there are no words to number."""
        return self.read(data_dir)


@dataclass(frozen=True)
class BuiltInTexts:
    """A built-in set of texts: its reader, which is called with ``data_dir`` and how words are numbered."""

    read: Callable[[Path | None, AnyNumbering], DataSet]
    description: str

    def load(self, data_dir: Path | None, numbering: Numbering) -> DataSet:
        """The data set."""
        return self.read(data_dir, numbering)


@dataclass(frozen=True)
class BuiltInVectors:
    """A built-in set of texts whose words have GloVe's vectors: its reader, how many words are used, and one line."""

    read: Callable[[Path | None, AnyNumbering], DataSet]
    tokens: int
    description: str

    def load(self, data_dir: Path | None, numbering: Numbering) -> DataSet:
        """The data set, whose words are numbered by those that have a vector."""
        return self.read(data_dir, VectorNumbering(glove.glove(data_dir), self.tokens))


REGISTRY: dict[str, BuiltIn | BuiltInTexts | BuiltInVectors] = {
    "digits": BuiltIn(lambda data_dir: digits.read(), "handwritten digits, 8 x 8 pixels; installed with scikit-learn"),
    "mnist": BuiltIn(mnist.mnist, "handwritten digits, 28 x 28 pixels"),
    "fashion-mnist": BuiltIn(mnist.fashion_mnist, "articles of clothing, 28 x 28 pixels"),
    "kmnist": BuiltIn(mnist.kmnist, "cursive Japanese characters, 28 x 28 pixels"),
    "emnist-letters": BuiltIn(emnist.letters, "handwritten letters, 28 x 28 pixels"),
    "cifar10": BuiltIn(cifar10.cifar10, "colour photographs of ten kinds of objects, 32 x 32 pixels"),
    "dead-leaves": BuiltIn(dead_leaves.coloured, "images of a random process, 32 x 32 pixels; drawn, not read"),
    "dead-leaves-grey": BuiltIn(dead_leaves.grey, "the same in grey, 28 x 28 pixels"),
    "shaded-leaves": BuiltIn(shaded_leaves.coloured, "dead leaves in the light and colours of photographs, 32 x 32"),
    "adult": BuiltIn(adult.adult, "census records: is the income above 50,000 dollars?"),
    "ag-news": BuiltInVectors(ag_news.ag_news, ag_news.TOKENS, "news articles on four topics, as GloVe word vectors"),
    "ag-news-words": BuiltInTexts(ag_news.ag_news, "the same, as words"),
    "sst2": BuiltInTexts(sst2.sst2, "sentences of film reviews: positive?"),
    "sst2-glove": BuiltInVectors(sst2.sst2, sst2.TOKENS, "the same, as GloVe word vectors"),
    "imdb": BuiltInTexts(imdb.imdb, "whole film reviews: positive?"),
    "imdb-glove": BuiltInVectors(imdb.imdb, imdb.TOKENS, "the same, as GloVe word vectors"),
    **{
        f"adbench-{name}": BuiltIn(partial(adbench.read, name), table.description)
        for name, table in adbench.TABLES.items()
    },
}


def names() -> tuple[str, ...]:
    """The names of the built-in data sets.

    >>> "digits" in names()
    True
    """
    return tuple(REGISTRY)
