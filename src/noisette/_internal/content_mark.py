"""A mark of the bits of a tensor, to find out whether it was written to in a way that no version counter sees."""

from __future__ import annotations

import os
from functools import cache

import torch
from torch import Tensor

_COLUMNS, _ROWS = 2**13, 64  # of the table that is read at once


def content_mark(tensor: Tensor) -> Tensor:
    """A keyed checksum of the bits and their places: a change keeps it with probability below 1e-6.

    The bits are read as a table of 32-bit numbers. Each row is multiplied by secret 64-bit keys and added up modulo
    2**64, and so are the sums of the rows. Plain sums and parities would miss values that change places.
    """
    values = tensor.detach().contiguous()
    if (values.storage_offset() * values.element_size()) % 4:
        values = values.clone()
    flat = values.view(-1).view(torch.uint8)
    columns = _keys(0, 4 * _COLUMNS).to(flat.device)
    end = len(flat) - len(flat) % (4 * _COLUMNS)
    mark = (flat[end:] * columns[: len(flat) - end]).sum()
    if end:
        table = flat[:end].view(torch.int32).view(-1, _COLUMNS)
        rows = torch.cat([(part * columns[:_COLUMNS]).sum(1) for part in table.split(_ROWS)])
        mark = mark + (rows * _keys(1, len(rows)).to(flat.device)).sum()
    return mark


@cache
def _keys(number: int, count: int) -> Tensor:
    """Secret random numbers of this process, the same at each call."""
    return torch.frombuffer(bytearray(os.urandom(8 * count)), dtype=torch.int64)
