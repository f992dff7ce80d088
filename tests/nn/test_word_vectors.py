"""Sums of word vectors against a loop over texts."""

from __future__ import annotations

import pytest
import torch

from noisette.nn import WordVectors

TEXTS = torch.tensor([[5, 3, 5, 5, 0, 0], [1, 2, 3, 4, 5, 6], [0, 0, 0, 0, 0, 0]])


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
