"""Splitting texts into words, and numbering the words by a fixed hash."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from noisette.data import DataError
from noisette.data.words import PADDING, Numbering, frequent_words, number_of, split

FEW = Numbering(tokens=3, words=50)


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("  \t\n", []),
        ("the U.S. and the U.N.'s envoy", ["the", "u.s.", "and", "the", "u.n.", "'s", "envoy"]),
        ("up 1,000.50, or 3.5%.", ["up", "1,000.50", ",", "or", "3.5", "%", "."]),
        ("the 4th of the 1980s", ["the", "4th", "of", "the", "1980s"]),
        ("They're sure it isn't, can't", ["they", "'re", "sure", "it", "is", "n't", ",", "ca", "n't"]),
        ("traders’ ultra-cynics -- or...", ["traders", "'", "ultra", "-", "cynics", "--", "or", "..."]),
        ("snake_case a1b2", ["snake", "_", "case", "a", "1", "b", "2"]),
        ("Zürich ÉTÉ 東京", ["zürich", "été", "東京"]),
        # Remains of markup are decoded or removed.
        ("the company #39;s  #36;10", ["the", "company", "'s", "$", "10"]),
        ("said  quot;yes, quot; AT amp;T", ["said", '"', "yes", ",", '"', "at", "&", "t"]),
        ("fell \\$36bn\\band", ["fell", "$", "36", "bn", "band"]),
        ('&lt;A HREF="http://www.x.com/a"&gt;DELL.O&lt;/A&gt;', ["dell", ".", "o"]),
        ("1 &lt; 2 &amp; 3; team #1", ["1", "<", "2", "&", "3", ";", "team", "#", "1"]),
    ],
)
def test_words_numbers_and_punctuation_are_separated(text: str, words: list[str]) -> None:
    assert split(text) == words


def test_long_texts_are_truncated_and_short_ones_padded_at_the_end() -> None:
    hashed = FEW.number(["", "one", "One two three four"])
    assert hashed[:2].tolist() == [[PADDING] * 3, [hashed[2, 0], PADDING, PADDING]]
    assert (hashed[2] > PADDING).all()
    assert hashed.max() < FEW.size


def test_the_number_of_a_word_depends_on_no_other_text() -> None:
    texts = ["a good film", "zyzzyva " * 50, "the oil is dull", "oil"]
    for row, text in zip(FEW.number(texts), texts, strict=True):
        assert np.array_equal(FEW.number([text])[0], row)


def test_hashed_numbers_are_always_the_same_and_spread_evenly() -> None:
    assert [number_of(word, 100) for word in ("oil", "rose")] == [29, 4]
    numbers = Numbering(tokens=1, words=101).number(["".join(chr(97 + int(d)) for d in str(n)) for n in range(5000)])
    counts = np.bincount(numbers[:, 0], minlength=101)[1:]
    assert counts.min() > 50 - 5 * 7
    assert counts.max() < 50 + 5 * 7


def test_common_words_are_all_different_and_have_numbers_from_1_on() -> None:
    words = frequent_words()
    assert len(words) == len(set(words)) == 1000
    assert words[:4] == ["the", ",", ".", "of"]
    assert all(word == word.lower() for word in words)
    numbers = [number_of(word, 50) for word in words]
    assert (min(numbers), max(numbers)) == (1, 49)


def test_what_cannot_number_words(tmp_path: Path) -> None:
    for settings in ({"tokens": 0}, {"words": 1}):
        with pytest.raises(DataError, match="expected tokens >= 1 and words >= 2"):
            Numbering(**settings)
    pytest.importorskip("transformers", reason="transformers is not installed")
    with pytest.raises(DataError, match="holds no tokenizer that can be loaded"):
        Numbering(folder=tmp_path).number(["a"])
