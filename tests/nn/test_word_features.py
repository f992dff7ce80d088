"""Counts of words and sums of word vectors, against loops over texts."""

from __future__ import annotations

import math
from collections import Counter

import pytest
import torch

from noisette.nn import WordCounts, WordVectors

TEXTS = torch.tensor([[5, 3, 5, 5, 0, 0], [1, 2, 3, 4, 5, 6], [0, 0, 0, 0, 0, 0]])


def test_counts_are_those_of_a_loop_over_words() -> None:
    weights = torch.tensor([9.0, 1.0, 2.0, 0.5, 1.0, 3.0, 1.0])
    found = WordCounts(weights)(TEXTS)
    for row, text in zip(found.tolist(), TEXTS.tolist(), strict=True):
        expected = [0.0] * 7
        for word, count in Counter(word for word in text if word).items():
            expected[word] = math.sqrt(count) * weights[word].item()
        assert row == pytest.approx([value / (math.hypot(*expected) or 1) for value in expected], rel=1e-5)


def test_every_text_has_length_one_but_an_empty_one() -> None:
    lengths = WordCounts(torch.rand(7) + 0.1)(TEXTS).norm(dim=1)
    torch.testing.assert_close(lengths, torch.tensor([1.0, 1.0, 0.0]))


def test_the_order_of_words_and_bytes_of_padding_do_not_matter() -> None:
    counts = WordCounts(torch.ones(7))
    torch.testing.assert_close(counts(TEXTS.flip(1).int()), counts(TEXTS))


def test_sums_are_those_of_a_loop_over_words() -> None:
    vectors = torch.randn(7, 4, dtype=torch.float64)
    for row, text in zip(WordVectors(vectors)(TEXTS), TEXTS.tolist(), strict=True):
        total = torch.zeros(4, dtype=torch.float64)
        for word in text:
            total = total + vectors[word] * (word != 0)
        torch.testing.assert_close(row, total / (total.norm() or 1))


@pytest.mark.parametrize("unlisted", [1, 6])
def test_a_word_whose_vector_is_zero_changes_nothing(unlisted: int) -> None:
    vectors = torch.randn(7, 4)
    vectors[unlisted] = 0
    module = WordVectors(vectors)
    torch.testing.assert_close(module(torch.tensor([[2, unlisted, 3]])), module(torch.tensor([[2, 0, 3]])))
