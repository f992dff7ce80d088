"""The running sum of a batch over its microbatches."""

from __future__ import annotations

from collections.abc import Iterator, Mapping

import torch
from torch import Tensor

from noisette.errors import PrivacyError
from noisette.gradients.rules.forms import AT_LEAST_SINGLE

_PIECE = 2**20  # elements that are converted to double precision at a time, on a processor


class Accumulator:
    """Sums by parameter name, added to microbatch by microbatch.

    The microbatches of a batch are added in double precision, so that their order and number hardly matter, in one
    tensor for each parameter. A sum is never rounded to half precision, whatever the dtype of its parameter.
    """

    def __init__(self) -> None:
        self._sums: dict[str, Tensor] = {}  # a tensor of ``_doubles``, or what the only microbatch so far gave
        self._doubles: dict[str, Tensor] = {}  # of this batch
        self._is_whole = True  # no addition ended half-way

    def __bool__(self) -> bool:
        return bool(self._sums)

    def add(self, sums: Mapping[str, Tensor]) -> None:
        """Add the sums of one microbatch, all of them or, where memory runs out, none."""
        self._check_whole()
        missing = [name for name in sums if name in self._sums and self._sums[name] is not self._doubles.get(name)]
        made = {name: _double_like(sums[name]) for name in missing}
        scratch = _scratch(sums)
        single = {name: sum.to(AT_LEAST_SINGLE.get(sum.dtype, sum.dtype)) for name, sum in sums.items()}
        # The memory is allocated, so nothing can fail from here on but for an interrupt.
        self._is_whole = False
        self._doubles |= made
        for name in missing:
            self._sums[name] = self._doubles[name].copy_(self._sums[name])
        for name, sum in single.items():
            if name in self._sums:
                _add_in_pieces(self._sums[name], sum, scratch)
            else:
                self._sums[name] = sum
        self._is_whole = True

    def pop_sums(self, parameters: Mapping[str, Tensor]) -> dict[str, Tensor]:
        """The sums of these parameters, zeros where there is none; then start again from nothing."""
        self._check_whole()
        sums, self._sums, self._doubles = self._sums, {}, {}
        return {
            name: sums[name] if name in sums else torch.zeros_like(p, dtype=AT_LEAST_SINGLE.get(p.dtype, p.dtype))
            for name, p in parameters.items()
        }

    def _check_whole(self) -> None:
        """Check that no addition was interrupted; the sums start again from nothing where one was."""
        if not self._is_whole:
            self._sums, self._doubles, self._is_whole = {}, {}, True
            raise PrivacyError(
                "the sum of this batch holds a part of a microbatch, because adding it was interrupted; begin the "
                "batch anew"
            )


def _double_like(sum: Tensor) -> Tensor:
    return torch.empty_like(sum, dtype=torch.float64)


def _scratch(sums: Mapping[str, Tensor]) -> Tensor | None:
    """Memory for the pieces of these sums; ``None`` where an addition converts without any, as on a GPU."""
    rows = [_rows(sum) * sum[:1].numel() if sum.dim() else 1 for sum in sums.values() if sum.device.type == "cpu"]
    return torch.empty(max(rows), dtype=torch.float64) if rows else None


def _rows(sum: Tensor) -> int:
    """So many rows of the sum are added at a time."""
    return min(len(sum), max(1, _PIECE // max(1, sum[:1].numel())))


def _add_in_pieces(total: Tensor, sum: Tensor, scratch: Tensor | None) -> None:
    """Add a sum to one in double precision, without memory of its own: a mixed addition would copy the whole sum."""
    if scratch is None or sum.device.type != "cpu" or not sum.dim():
        total.add_(sum)
        return
    for to, piece in _pieces(total, sum):
        to.add_(scratch[: piece.numel()].view(piece.shape).copy_(piece))


def _pieces(total: Tensor, sum: Tensor) -> Iterator[tuple[Tensor, Tensor]]:
    if not sum.numel():
        return
    yield from zip(total.split(_rows(sum)), sum.split(_rows(sum)), strict=True)
