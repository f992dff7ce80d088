"""The number of a word by a fixed hash, and a public list of common words."""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import ClassVar, TypeAlias

import numpy as np

from noisette.data import words
from noisette.data.errors import DataError
from noisette.data.words import Vocabulary


def number_of(word: str, words: int) -> int:
    """A number from 1 to words - 1, the same on every machine.

    >>> number_of("oil", 100)
    29
    """
    return 1 + int.from_bytes(hashlib.blake2b(word.encode(), digest_size=8).digest()) % (words - 1)


def frequent_words() -> list[str]:
    """The 1,000 most frequent words of English in the texts that GloVe was learned from, the most frequent one first.

    Source: the order of the words in glove.6B, which is in the public domain (PDDL 1.0); Pennington, Socher & Manning
    2014.
    """
    return Path(__file__).with_name("frequent_words.txt").read_text(encoding="utf-8").split()


PADDING = 0  # of no word, where words are hashed


@dataclass(frozen=True)
class Numbering:
    """How a text becomes numbers of words.

    tokens: how many words of a text are used, the first ones; shorter texts are padded.
    words: how many numbers words are hashed to, padding included. Words with one hash count as the same.
    folder: a folder of Hugging Face, whose tokenizer numbers the words instead.

    Guarantee: the number of a word depends on the word alone, never on the texts: no vocabulary is learned from them.

    Raises:
        DataError: a number is too small.

    >>> Numbering(tokens=4, words=100).number(["Oil rose", "oil"])
    array([[29,  4,  0,  0],
           [29,  0,  0,  0]])
    """

    tokens: int = 64
    words: int = 4096
    folder: Path | None = None

    vectors: ClassVar[None] = None  # a model learns what the words mean
    note: ClassVar[str] = ""

    def __post_init__(self) -> None:
        if self.tokens < 1 or self.words < 2:
            raise DataError(f"expected tokens >= 1 and words >= 2, got tokens={self.tokens} and words={self.words}")

    def number(self, texts: Sequence[str]) -> np.ndarray:
        """The numbers of the words of each text, int64, (n, tokens).

        Raises:
            DataError: the tokenizer cannot be loaded.
        """
        return self._hashed(texts) if self.folder is None else _tokenized(self.folder, texts, self.tokens)

    @property
    def size(self) -> int:
        """How many different numbers there are, from 0 on.

        Raises:
            DataError: the tokenizer cannot be loaded.
        """
        return self.words if self.folder is None else len(_tokenizer(self.folder))

    def _hashed(self, texts: Sequence[str]) -> np.ndarray:
        numbers: dict[str, int] = {}
        numbered = np.full((len(texts), self.tokens), PADDING, np.int64)
        for row, text in zip(numbered, texts, strict=True):
            found = words.split(text, self.tokens)
            row[: len(found)] = [numbers.setdefault(word, number_of(word, self.words)) for word in found]
        return numbered


@dataclass(frozen=True)
class VectorNumbering:
    """Texts as numbers of public words whose vectors are known, such as :func:`noisette.data.glove.glove`.

    vocabulary: the words and their vectors.
    tokens: how many words of a text are used, the first ones; shorter texts are padded.

    Guarantee: as that of :class:`~noisette.data.words.Vocabulary`.
    """

    vocabulary: Vocabulary
    tokens: int

    size: ClassVar[int] = 0  # no meaning is learned

    def number(self, texts: Sequence[str]) -> np.ndarray:
        """The numbers of the words of each text, int64, (n, tokens)."""
        return self.vocabulary.number(texts, tokens=self.tokens)

    @property
    def vectors(self) -> np.ndarray:
        """The vector of each number, float32, (words, dims)."""
        return self.vocabulary.numbered_vectors

    @property
    def note(self) -> str:
        """What a report must mention about the words."""
        return self.vocabulary.note


AnyNumbering: TypeAlias = Numbering | VectorNumbering
"""A way in which texts become numbers of words."""


def _tokenized(folder: Path, texts: Sequence[str], tokens: int) -> np.ndarray:
    found = _tokenizer(folder)(list(texts), truncation=True, max_length=tokens, padding="max_length")
    return np.array(found["input_ids"], dtype=np.int64)


def _tokenizer(folder: Path):
    """The tokenizer in a folder, with a number for padding; no code of the folder is run and nothing is downloaded."""
    try:
        from transformers import AutoTokenizer
    except ImportError as error:
        raise DataError(f"{folder} needs Hugging Face's transformers: pip install transformers") from error
    try:
        tokenizer = AutoTokenizer.from_pretrained(folder, local_files_only=True, trust_remote_code=False)
    except (OSError, ValueError, KeyError) as error:
        raise DataError(f"{folder} holds no tokenizer that can be loaded: {error}") from error
    if tokenizer.pad_token is None:
        tokenizer.pad_token = tokenizer.eos_token
    if tokenizer.pad_token is None:
        raise DataError(f"the tokenizer in {folder} has no token for padding; set pad_token and save it again")
    tokenizer.padding_side = "right"
    return tokenizer
