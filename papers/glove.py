"""GloVe's word vectors, and AG News with them, on which papers train."""

from __future__ import annotations

from array import array
from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from pathlib import Path

import numpy as np

from noisette.data import DataError, DataSet, files
from noisette.data.built_in_tables import ag_news
from noisette.data.dataset import refuse
from noisette.data.words import PADDING, Numbering, split

UNKNOWN = PADDING + 1  # of all words that have no vector; words with a vector follow
WHOLE = "glove.6B.100d.txt"
MOST_FREQUENT = "glove.6B.50d.top2445.npz"
ADDRESS = "https://nlp.stanford.edu/data/glove.6B.zip"  # 0.8 GB without a published checksum, so users download it
_WORDS = 400_000


@dataclass(frozen=True, eq=False, kw_only=True)
class Vocabulary(Numbering):
    """Different public words, ``known``, and their vectors, float32, (known, dims), which number texts.

    ``note`` is what a report of results must mention about them; of a text the first ``tokens`` words are used.

    Guarantee: the number of a word depends on this list alone, so neither it nor the shape of a model reveals anything
    about the texts that are numbered.
    """

    known: Sequence[str]
    vectors: np.ndarray
    note: str

    @property
    def size(self) -> int:
        return 0  # no meaning is learned

    @cached_property
    def _numbers(self) -> dict[str, int]:
        return {word: number for number, word in enumerate(self.known, start=UNKNOWN + 1)}

    @property
    def numbered_vectors(self) -> np.ndarray:
        """The vector of each number, float32, (2 + words, dims): zero for padding, for an unknown word the mean."""
        padding = np.zeros_like(self.vectors[0])
        return np.stack([padding, self.vectors.mean(0, dtype=np.float64).astype(np.float32), *self.vectors])

    def number(self, texts: Sequence[str]) -> np.ndarray:
        """The first words of each text as numbers, int64, (n, tokens); short texts are padded at the end."""
        rows = np.full((len(texts), self.tokens), PADDING, np.int64)
        for row, text in zip(rows, texts, strict=True):
            found = [self._numbers.get(word, UNKNOWN) for word in split(text, self.tokens)]
            row[: len(found)] = found
        return rows


def ag_news_by_vectors(data_dir: Path | None) -> DataSet:
    """AG News: inputs (n, 20, dims) are GloVe's vectors of the first 20 words of an article."""
    words = replace(glove(data_dir), tokens=20)
    data = ag_news(data_dir, words)
    train, test = (
        split and replace(split, inputs=words.numbered_vectors[split.inputs]) for split in (data.train, data.test)
    )
    assert train, "there are articles to train on"
    return replace(data, train=train, test=test, words=0, note="; ".join(filter(None, [data.note, words.note])))


def glove(data_dir: Path | None) -> Vocabulary:
    """400,000 words with vectors of 100 numbers; or from a smaller copy, the 2,445 most frequent ones with 50.

    They were learned from public texts (Pennington, Socher & Manning 2014). Looked for in ``glove/`` where data
    sets are; a ``DataError`` says which file to put where, or what is damaged.
    """
    layouts = {
        (WHOLE,): lambda folder: read_vectors(folder / WHOLE, words=_WORDS, dims=100),
        (MOST_FREQUENT,): lambda folder: read_vectors_npz(folder / MOST_FREQUENT),
    }
    found = files.first("glove", layouts, data_dir=data_dir)
    if found is None:
        place = files.folders("glove", data_dir)[0]
        raise DataError(f"the GloVe word vectors are not on this machine: put {WHOLE} from {ADDRESS} into {place}")
    return found


def read_vectors(path: Path, *, words: int, dims: int) -> Vocabulary:
    """The vocabulary in a text of ``words`` lines or more: a word and ``dims`` numbers, separated by one space.

    A ``DataError`` lists the lines that are not of this form.
    """
    found: list[str] = []
    numbers = array("f")
    problems = []
    with path.open("rb") as stream:
        for line, content in enumerate(stream, start=1):
            word, *fields = content.rstrip(b"\n").split(b" ")
            try:
                values = array("f", map(float, fields))
                found.append(word.decode())
            except ValueError:
                values = ()
            if len(values) == dims:
                numbers.extend(values)
            else:
                problems.append(f"line {line} is no word with {dims} numbers")
    if len(found) < words:
        problems.append(f"there are {len(found)} words instead of {words:,}")
    refuse(f"{path} is not GloVe as published; download it again", problems)
    return _vocabulary(path, found, np.frombuffer(numbers, np.float32).reshape(-1, dims), note="")


def read_vectors_npz(path: Path) -> Vocabulary:
    """The vocabulary in arrays ``words`` (words,) and ``vectors`` (words, dims), of the most frequent words."""
    words, vectors = files.read_npz(path, "words", "vectors")
    fit = words.dtype.kind == "U" and vectors.dtype == np.float32 and vectors.ndim == 2
    if not fit or not vectors.size or words.shape != vectors.shape[:1]:
        got = f"words {words.dtype} {words.shape} and vectors {vectors.dtype} {vectors.shape}"
        raise DataError(
            f"{path}: expected words, texts (n,), and vectors, float32 (n, dims), got {got}; download it again"
        )
    note = f"word vectors of only the {len(words):,} most frequent words of GloVe, of dimension {vectors.shape[1]}"
    return _vocabulary(path, words.tolist(), vectors, note=note)


def _vocabulary(path: Path, words: list[str], vectors: np.ndarray, *, note: str) -> Vocabulary:
    problems = [f"the vector of word {row + 1} is not finite" for row in np.flatnonzero(~np.isfinite(vectors).all(1))]
    if len(set(words)) < len(words):
        problems.append(f"{len(words) - len(set(words))} words appear twice")
    refuse(f"{path} is damaged; download it again", problems)
    return Vocabulary(known=words, vectors=vectors, note=note)
