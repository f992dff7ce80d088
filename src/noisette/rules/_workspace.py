"""Memory for explicit gradients, kept from one step to the next.

A large tensor on the processor is fresh memory every time it is made, and touching fresh memory costs as much as the
matrix product that fills it. Devices with an allocator of their own need none of this.
"""

from __future__ import annotations

import math
import weakref

import torch
from torch import Tensor

_MOST_KEPT = 16  # buffers; the oldest go first

_free: list[Tensor] = []


def borrow(shape: tuple[int, ...], like: Tensor) -> Tensor:
    """An uninitialised tensor of this shape, whose memory others may have once this very object, not a view, is gone."""
    if like.device.type != "cpu":
        return like.new_empty(shape)
    numbers = math.prod(shape)
    buffer = _take(numbers, like.dtype)
    loan = buffer[:numbers].view(shape)
    weakref.finalize(loan, _give_back, buffer).atexit = False
    return loan


def _take(numbers: int, dtype: torch.dtype) -> Tensor:
    for place, buffer in enumerate(_free):
        if buffer.dtype == dtype and numbers <= buffer.numel() <= 2 * numbers:
            return _free.pop(place)
    return torch.empty(numbers, dtype=dtype)


def _give_back(buffer: Tensor) -> None:
    _free.append(buffer)
    del _free[:-_MOST_KEPT]
