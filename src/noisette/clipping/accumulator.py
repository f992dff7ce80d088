"""The running sum of a batch over its microbatches."""

from __future__ import annotations

from collections.abc import Mapping

import torch
from torch import Tensor

from noisette.gradients.rules.forms import AT_LEAST_SINGLE


class Accumulator:
    """Sums by parameter name, added to microbatch by microbatch.

    The microbatches of a batch are added in double precision, so that their order and number hardly matter. A sum is
    never rounded to half precision, whatever the dtype of its parameter.
    """

    def __init__(self) -> None:
        self._sums: dict[str, Tensor] = {}

    def __bool__(self) -> bool:
        return bool(self._sums)

    def add(self, sums: Mapping[str, Tensor]) -> None:
        """Add the sums of one microbatch, all of them or, where memory runs out, none."""
        held = {name: self._sums[name].double() for name in sums if name in self._sums}
        single = {name: sum.to(AT_LEAST_SINGLE.get(sum.dtype, sum.dtype)) for name, sum in sums.items()}
        # The memory is allocated, so nothing can fail from here on.
        self._sums |= {name: held[name].add_(sum) if name in held else sum for name, sum in single.items()}

    def pop_sums(self, parameters: Mapping[str, Tensor]) -> dict[str, Tensor]:
        """The sums of these parameters, zeros where there is none; then start again from nothing."""
        sums, self._sums = self._sums, {}
        return {
            name: sums[name] if name in sums else torch.zeros_like(p, dtype=AT_LEAST_SINGLE.get(p.dtype, p.dtype))
            for name, p in parameters.items()
        }
