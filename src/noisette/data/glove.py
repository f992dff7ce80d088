"""GloVe word vectors, learned from public texts: Wikipedia of 2014 and the Gigaword corpus of news.

Source: Pennington, Socher & Manning 2014.
"""

from __future__ import annotations

from array import array
from pathlib import Path

import numpy as np

from noisette.data import files
from noisette.data.errors import DataError, refuse
from noisette.data.words import Vocabulary

WHOLE = "glove.6B.100d.txt"
MOST_FREQUENT = "glove.6B.50d.top2445.npz"
ADDRESS = "https://nlp.stanford.edu/data/glove.6B.zip"  # 0.8 GB without a published checksum, so users download it

_WORDS = 400_000


def glove(data_dir: Path | None) -> Vocabulary:
    """400,000 words with vectors of 100 numbers; or from a smaller copy, the 2,445 most frequent ones with 50.

    The files are looked for in ``glove/`` under the folders that are searched for data sets.

    Raises:
        DataError: they are absent or damaged; the message says which file to put where.
    """
    layouts = {
        (WHOLE,): lambda folder: read_text(folder / WHOLE, words=_WORDS, dims=100),
        (MOST_FREQUENT,): lambda folder: read_npz(folder / MOST_FREQUENT),
    }
    found = files.first("glove", layouts, data_dir=data_dir)
    if found is None:
        place = files.folders("glove", data_dir)[0]
        raise DataError(f"the GloVe word vectors are not on this machine: put {WHOLE} from {ADDRESS} into {place}")
    return found


def read_text(path: Path, *, words: int, dims: int) -> Vocabulary:
    """The vocabulary in a text of ``words`` lines or more: a word and ``dims`` numbers, separated by one space.

    Raises:
        DataError: lists the lines that are not of this form; there are fewer lines, as in a truncated file.
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
                problems.append(f"line {line} has an invalid number or word")
                continue
            if len(values) == dims:
                numbers.extend(values)
            else:
                problems.append(f"line {line} has {len(values)} numbers instead of {dims}")
    if len(found) < words:
        problems.append(f"there are {len(found)} words instead of {words:,}")
    refuse(f"{path} is not GloVe as published; download it again", problems)
    return _vocabulary(path, found, np.frombuffer(numbers, np.float32).reshape(-1, dims), note="")


def read_npz(path: Path) -> Vocabulary:
    """The vocabulary in arrays ``words`` (words,) and ``vectors`` (words, dims), of the most frequent words.

    Raises:
        DataError: the file is damaged or holds other arrays.
    """
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
    """The vocabulary, checked: all words are different and all vectors finite."""
    problems = [f"the vector of word {row + 1} is not finite" for row in np.flatnonzero(~np.isfinite(vectors).all(1))]
    if len(set(words)) < len(words):
        problems.append(f"{len(words) - len(set(words))} words appear twice")
    refuse(f"{path} is damaged; download it again", problems)
    return Vocabulary(words, vectors, note)
