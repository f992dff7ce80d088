"""Counts what would make a GPU wait for the host: values read, sizes that depend on them, copies of numbers."""

from __future__ import annotations

from collections import Counter
from typing import Any

import torch
from torch.utils._python_dispatch import TorchDispatchMode

_READS = {
    "aten::_local_scalar_dense": "a value is read",
    "aten::is_nonzero": "a value is read",
    "aten::equal": "tensors are compared",
    "aten::nonzero": "a size depends on values",
    "aten::masked_select": "a size depends on values",
    "aten::_unique2": "a size depends on values",
    "aten::unique_dim": "a size depends on values",
    "aten::repeat_interleave.Tensor": "a size depends on values",
    "aten::lift_fresh": "a tensor is made of numbers of the host",
}


class HostReads(TorchDispatchMode):
    """Counts them while it is active, by operation."""

    def __init__(self) -> None:
        super().__init__()
        self.found: Counter[str] = Counter()

    def __torch_dispatch__(
        self, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        name = func._schema.name
        full = f"{name}.{func._overloadname}"
        if name in _READS or full in _READS:
            self.found[name] += 1
        if name in ("aten::index", "aten::index_put", "aten::index_put_", "aten::_index_put_impl_"):
            masks = [index for index in args[1] if index is not None and index.dtype in (torch.bool, torch.uint8)]
            self.found["a mask as an index"] += bool(masks)
        return func(*args, **(kwargs or {}))
