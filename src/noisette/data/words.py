"""Splits texts into words by a fixed rule, and numbers the words by a public vocabulary with vectors."""

from __future__ import annotations

import html
import re
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from itertools import islice

import numpy as np

PADDING, UNKNOWN = 0, 1  # of no word, and of all words that have no vector; words with a vector follow

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
    | [^\w\s] | _                # any other character, alone
    """,
    re.VERBOSE,
)


def split(text: str, most: int | None = None) -> list[str]:
    """The words, numbers and punctuation of a text, in lower case, split as for GloVe as far as fixed rules allow.

    With ``most``, the first ones of the text, as many as that.

    Remains of character references are decoded; markup and backslashes are removed.

    >>> split("Oil at  #36;46.50\\\\a barrel, the company #39;s traders hadn't &lt;b&gt;sold&lt;/b&gt;.")
    ['oil', 'at', '$', '46.50', 'a', 'barrel', ',', 'the', 'company', "'s", 'traders', 'had', "n't", 'sold', '.']
    """
    whole = html.unescape(_BARE_REFERENCE.sub(r"&\1;", text)).lower()
    plain = _TAG.sub(" ", whole).replace("\\", " ").replace("’", "'")
    return [match[0] for match in islice(_WORD.finditer(plain), most)]


@dataclass(frozen=True, eq=False)
class Vocabulary:
    """Different public words and their vectors, float32, (words, dims).

    ``note`` is what a report of results must mention about them; "" if nothing.

    Guarantee: the number of a word depends on this list alone, so neither it nor the shape of a model reveals anything
    about the texts that are numbered.
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

        Padding has the zero vector. An unknown word has the mean of all vectors: without further knowledge the best
        estimate, and different from padding, so a model can tell an unknown word from the end of a text.
        """
        padding = np.zeros_like(self.vectors[0])
        return np.stack([padding, self.vectors.mean(0, dtype=np.float64).astype(np.float32), *self.vectors])

    def number(self, texts: Sequence[str], *, tokens: int) -> np.ndarray:
        """The first ``tokens`` words of each text as numbers, int64, (n, tokens); short texts are padded at the end.

        >>> vocabulary = Vocabulary(("oil", "price"), np.eye(2, dtype=np.float32), "")
        >>> vocabulary.number(["The oil price rose", "Oil"], tokens=3)
        array([[1, 2, 3],
               [2, 0, 0]])
        """
        numbered = np.full((len(texts), tokens), PADDING, np.int64)
        for row, text in zip(numbered, texts, strict=True):
            found = [self._numbers.get(word, UNKNOWN) for word in split(text, tokens)]
            row[: len(found)] = found
        return numbered
