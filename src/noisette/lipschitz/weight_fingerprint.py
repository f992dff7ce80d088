"""A fingerprint of the weights that bounds depend on, to find out whether they have changed since their projection."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn

from noisette.lipschitz.protocols import is_constrained

WeightFingerprint = tuple[dict[str, tuple[Any, ...]], dict[str, tuple[Any, ...]]]

_INTEGERS = {2: torch.int16, 4: torch.int32, 8: torch.int64}  # by size in bytes; their sums do not depend on the order


def weight_fingerprint(model: nn.Module) -> WeightFingerprint:
    """It changes if a weight is written, replaced or cast, and if a certified norm is no longer that of its weight.

    Writes through ``.data`` do not increase ``_version``, so a checksum of the bits is part of it.
    """
    constrained = {name: module for name, module in model.named_modules() if is_constrained(module)}
    held = {p for module in constrained.values() for p in module.parameters()}
    weights = {
        name: (p._version, p.data_ptr(), p.dtype, _checksum(p))
        for name, p in model.named_parameters()
        if p.requires_grad or p in held
    }
    norms = {name: (m, m.projection, getattr(m, "norm", None)) for name, m in constrained.items()}
    return weights, norms


def _checksum(tensor: Tensor) -> int:
    """The sum of the tensor's elements, read as integers."""
    return int(tensor.detach().contiguous().view(_INTEGERS[tensor.element_size()]).sum())
