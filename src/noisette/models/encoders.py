"""A Transformer encoder for texts whose words are fixed vectors."""

from __future__ import annotations

import math

import torch
from torch import Tensor, nn

from noisette.models.shapes import Shape, need_axes
from noisette.models.text import mean_of_used

_MOST_HEADS = 8
_WIDENING = 4  # of the hidden layer behind the attention


def encoder(shape: Shape, classes: int) -> nn.Module:
    """A Transformer encoder of one block on word vectors and places, the mean over the words, and a linear layer.

    The block has as many heads as divide the dimensions, 8 at most, a hidden layer four times as wide, and no dropout.

    Args:
        shape: (tokens, dimensions) of one text: each token is a word vector, and the zero vector is padding.
        classes: number of scores for each text.

    Source: Lee & Kifer 2020, section 6.1; their vectors have 200 dimensions, and they drop a tenth.

    Raises:
        ValueError: examples are not sequences of vectors.
    """
    need_axes("encoder", shape, 2, "texts as word vectors (tokens, dimensions)")
    tokens, width = shape
    return VectorEncoder(tokens, width, classes)


class VectorEncoder(nn.Module):
    """Scores (b, classes) of texts (b, tokens, dimensions)."""

    def __init__(self, tokens: int, width: int, classes: int) -> None:
        super().__init__()
        self.places: Tensor
        self.register_buffer("places", sinusoids(tokens, width), persistent=False)
        heads = math.gcd(width, _MOST_HEADS)
        self.block = nn.TransformerEncoderLayer(width, heads, _WIDENING * width, dropout=0.0, batch_first=True)
        self.scores = nn.Linear(width, classes)

    def forward(self, x: Tensor) -> Tensor:
        used = (x != 0).any(-1)
        # An empty text attends to its first place: a softmax over no place at all would not be a number.
        first = torch.arange(x.shape[1], device=x.device) == 0
        encoded = self.block(x + self.places, src_key_padding_mask=~(used | first))
        return self.scores(mean_of_used(encoded, used))


def sinusoids(tokens: int, width: int) -> Tensor:
    """Places as sines and cosines of falling frequency, (tokens, width).

    Source: Vaswani et al. 2017, section 3.5.
    """
    frequencies = 10_000.0 ** -(2 * (torch.arange(width) // 2) / width)
    angles = torch.arange(tokens).unsqueeze(1) * frequencies
    return torch.where(torch.arange(width) % 2 == 0, angles.sin(), angles.cos())
