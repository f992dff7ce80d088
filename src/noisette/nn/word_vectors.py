"""The sum of the vectors of a text's words."""

from __future__ import annotations

import torch
from torch import Tensor, nn
from torch.nn import functional


class WordVectors(nn.Module):
    """The sum of the fixed vectors of a text's words, brought to length one: (b, tokens) to (b, dims).

    Texts are numbers of words, in which 0 is padding and is not counted. A text without words, or whose words have no
    vector, is zero.

    Args:
        vectors: of each number of a word, (words, dims); public constants, zero for words without a vector.

    Guarantee: each example is treated alone. The vectors reveal nothing if they do not come from the records.

    >>> import torch
    >>> WordVectors(torch.tensor([[9.0, 9.0], [3.0, 0.0], [0.0, 2.0]]))(torch.tensor([[1, 2, 2, 0]]))
    tensor([[0.6000, 0.8000]])
    """

    def __init__(self, vectors: Tensor) -> None:
        super().__init__()
        self.vectors: Tensor
        self.register_buffer("vectors", vectors.detach().clone())

    def forward(self, numbers: Tensor) -> Tensor:
        numbers = numbers.long()
        counted = (numbers != 0).to(self.vectors.dtype)
        total = torch.einsum("btd,bt->bd", functional.embedding(numbers, self.vectors), counted)
        return functional.normalize(total, dim=1)

    def extra_repr(self) -> str:
        return "{} words, {} dims".format(*self.vectors.shape)
