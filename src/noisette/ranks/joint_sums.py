"""The sums of all ranks, added up and noised: each rank draws a part of the noise, and all get the whole result."""

from collections.abc import Callable, Iterator, Mapping, Sequence

import numpy as np
import torch
from torch import Tensor

from noisette.core.loss import is_sharded
from noisette.core.noise import Window
from noisette.ranks.launch import AnyRanks
from noisette.ranks.shards import elements_held, from_local

_BUCKET = 2**24  # values from which on a bucket is full: few exchanges, which need little memory


class JointSums:
    """Adds up the sums of all ranks, divides them and adds noise; the values are those of a single process.

    Each rank noises one part of each bucket of values, since noise is a function of key, step, name and element. Then
    the ranks exchange the parts. With one rank nothing is copied. ``add_`` is that of a
    :class:`noisette.core.noise.GaussianNoise` with the same key on all ranks, or of one that is correlated, and
    ``deviations`` are those of its steps since it began, in units of independent noise; the last holds for all more.
    """

    def __init__(
        self, add_: Callable[..., None], ranks: AnyRanks, deviations: Sequence[float] | np.ndarray = (1.0,)
    ) -> None:
        self._add_, self._ranks, self._deviations = add_, ranks, deviations
        self.size = ranks.size
        self._steps = range(0)  # since the correlation began

    def deviation(self, step: int) -> float:
        self._steps = range(self._steps.start if step == self._steps.stop else step, step + 1)
        return float(self._deviations[min(len(self._steps), len(self._deviations)) - 1])

    def release(self, sums: Sequence[tuple[str, Tensor, Tensor]], *, step: int, std: float, divisor: float) -> None:
        """Replace each sum by (the sum over all ranks) / divisor + noise, those of one type and device together."""
        groups: dict[object, tuple[dict[str, Tensor], dict[str, Tensor], dict[str, Window]]] = {}
        for name, p, g in sums:
            whole, parts, windows = groups.setdefault((g.dtype, g.device), ({}, {}, {}))
            if not is_sharded(p):
                whole[name] = g
            elif g.numel():  # a part: nothing is exchanged
                parts[name], windows[name] = g, elements_held(p)
        for whole, parts, windows in groups.values():
            if whole:
                self.release_(whole, step=step, std=std, divisor=divisor)
            if parts:
                self._add_(parts, step=step, std=std, divisor=divisor, windows=windows)

    def written(self, parameter: Tensor, gradient: Tensor) -> Tensor:
        return from_local(gradient, parameter) if is_sharded(parameter) else gradient

    @torch.no_grad()
    def release_(self, sums: Mapping[str, Tensor], *, step: int, std: float, divisor: float) -> None:
        if self.size == 1:
            self._add_(sums, step=step, std=std, divisor=divisor)
            return
        for flat in _buckets({name: tensor.view(-1) for name, tensor in sums.items()}):
            values = sum(map(len, flat.values()))
            share = -(-values // self.size)
            bucket = next(iter(flat.values())).new_zeros(share * self.size)
            torch.cat(list(flat.values()), out=bucket[:values])
            self._ranks.add_up([bucket])
            first, at = share * self._ranks.rank, 0
            mine: dict[str, Tensor] = {}
            windows: dict[str, Window] = {}
            for name, tensor in flat.items():
                low, high = max(at, first), min(at + len(tensor), first + share)
                if low < high:
                    mine[name], windows[name] = bucket[low:high], Window(start=low - at)
                at += len(tensor)
            self._add_(mine, step=step, std=std, divisor=divisor, windows=windows)
            self._ranks.gather_into(bucket, bucket[first : first + share])
            for tensor, part in zip(flat.values(), bucket[:values].split([*map(len, flat.values())]), strict=True):
                tensor.copy_(part)


def _buckets(tensors: Mapping[str, Tensor]) -> Iterator[dict[str, Tensor]]:
    """The tensors that have elements, several together."""
    bucket: dict[str, Tensor] = {}
    for name, tensor in tensors.items():
        if len(tensor):
            bucket[name] = tensor
        if sum(map(len, bucket.values())) >= _BUCKET:
            yield bucket
            bucket = {}
    if bucket:
        yield bucket
