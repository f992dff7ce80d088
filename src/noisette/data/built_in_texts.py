"""The built-in sets of texts, AG News, SST-2 and IMDB, and GloVe's word vectors."""

from __future__ import annotations

import io
import re
from array import array
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import TextIO

import numpy as np

from noisette.data import files, tables
from noisette.data.columns import codes
from noisette.data.dataset import DataError, DataSet, Split, in_rows, refuse
from noisette.data.files import BuiltIn
from noisette.data.words import AnyNumbering, Vocabulary

AG_NEWS = files.Source(
    "https://raw.githubusercontent.com/mhjabreel/CharCnn_Keras/master/data/ag_news_csv/",
    {"train.csv": "md5:b1a00f826fdfbd249f79597b59e1dc12", "test.csv": "md5:d52ea96a97a2d943681189a97654912d"},
)
SST2 = files.Source("https://dl.fbaipublicfiles.com/glue/data/", {"SST-2.zip": "md5:9f81648d4199384278b86e315dac217c"})
IMDB = files.Source(
    "https://ai.stanford.edu/~amaas/data/sentiment/", {"aclImdb_v1.tar.gz": "md5:7c2ac02c03563afcf9b574c7e56c153a"}
)
_REVIEW = re.compile(r"aclImdb/(train|test)/(neg|pos)/\d+_\d+\.txt")

WHOLE = "glove.6B.100d.txt"
MOST_FREQUENT = "glove.6B.50d.top2445.npz"
ADDRESS = "https://nlp.stanford.edu/data/glove.6B.zip"  # 0.8 GB without a published checksum, so users download it
_WORDS = 400_000


Part = tuple[Path, Sequence[str], Sequence[str]]  # a file, its texts and their labels


def ag_news(data_dir: Path | None, numbering: AnyNumbering) -> DataSet:
    """AG News, is an article about the world, sports, business, or science: 120,000 + 7,600, or a part of 18,349.

    Inputs (n, tokens) are numbers of the first words of title and description together.

    Guarantee: a record is one article. There is no guarantee for a smaller unit, such as one word, nor for a larger
    one, such as all articles of one author.
    """

    def articles(path: Path) -> Part:
        rows = tables.table(path, header=("class", "title", "description"), rows=tables.rows(path))
        texts = [" ".join(parts) for parts in zip(rows["title"], rows["description"], strict=True)]
        return path, texts, rows["class"]

    def official(folder: Path) -> DataSet:
        parts = [articles(folder / name) for name in AG_NEWS.files]
        return _data_set("ag-news", parts, ("1", "2", "3", "4"), 120_000, numbering)

    def subset(folder: Path) -> DataSet:
        note = "trained on 18,349 of the 120,000 training articles of AG News: not comparable with published results"
        parts = [_labelled(folder / name, "text") for name in copy]
        return _data_set("ag-news", parts, ("0", "1", "2", "3"), 18_349, numbering, note)

    copy = ("train_subset.csv.gz", "test.csv.gz")
    return files.read("ag_news", AG_NEWS, official, data_dir=data_dir, copies={copy: subset})


def sst2(data_dir: Path | None, numbering: AnyNumbering) -> DataSet:
    """SST-2, is a sentence of a film review positive: 67,349 sentences and phrases, GLUE's 872 to test with.

    Inputs (n, tokens) are numbers of words.

    Guarantee: a record is one sentence or phrase. Phrases were cut from sentences, so several may be parts of one.
    """

    def official(folder: Path) -> DataSet:
        archive, names = folder / "SST-2.zip", ["SST-2/train.tsv", "SST-2/dev.tsv"]
        found = _texts_in(archive, names.__contains__)
        refuse(f"{archive} is damaged or not SST-2", [f"it has no {name}" for name in names if name not in found])
        return sentences({archive / name: _tab_separated(io.StringIO(found[name], newline="")) for name in names})

    def of_copy(folder: Path) -> DataSet:
        return sentences({folder / name: tables.parsed(folder / name, _tab_separated) for name in copy})

    def sentences(lines: Mapping[Path, Sequence[Sequence[str]]]) -> DataSet:
        parts = [_labelled(path, "sentence", of_file) for path, of_file in lines.items()]
        return _data_set("sst2", parts, ("0", "1"), 67_349, numbering)

    copy = ("train.tsv.gz", "dev.tsv.gz")
    return files.read("sst2", SST2, official, data_dir=data_dir, copies={copy: of_copy})


def imdb(data_dir: Path | None, numbering: AnyNumbering) -> DataSet:
    """IMDB, is a film review positive: 25,000 reviews and 25,000 to test with; inputs (n, tokens) are numbers of words.

    Guarantee: a record is one review. There is none for a larger unit, such as all reviews of one author.
    Source: Maas et al. 2011, the Large Movie Review Dataset.
    """

    def official(folder: Path) -> DataSet:
        archive = folder / "aclImdb_v1.tar.gz"
        texts = _texts_in(archive, lambda name: bool(_REVIEW.fullmatch(name)))
        of_splits = [[name for name in texts if name.startswith(f"aclImdb/{split}/")] for split in ("train", "test")]
        if not all(of_splits):
            raise DataError(f"{archive}: there are no reviews in train or in test")
        parts = [(archive, [texts[n] for n in names], [n.split("/")[2] for n in names]) for names in of_splits]
        return _data_set("imdb", parts, ("neg", "pos"), 25_000, numbering)

    def of_copy(folder: Path) -> DataSet:
        parts = [_labelled(folder / name, "text") for name in copy]
        return _data_set("imdb", parts, ("0", "1"), 25_000, numbering)

    copy = ("train.csv.xz", "test.csv.xz")
    return files.read("imdb", IMDB, official, data_dir=data_dir, copies={copy: of_copy})


def _texts_in(archive: Path, wanted: Callable[[str], bool]) -> dict[str, str]:
    try:
        return {name: content.decode() for name, content in files.members(archive, wanted)}
    except UnicodeDecodeError as error:
        raise DataError(f"{archive} is damaged ({error}); download it again") from error


def _tab_separated(stream: TextIO) -> list[list[str]]:
    """The fields of each line, in which a quote is like any character."""
    return [line.split("\t") for line in stream.read().split("\n") if line]


def _labelled(path: Path, text: str, lines: Sequence[Sequence[str]] | None = None) -> Part:
    """The columns ``text`` and label; the first line has the names of the columns."""
    header, *rows = (tables.rows(path) if lines is None else lines) or [[]]
    found = tables.table(path, header=header, rows=rows)
    refuse(str(path), [f"there is no column {name!r}" for name in ("label", text) if name not in found])
    return path, found[text], found["label"]


def _data_set(
    name: str, parts: Sequence[Part], classes: Sequence[str], size: int, numbering: AnyNumbering, note: str = ""
) -> DataSet:
    splits = []
    for path, texts, labels in parts:
        targets = codes(labels, classes)
        if unknown := np.flatnonzero(targets < 0).tolist():
            raise DataError(f"{path}: the class is none of {', '.join(classes)} {in_rows(unknown)}")
        splits.append(Split(numbering.number(texts), targets))
    notes, words, vectors = "; ".join(filter(None, [note, numbering.note])), numbering.size, numbering.numbered_vectors
    return DataSet(name, *splits, classes=len(classes), declared_size=size, note=notes, words=words, vectors=vectors)


# Word vectors


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
    return Vocabulary(words, vectors, note)


TEXTS = {
    "ag-news": BuiltIn(ag_news, "news articles on four topics, as GloVe word vectors", texts=True, tokens=20),
    "ag-news-words": BuiltIn(ag_news, "the same, as words", texts=True),
    "sst2": BuiltIn(sst2, "sentences of film reviews: positive?", texts=True),
    "sst2-glove": BuiltIn(sst2, "the same, as GloVe word vectors", texts=True, tokens=32),
    "imdb": BuiltIn(imdb, "whole film reviews: positive?", texts=True),
    "imdb-glove": BuiltIn(imdb, "the same, as GloVe word vectors", texts=True, tokens=128),
}
