"""A linear layer on the counts of a text's words, alone or beside the words' vectors."""

from __future__ import annotations

import torch
from torch import Tensor, nn

from noisette._internal.word_numbers import frequent_words, number_of
from noisette.models.fixed_features import FixedFeatures
from noisette.models.shapes import Shape, need_axes
from noisette.nn import WordCounts, WordVectors

_DIMS, _SHARE = 50, 0.25  # numbers of a vector, and the vectors' share of the squared length of all features
_POWER = 0.3  # of the rank; by it the weight of a word grows from 1 for the most frequent one to 8 for an unlisted one


def word_counts(shape: Shape, classes: int, *, words: int = 4096, ranked: bool = False) -> FixedFeatures:
    """The roots of a text's counts of words, brought to length one, and one linear layer; the order is not used.

    Args:
        shape: (tokens,) of one text: the number of each word, 0 for padding.
        classes: number of scores for each text.
        words: how many numbers of words there are.
        ranked: whether common English words have less weight, by their rank in a public list. It needs words that are
            numbered by noisette's hash.

    Guarantee: the list is a public constant, see :func:`noisette._internal.word_numbers.frequent_words`.

    Raises:
        ValueError: examples are not sequences of words, or there are too few numbers of them.
    """
    need_axes("word-counts", shape, 1, "texts as numbers of words (tokens,)")
    weights = _rank_weights(words) if ranked else torch.ones(words)
    return FixedFeatures(WordCounts(weights), nn.Linear(words, classes, bias=False))


def word_counts_and_vectors(shape: Shape, classes: int, *, words: int = 4096) -> FixedFeatures:
    """Counts weighted by public ranks, beside the sum of the vectors of a text's words, and one linear layer.

    The vectors are constants of 50 numbers. They are random, which adds nothing to the counts, until
    :func:`noisette.models.pretrained` loads public ones; ``python -m experiments.word_vectors`` makes a file of those
    of GloVe.

    Args:
        shape: (tokens,) of one text: the number of each word by noisette's hash, 0 for padding.
        classes: number of scores for each text.
        words: how many numbers words are hashed to.

    Raises:
        ValueError: examples are not sequences of words, or there are too few numbers of them.
    """
    need_axes("word-counts-and-vectors", shape, 1, "texts as numbers of words (tokens,)")
    vectors = torch.randn(words, _DIMS, generator=torch.Generator().manual_seed(0))
    return FixedFeatures(
        _CountsAndVectors(_rank_weights(words), vectors), nn.Linear(words + _DIMS, classes, bias=False)
    )


class _CountsAndVectors(nn.Module):
    """Both features of a text side by side, together of length one: (b, tokens) to (b, words + dims)."""

    def __init__(self, weights: Tensor, vectors: Tensor) -> None:
        super().__init__()
        self.counts, self.vectors = WordCounts(weights), WordVectors(vectors)

    def forward(self, numbers: Tensor) -> Tensor:
        return torch.cat([(1 - _SHARE) ** 0.5 * self.counts(numbers), _SHARE**0.5 * self.vectors(numbers)], 1)


def _rank_weights(words: int) -> Tensor:
    """rank^0.3 for each number of a word, (words,); where words share a number, the most frequent one counts.

    The frequency of a word is about inverse to its rank (Zipf's law), so these are frequencies to the power of -0.3.
    """
    if words < 2:
        raise ValueError(f"expected words >= 2, of which 0 is padding, got words={words}")
    common = frequent_words()
    ranks = torch.full((words,), len(common) + 1.0)
    for rank, word in reversed(list(enumerate(common, start=1))):
        ranks[number_of(word, words)] = rank
    return ranks**_POWER
