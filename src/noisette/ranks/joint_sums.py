"""The sums of all ranks, added up and noised: each rank draws a part of the noise, and all get the whole result."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Protocol

import numpy as np
import torch
from torch import Tensor

from noisette.core.loss import is_sharded
from noisette.core.noise import ALL_WHOLE, Window
from noisette.ranks.launch import AnyRanks
from noisette.ranks.shards import elements_held, from_local

_BUCKET = 2**24  # values that are exchanged at once, so that the exchange needs little memory


class AddsNoise(Protocol):
    """Noise of a secret key: see :class:`noisette.core.noise.GaussianNoise`."""

    def add_(
        self,
        tensors: Mapping[str, Tensor],
        *,
        step: int,
        std: float = ...,
        divisor: float = ...,
        windows: Mapping[str, Window] = ALL_WHOLE,
    ) -> None: ...


@dataclass(frozen=True)
class _Run:
    """Consecutive elements of a tensor, and where they lie in a bucket."""

    name: str
    start: int  # in the tensor
    at: int  # in the bucket
    numel: int


class JointSums:
    """Adds up the sums of all ranks, divides them and adds noise; the values are those of a single process.

    Each rank noises one part of each bucket of values, since noise is a function of key, step, name and element. Then
    the ranks exchange the parts. With one rank nothing is copied. ``noise`` has the same key on all ranks, and
    ``deviations`` are those of its steps since it began, in units of independent noise; the last holds for all more.
    """

    def __init__(self, noise: AddsNoise, ranks: AnyRanks, deviations: Sequence[float] | np.ndarray = (1.0,)) -> None:
        self._noise = noise
        self._ranks = ranks
        self._deviations = deviations
        self._steps = range(0)  # since the correlation began

    @property
    def size(self) -> int:
        return self._ranks.size

    def deviation(self, step: int) -> float:
        """The deviation of the noise of this step in units of that of independent noise."""
        self._steps = range(self._steps.start if step == self._steps.stop else step, step + 1)
        return float(self._deviations[min(len(self._steps), len(self._deviations)) - 1])

    def release(self, sums: Sequence[tuple[str, Tensor, Tensor]], *, step: int, std: float, divisor: float) -> None:
        """Replace each sum by (the sum over all ranks) / divisor + noise, those of one type and device together."""
        groups: dict[object, tuple[dict[str, Tensor], dict[str, Tensor]]] = {}
        windows: dict[str, Window] = {}
        for name, p, g in sums:
            whole, parts = groups.setdefault((g.dtype, g.device), ({}, {}))
            if not is_sharded(p):
                whole[name] = g
            elif g.numel():  # a part: nothing is exchanged
                parts[name], windows[name] = g, elements_held(p)
        for whole, parts in groups.values():
            if whole:
                self.release_(whole, step=step, std=std, divisor=divisor)
            if parts:
                of_parts = {name: windows[name] for name in parts}
                self._noise.add_(parts, step=step, std=std, divisor=divisor, windows=of_parts)

    def written(self, parameter: Tensor, gradient: Tensor) -> Tensor:
        return from_local(gradient, parameter) if is_sharded(parameter) else gradient

    @torch.no_grad()
    def release_(self, sums: Mapping[str, Tensor], *, step: int, std: float, divisor: float) -> None:
        if self.size == 1:
            self._noise.add_(sums, step=step, std=std, divisor=divisor)
            return
        flat = {name: tensor.view(-1) for name, tensor in sums.items() if tensor.numel()}
        for runs in _buckets({name: len(tensor) for name, tensor in flat.items()}):
            values = sum(run.numel for run in runs)
            share = -(-values // self.size)
            bucket = next(iter(flat.values())).new_zeros(share * self.size)
            for run in runs:
                bucket[run.at : run.at + run.numel] = flat[run.name][run.start : run.start + run.numel]
            self._ranks.add_up([bucket])
            first = share * self._ranks.rank
            mine = list(_within(runs, first, first + share))
            self._noise.add_(
                {run.name: bucket[run.at : run.at + run.numel] for run in mine},
                step=step,
                std=std,
                divisor=divisor,
                windows={run.name: Window(start=run.start) for run in mine},
            )
            self._ranks.gather_into(bucket, bucket[first : first + share])
            for run in runs:
                flat[run.name][run.start : run.start + run.numel] = bucket[run.at : run.at + run.numel]


def _buckets(sizes: Mapping[str, int]) -> Iterator[list[_Run]]:
    """Divide the elements of all tensors into buckets.

    >>> [[(run.start, run.at, run.numel) for run in runs] for runs in _buckets({"a": 2**24 - 1, "b": 3})]
    [[(0, 0, 16777215), (0, 16777215, 1)], [(1, 0, 2)]]
    """
    runs: list[_Run] = []
    at = 0
    for name, size in sizes.items():
        start = 0
        while start < size:
            if at == _BUCKET:
                yield runs
                runs, at = [], 0
            numel = min(size - start, _BUCKET - at)
            runs.append(_Run(name, start, at, numel))
            start, at = start + numel, at + numel
    if runs:
        yield runs


def _within(runs: list[_Run], first: int, end: int) -> Iterator[_Run]:
    """The parts of these runs that lie between two places of their bucket."""
    for run in runs:
        low, high = max(run.at, first), min(run.at + run.numel, end)
        if low < high:
            yield _Run(run.name, run.start + low - run.at, low, high - low)
