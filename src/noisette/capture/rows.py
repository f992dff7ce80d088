"""Microbatches of any size for graphs of fixed sizes: rows are repeated up to the next size, and count for nothing."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

_STEPS = 8  # sizes between a power of two and the next one


def padded_size(count: int) -> int:
    """The least size of at least this many rows among those that graphs are made for.

    Between a power of two and the next one there are eight sizes, so that at most an eighth of the rows is added.

    >>> [padded_size(count) for count in (1, 7, 9, 16, 17, 100, 128, 129)]
    [1, 7, 9, 16, 18, 104, 128, 144]
    """
    step = max(1, 1 << max(0, (count - 1).bit_length() - 1) >> 3)
    return -(-count // step) * step


def padded(tensors: Sequence[Tensor], size: int) -> list[Tensor]:
    """Tensors (b, ...) with their first row repeated at the end, (size, ...)."""
    missing = size - len(tensors[0])
    if not missing:
        return list(tensors)
    return [torch.cat([tensor, tensor[:1].expand(missing, *tensor.shape[1:])]) for tensor in tensors]


def is_real(count: int, size: int, device: torch.device) -> Tensor:
    """Which of the rows are not repeated ones, (size,)."""
    return torch.arange(size, device=device) < count
