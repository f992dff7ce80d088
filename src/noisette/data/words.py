"""Texts as numbers of words: by a fixed rule, and a fixed hash or a public tokenizer, never by the texts."""

import hashlib
import html
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import islice
from pathlib import Path
from typing import Any

import numpy as np

from noisette.data.dataset import DataError

PADDING = 0  # the number of no word

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

    Remains of character references are decoded; markup and backslashes are removed. With ``most``, only the first ones.
    """
    whole = html.unescape(_BARE_REFERENCE.sub(r"&\1;", text)).lower()
    plain = _TAG.sub(" ", whole).replace("\\", " ").replace("’", "'")
    return [match[0] for match in islice(_WORD.finditer(plain), most)]


def number_of(word: str, words: int) -> int:
    """A number from 1 to words - 1, the same on every machine."""
    return 1 + int.from_bytes(hashlib.blake2b(word.encode(), digest_size=8).digest()) % (words - 1)


def frequent_words() -> list[str]:
    """The 1,000 most frequent words of English in the texts that GloVe was learned from, the most frequent one first.

    Source: the order of the words in glove.6B (Pennington et al. 2014), which is in the public domain (PDDL 1.0).
    """
    return Path(__file__).with_name("frequent_words.txt").read_text(encoding="utf-8").split()


@dataclass(frozen=True)
class Numbering:
    """How a text becomes numbers of words.

    tokens: how many words of a text are used, the first ones; shorter texts are padded.
    words: how many numbers words are hashed to, padding included. Words with one hash count as the same.
    folder: a folder of Hugging Face, whose tokenizer numbers the words instead.

    Guarantee: the number of a word depends on the word alone, never on the texts: no vocabulary is learned from them.
    """

    tokens: int = 64
    words: int = 4096
    folder: Path | None = None

    def __post_init__(self) -> None:
        if self.tokens < 1 or self.words < 2:
            raise DataError(f"expected tokens >= 1 and words >= 2, got tokens={self.tokens} and words={self.words}")

    def number(self, texts: Sequence[str]) -> np.ndarray:
        if self.folder is None:
            rows = np.full((len(texts), self.tokens), PADDING, np.int64)
            for row, text in zip(rows, texts, strict=True):
                found = [number_of(word, self.words) for word in split(text, self.tokens)]
                row[: len(found)] = found
            return rows
        tokenizer = tokenizer_of(self.folder)
        ids = tokenizer(list(texts), truncation=True, max_length=self.tokens, padding="max_length")["input_ids"]
        return np.array(ids, dtype=np.int64)

    @property
    def size(self) -> int:
        """How many different numbers there are, from 0 on."""
        return self.words if self.folder is None else len(tokenizer_of(self.folder))


def from_folder(kind: str, what: str, folder: Path, settings: Mapping[str, Any]) -> Any:
    """What a class of transformers loads from a folder; no code of the folder is run and nothing is downloaded."""
    try:
        import transformers
    except ImportError as error:
        raise DataError(f"{folder} needs Hugging Face's transformers: pip install transformers") from error
    try:
        loads = getattr(transformers, kind).from_pretrained
        return loads(folder, local_files_only=True, trust_remote_code=False, **settings)
    except (OSError, ValueError, KeyError) as error:
        raise DataError(f"{folder} holds no {what} that can be loaded: {error}") from error


def tokenizer_of(folder: Path) -> Any:
    """The tokenizer in a folder, with a number for padding."""
    tokenizer = from_folder("AutoTokenizer", "tokenizer", folder, {})
    tokenizer.pad_token = tokenizer.pad_token or tokenizer.eos_token
    if tokenizer.pad_token is None:
        raise DataError(f"the tokenizer in {folder} has no token for padding; set pad_token and save it again")
    tokenizer.padding_side = "right"
    return tokenizer
