"""Gaussian noise as a pure function of (secret key, step, parameter name, element).

Box-Muller on a ChaCha20 keystream. The radius comes from 53 bits, so it reaches 8.57 standard deviations; a generator
with 24 bits stops at 5.77, and what it cannot reach is a leak (see `noisette.accounting.tail`).
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from noisette.keystream import SecretKey

# Elements come in tiles: the cosines of 128 pairs, then their sines. A tile never depends on another one.
TILE = 256
_PAIRS = TILE // 2
_WORDS = _PAIRS + _PAIRS // 2  # of 64 bits
_TILES_AT_ONCE = 2048  # fits the processor's cache
_RADIUS_BITS = 53


class GaussianNoise:
    """A source of Gaussian noise, keyed by a secret.

    Guarantee: values are independent across names, steps and elements, up to the cipher; the same key, step, name and
    element give the same value, whole or in parts.

    >>> noise = GaussianNoise(SecretKey(bytes(32)))
    >>> whole, part = torch.zeros(1000), torch.zeros(100)
    >>> noise.add_({"weight": whole}, step=1)
    >>> noise.add_({"weight": part}, step=1, start=700)
    >>> bool((whole[700:800] == part).all())
    True
    """

    def __init__(self, key: SecretKey) -> None:
        self._key = key
        self._scratch: dict[tuple[torch.dtype, torch.device], _Scratch] = {}

    def add_(self, tensors: Mapping[str, Tensor], *, step: int, deviation: float = 1.0, start: int = 0) -> None:
        """Add noise of mean zero and this standard deviation to each tensor, in place.

        Args:
            tensors: by name, contiguous, all float32 or all float64, on one device.
            step: number of the step; a step's noise is used once.
            deviation: standard deviation of the noise.
            start: which element of the named parameter each tensor begins with (not 0 for a shard of it).
        """
        flat = {name: tensor.view(-1) for name, tensor in tensors.items() if tensor.numel()}
        if not flat:
            return
        first = next(iter(flat.values()))
        scratch = self._scratch_for(first.dtype, first.device)
        for runs in _runs_over(flat, start):
            values = scratch.draw(self._key, runs, step, deviation)
            for run in runs:
                flat[run.name][run.at : run.at + run.numel].add_(values[run.skipped : run.skipped + run.numel])
                values = values[run.tiles * TILE :]

    def _scratch_for(self, dtype: torch.dtype, device: torch.device) -> _Scratch:
        if (dtype, device) not in self._scratch:
            self._scratch[dtype, device] = _Scratch(dtype, device)
        return self._scratch[dtype, device]


@dataclass(frozen=True)
class _Run:
    """Consecutive tiles of one parameter, and the elements of a tensor that they cover."""

    name: str
    tile: int
    tiles: int
    skipped: int  # values at the beginning of the tiles that are not wanted
    at: int  # first element of the tensor
    numel: int


def _runs_over(flat: Mapping[str, Tensor], start: int) -> Iterator[list[_Run]]:
    """All elements of all tensors, in groups of runs that together take as many tiles as scratch has room for."""
    group: list[_Run] = []
    room = _TILES_AT_ONCE
    for name, tensor in flat.items():
        at = 0
        while at < tensor.numel():
            tile, skipped = divmod(start + at, TILE)
            numel = min(tensor.numel() - at, room * TILE - skipped)
            run = _Run(name, tile, -(-(skipped + numel) // TILE), skipped, at, numel)
            group.append(run)
            at, room = at + numel, room - run.tiles
            if not room:
                yield group
                group, room = [], _TILES_AT_ONCE
    if group:
        yield group


class _Scratch:
    """Room for the bits, the radii and the values of a few tiles, used again for the next ones."""

    def __init__(self, dtype: torch.dtype, device: torch.device) -> None:
        # A tile takes 128 words of 64 bits for its radii, then 64 words that hold its 128 angles of 32 bits.
        self._words = torch.empty(_TILES_AT_ONCE, _WORDS, dtype=torch.int64)
        self._logarithm = torch.empty(_TILES_AT_ONCE, _PAIRS, dtype=torch.float64, device=device)
        self._radius = torch.empty(_TILES_AT_ONCE, _PAIRS, dtype=dtype, device=device)
        self._angle = torch.empty(_TILES_AT_ONCE, _PAIRS, dtype=dtype, device=device)
        self._cosine = torch.empty(_TILES_AT_ONCE, _PAIRS, dtype=dtype, device=device)
        self._values = torch.empty(_TILES_AT_ONCE, 2, _PAIRS, dtype=dtype, device=device)

    def draw(self, key: SecretKey, runs: Sequence[_Run], step: int, deviation: float) -> Tensor:
        """The values of these tiles, flat. The bits always come from the processor."""
        words, at = self._words.numpy().view(np.uint64).reshape(-1), 0
        for run in runs:
            end = at + run.tiles * _WORDS
            key.fill(words[at:end], purpose="noise", name=run.name, step=step, start=run.tile * _WORDS)
            at = end
        return self._box_muller(at // _WORDS, deviation).view(-1)

    def _box_muller(self, n: int, deviation: float) -> Tensor:
        """R cos(a) and R sin(a) with (R / deviation)^2 = -2 ln(u), u in (0, 1] in steps of 2^-53."""
        bits = self._words[:n, :_PAIRS].bitwise_and_(2**_RADIUS_BITS - 1)
        # In single precision a u close to one would round to it, and a radius of zero hides nothing.
        logarithm = self._logarithm[:n].copy_(bits).add_(1).mul_(2.0**-_RADIUS_BITS).log_()
        radius = self._radius[:n].copy_(logarithm).mul_(-2.0).sqrt_().mul_(deviation)
        angle = self._angle[:n].copy_(self._words[:n, _PAIRS:].view(torch.int32)).mul_(math.pi / 2**31)
        values = self._values[:n]
        torch.mul(torch.cos(angle, out=self._cosine[:n]), radius, out=values[:, 0])
        torch.mul(angle.sin_(), radius, out=values[:, 1])
        return values
