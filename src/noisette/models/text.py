"""Models that learn the meaning of words: texts are numbers of words, in which 0 is padding."""

from __future__ import annotations

import torch
from torch import Tensor, nn
from torch.nn import functional

from noisette.models.shapes import Shape, need_axes

_WIDTH, _HEADS, _BLOCKS = 64, 4, 1
_START = 0.1  # standard deviation of the first word vectors


def transformer(shape: Shape, classes: int, *, words: int = 4096) -> nn.Module:
    """A small Transformer: word and place vectors of 64 numbers, one block of 4 heads, and the mean over the words.

    Args:
        shape: (tokens,) of one text: the number of each word, 0 for padding at the end.
        classes: number of scores for each text.
        words: how many numbers of words there are.

    Raises:
        ValueError: examples are not sequences of words.
    """
    need_axes("transformer", shape, 1, "texts as numbers of words (tokens,)")
    return WordTransformer(words, shape[0], classes)


def bag_of_words(shape: Shape, classes: int, *, words: int = 4096) -> nn.Module:
    """The mean of the vectors of a text's words, of 64 numbers each, and a linear layer; the order is not used.

    Raises:
        ValueError: examples are not sequences of words.
    """
    need_axes("bag-of-words", shape, 1, "texts as numbers of words (tokens,)")
    return BagOfWords(words, classes)


class BagOfWords(nn.Module):
    """Scores (b, classes) of texts (b, tokens)."""

    def __init__(self, words: int, classes: int) -> None:
        super().__init__()
        self.word = _vectors(words)
        self.scores = nn.Linear(_WIDTH, classes)

    def forward(self, numbers: Tensor) -> Tensor:
        numbers = numbers.long()
        return self.scores(mean_of_used(self.word(numbers), numbers != 0))


class WordTransformer(nn.Module):
    """Scores (b, classes) of texts (b, tokens)."""

    def __init__(self, words: int, tokens: int, classes: int) -> None:
        super().__init__()
        self.word = _vectors(words)
        self.place = nn.Parameter(0.02 * torch.randn(tokens, _WIDTH))
        self.blocks = nn.ModuleList(Block(_WIDTH, _HEADS) for _ in range(_BLOCKS))
        self.norm = nn.LayerNorm(_WIDTH)
        self.scores = nn.Linear(_WIDTH, classes)

    def forward(self, numbers: Tensor) -> Tensor:
        numbers = numbers.long()
        used = numbers != 0
        # An empty text attends to its first place: a softmax over no place at all would not be a number.
        first = torch.arange(numbers.shape[1], device=numbers.device) == 0
        x = self.word(numbers) + self.place
        for block in self.blocks:
            x = block(x, used | first)
        return self.scores(mean_of_used(self.norm(x), used))


class Block(nn.Module):
    """Attention and a network of two layers, each behind a layer norm and added to its input, (b, tokens, width)."""

    def __init__(self, width: int, heads: int) -> None:
        super().__init__()
        self.heads = heads
        self.first_norm, self.second_norm = nn.LayerNorm(width), nn.LayerNorm(width)
        self.query_key_value = nn.Linear(width, 3 * width)
        self.output = nn.Linear(width, width)
        self.network = nn.Sequential(nn.Linear(width, 2 * width), nn.GELU(), nn.Linear(2 * width, width))

    def forward(self, x: Tensor, used: Tensor) -> Tensor:
        """The output; ``used``, (b, tokens), tells the places that are attended to."""
        parts = self.query_key_value(self.first_norm(x)).chunk(3, dim=-1)
        query, key, value = (part.unflatten(-1, (self.heads, -1)).transpose(1, 2) for part in parts)
        attended = functional.scaled_dot_product_attention(query, key, value, attn_mask=used[:, None, None, :])
        x = x + self.output(attended.transpose(1, 2).flatten(2))
        return x + self.network(self.second_norm(x))


def _vectors(words: int) -> nn.Embedding:
    """Word vectors that start small, so that what is learned of a word soon exceeds where it started."""
    vectors = nn.Embedding(words, _WIDTH)
    nn.init.normal_(vectors.weight, std=_START)
    return vectors


def mean_of_used(x: Tensor, used: Tensor) -> Tensor:
    """The mean over the used places, (b, width); zero where there is none."""
    weights = used.unsqueeze(-1).to(x.dtype)
    return (x * weights).sum(1) / weights.sum(1).clamp(min=1)
