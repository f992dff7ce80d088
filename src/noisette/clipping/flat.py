"""Flat clipping: one clipping norm over all parameters."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from noisette import errors as checks
from noisette.core.clip import Group


@dataclass(frozen=True)
class FlatClipping:
    """One norm over all trainable parameters, and one bound: factor min(1, C / norm).

    Args:
        max_grad_norm: the bound C.

    Guarantee: one example moves the sum by at most C.
    Source: Abadi et al. 2016, algorithm 1.

    >>> [(group.names, group.bound) for group in FlatClipping(1.0).groups(["w", "b"])]
    [(('w', 'b'), 1.0)]
    """

    max_grad_norm: float

    def __post_init__(self) -> None:
        checks.positive(max_grad_norm=self.max_grad_norm)

    def groups(self, names: Sequence[str]) -> list[Group]:
        return [Group(tuple(names), float(self.max_grad_norm))]
