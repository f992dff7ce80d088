"""How often each word occurs in a text, as a vector of length one."""

from __future__ import annotations

from torch import Tensor, nn
from torch.nn import functional


class WordCounts(nn.Module):
    """Root of the count of each word times the word's weight, brought to length one: (b, tokens) to (b, words).

    Texts are numbers of words, in which 0 is padding and is not counted. The root keeps a word that is repeated from
    outweighing the others. All texts have the same length, so the gradient of a linear layer on them is bounded by the
    error of its prediction; a text without words is zero.

    Args:
        weights: of each number of a word, (words,); public constants.

    Guarantee: each example is treated alone. The weights reveal nothing if they do not come from the records.

    >>> import torch
    >>> WordCounts(torch.ones(4))(torch.tensor([[1, 1, 1, 1, 2, 0]]))
    tensor([[0.0000, 0.8944, 0.4472, 0.0000]])
    """

    def __init__(self, weights: Tensor) -> None:
        super().__init__()
        self.weights: Tensor
        self.register_buffer("weights", weights.detach().clone())

    def forward(self, numbers: Tensor) -> Tensor:
        numbers, words = numbers.long(), len(self.weights)
        counted = (numbers != 0).to(self.weights.dtype)
        counts = counted.new_zeros(len(numbers), words).scatter_add(1, numbers, counted)
        return functional.normalize(counts.sqrt() * self.weights, dim=1)

    def extra_repr(self) -> str:
        return f"{len(self.weights)} words"
