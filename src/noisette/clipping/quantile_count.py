"""The count of examples within their clipping norm: a small sum of its own, released beside the gradient."""

from __future__ import annotations

import torch
from torch import Tensor

from noisette.core.clip import Count
from noisette.core.release import BoundedSum


def twice_the_count(norms: Tensor, bound: float) -> Tensor:
    """+1 for each norm within the bound, -1 for each above it, nothing where the norm is not finite."""
    return torch.where(norms.isfinite(), torch.where(norms <= bound, 1, -1), 0).sum()


def count_within_norm(count: Count, twice: Tensor | None) -> BoundedSum:
    """The sum that is released, zero for ``None``."""
    total = (twice if twice is not None else torch.zeros(())).to(count.released) / 2
    return BoundedSum((count.released,), (total,), 0.5, count.share, "clipping count")
