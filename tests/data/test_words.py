"""Splitting texts into words, and numbering the words by public words alone."""

from __future__ import annotations

import numpy as np
import pytest

from noisette.data.words import PADDING, UNKNOWN, Vocabulary, split

VOCABULARY = Vocabulary(("the", "oil", "price", "'s", "."), np.arange(10, dtype=np.float32).reshape(5, 2), "")


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("", []),
        ("  \t\n", []),
        ("Wall St. Bears", ["wall", "st", ".", "bears"]),
        ("the U.S. and the U.N.'s envoy", ["the", "u.s.", "and", "the", "u.n.", "'s", "envoy"]),
        ("up 1,000.50, or 3.5%.", ["up", "1,000.50", ",", "or", "3.5", "%", "."]),
        ("the 4th of the 1980s", ["the", "4th", "of", "the", "1980s"]),
        ("They're sure it isn't, can't", ["they", "'re", "sure", "it", "is", "n't", ",", "ca", "n't"]),
        ("traders’ and trader’s", ["traders", "'", "and", "trader", "'s"]),
        ("ultra-cynics -- or... worse", ["ultra", "-", "cynics", "--", "or", "...", "worse"]),
        ("snake_case a1b2", ["snake", "_", "case", "a", "1", "b", "2"]),
        ("Zürich ÉTÉ 東京", ["zürich", "été", "東京"]),
    ],
)
def test_words_numbers_and_punctuation_are_separated(text: str, words: list[str]) -> None:
    assert split(text) == words


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("the company #39;s shares", ["the", "company", "'s", "shares"]),
        ("for  #36;10 million", ["for", "$", "10", "million"]),
        ("said  quot;yes, quot; he", ["said", '"', "yes", ",", '"', "he"]),
        ("AT amp;T", ["at", "&", "t"]),
        ("dwindling\\band of", ["dwindling", "band", "of"]),
        ("fell \\$36bn", ["fell", "$", "36", "bn"]),
        ("&lt;b&gt;Opinion&lt;/b&gt; here", ["opinion", "here"]),
        ('&lt;A HREF="http://www.x.com/a"&gt;DELL.O&lt;/A&gt;', ["dell", ".", "o"]),
        ("1 &lt; 2 &amp; 3 &gt; 2", ["1", "<", "2", "&", "3", ">", "2"]),
        ("a plain; list and team #1", ["a", "plain", ";", "list", "and", "team", "#", "1"]),
    ],
)
def test_remains_of_markup_are_decoded_or_removed(text: str, words: list[str]) -> None:
    assert split(text) == words


def test_long_texts_are_truncated_and_short_ones_padded_at_the_end() -> None:
    numbers = VOCABULARY.number(["The oil price", "the oil . the oil", ""], tokens=4)
    assert numbers.dtype == np.int64
    assert numbers.tolist() == [[2, 3, 4, PADDING], [2, 3, 6, 2], [PADDING] * 4]


def test_a_word_without_a_vector_is_unknown_and_not_padding() -> None:
    assert VOCABULARY.number(["the zyzzyva oil"], tokens=3).tolist() == [[2, UNKNOWN, 3]]
    assert UNKNOWN != PADDING


def test_padding_is_zero_unknown_is_the_mean_and_words_keep_their_vectors() -> None:
    vectors = VOCABULARY.numbered_vectors
    assert vectors.dtype == np.float32
    assert vectors.tolist() == [[0, 0], [4, 5], [0, 1], [2, 3], [4, 5], [6, 7], [8, 9]]


def test_the_mean_of_many_vectors_is_not_rounded_away() -> None:
    vectors = np.full((100_000, 2), 16_777.217, np.float32)
    found = Vocabulary([str(row) for row in range(len(vectors))], vectors, "").numbered_vectors
    assert (found[1] == vectors[0]).all()


def test_the_number_of_a_word_does_not_depend_on_the_other_texts() -> None:
    alone = VOCABULARY.number(["oil is the price"], tokens=6)
    among = VOCABULARY.number(["zyzzyva " * 50, "oil is the price", "is is is"], tokens=6)
    assert (alone[0] == among[1]).all()
