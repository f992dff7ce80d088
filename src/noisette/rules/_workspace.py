"""Memory for explicit gradients, kept from one step to the next.

A large tensor on the processor is fresh memory every time it is made, and touching fresh memory costs as much as the
matrix product that fills it. But what is kept stands beside the activations of the next forward pass, so only half of
it is. Devices with an allocator of their own need none of this.
"""

from __future__ import annotations

import math
import weakref
from dataclasses import dataclass, field

import torch
from torch import Tensor


@dataclass
class Workspace:
    """Buffers that are lent out and those that are free."""

    free: list[Tensor] = field(default_factory=list)
    lent: int = 0  # bytes
    most_lent: int = 0  # bytes at once

    def take(self, numbers: int, dtype: torch.dtype) -> Tensor:
        buffer = self._find(numbers, dtype)
        self.lent += buffer.nbytes
        self.most_lent = max(self.most_lent, self.lent)
        return buffer

    def _find(self, numbers: int, dtype: torch.dtype) -> Tensor:
        for place, buffer in enumerate(self.free):
            if buffer.dtype == dtype and numbers <= buffer.numel() <= 2 * numbers:
                return self.free.pop(place)
        return torch.empty(numbers, dtype=dtype)

    def give_back(self, buffer: Tensor) -> None:
        self.lent -= buffer.nbytes
        self.free.append(buffer)
        while sum(kept.nbytes for kept in self.free) > self.most_lent // 2:
            self.free.pop(0)


_workspace = Workspace()


def borrow(shape: tuple[int, ...], like: Tensor) -> Tensor:
    """An uninitialised tensor of this shape. Others may have its memory once this very object, not a view, is gone."""
    if like.device.type != "cpu":
        return like.new_empty(shape)
    numbers = math.prod(shape)
    buffer = _workspace.take(numbers, like.dtype)
    loan = buffer[:numbers].view(shape)
    weakref.finalize(loan, _workspace.give_back, buffer).atexit = False
    return loan
