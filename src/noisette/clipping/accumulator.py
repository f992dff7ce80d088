"""The sum of a logical batch while its pieces come in."""

from __future__ import annotations

from collections.abc import Mapping

import torch
from torch import Tensor


class Pending:
    """Sums by parameter name, added to piece by piece.

    Pieces of one batch meet in double precision, so that their order and number hardly matter.
    """

    def __init__(self) -> None:
        self._sums: dict[str, Tensor] = {}

    def __bool__(self) -> bool:
        return bool(self._sums)

    def add(self, sums: Mapping[str, Tensor]) -> None:
        """Add those of one piece, all of them or, where memory runs out, none."""
        held = {name: self._sums[name].double() for name in sums if name in self._sums}
        # That memory is there, so nothing can fail any more.
        self._sums |= {name: held[name].add_(sum) if name in held else sum for name, sum in sums.items()}

    def pop_sums(self, parameters: Mapping[str, Tensor]) -> dict[str, Tensor]:
        """What is pending for these parameters, zeros where nothing reached them; then start anew."""
        sums, self._sums = self._sums, {}
        return {name: sums[name] if name in sums else torch.zeros_like(p) for name, p in parameters.items()}
