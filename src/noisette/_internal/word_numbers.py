"""The number of a word by a fixed hash, and a public list of common words."""

from __future__ import annotations

import hashlib
from pathlib import Path


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
