"""Texts to numbered words: a fixed rule that cuts a text into words, and public words with their vectors."""

from __future__ import annotations

import html
import re
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property

import numpy as np

PADDING, UNKNOWN = 0, 1  # the numbers of no word and of any word without a vector; those with one follow

_BARE_REFERENCE = re.compile(r"(?<![&\w])(#\d{1,6}|amp|gt|hellip|lt|nbsp|quot);", re.ASCII)  # as in "company #39;s"
_TAG = re.compile(r"</?[a-z][^<>]*>")
_WORD = re.compile(
    r"""
      (?:[a-z]\.){2,}            # u.s.
    | \d+ (?:st|nd|rd|th|s)\b    # 4th, 1980s
    | \d+ (?:[.,]\d+)*           # 1,000.50
    | [^\W\d_]+? (?=n't\b)       # had | n't
    | n't\b
    | '(?:s|re|ve|ll|d|m)\b      # company | 's
    | [^\W\d_]+
    | -{2,} | \.{2,}
    | [^\w\s] | _                # any other sign, alone
    """,
    re.VERBOSE,
)


def cut(text: str) -> list[str]:
    """The words, numbers and signs of a text, in lower case, as far as a rule without a dictionary goes as GloVe's.

    What is left of character references and markup is put right or taken out, and so are backslashes.

    >>> cut("Oil at  #36;46.50\\\\a barrel, the company #39;s traders hadn't &lt;b&gt;sold&lt;/b&gt;.")
    ['oil', 'at', '$', '46.50', 'a', 'barrel', ',', 'the', 'company', "'s", 'traders', 'had', "n't", 'sold', '.']
    """
    whole = html.unescape(_BARE_REFERENCE.sub(r"&\1;", text)).lower()
    return _WORD.findall(_TAG.sub(" ", whole).replace("\\", " ").replace("’", "'"))


@dataclass(frozen=True, eq=False)
class Vocabulary:
    """Public words, all different, and their vectors: float32, (words, dims).

    ``note`` says what a report of results must say about them; "" if nothing.

    Guarantee: the number of a word depends on this list alone, so that neither it nor the shape of a model tells
    anything about the texts that are numbered.
    """

    words: Sequence[str]
    vectors: np.ndarray
    note: str

    @cached_property
    def _numbers(self) -> dict[str, int]:
        return {word: number for number, word in enumerate(self.words, start=UNKNOWN + 1)}

    @property
    def numbered_vectors(self) -> np.ndarray:
        """The vector of each number, float32, (2 + words, dims).

        Padding has the zero vector. An unknown word has the mean of all: the best guess there is, and other than
        padding, so that a model can tell a word that it does not know from the end of a text.
        """
        none = np.zeros_like(self.vectors[0])
        return np.stack([none, self.vectors.mean(0, dtype=np.float64).astype(np.float32), *self.vectors])

    def number(self, texts: Sequence[str], *, tokens: int) -> np.ndarray:
        """The first ``tokens`` words of each text as numbers, int64, (n, tokens); short texts are padded at the end.

        >>> vocabulary = Vocabulary(("oil", "price"), np.eye(2, dtype=np.float32), "")
        >>> vocabulary.number(["The oil price rose", "Oil"], tokens=3)
        array([[1, 2, 3],
               [2, 0, 0]])
        """
        numbered = np.full((len(texts), tokens), PADDING, np.int64)
        for row, text in zip(numbered, texts, strict=True):
            found = [self._numbers.get(word, UNKNOWN) for word in cut(text)[:tokens]]
            row[: len(found)] = found
        return numbered
