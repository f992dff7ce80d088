"""Numbers of words, and the public list of common ones."""

from __future__ import annotations

from noisette.data.words import frequent_words, number_of


def test_numbers_of_words_are_from_1_on_and_always_the_same() -> None:
    numbers = [number_of(word, 50) for word in frequent_words()]
    assert (min(numbers), max(numbers)) == (1, 49)
    assert [number_of(word, 100) for word in ("oil", "rose")] == [29, 4]


def test_common_words_are_all_different() -> None:
    words = frequent_words()
    assert len(words) == len(set(words)) == 1000
    assert words[:4] == ["the", ",", ".", "of"]
    assert all(word == word.lower() for word in words)
