"""Standard Gaussian noise as a pure function of (secret key, step, parameter name, element).

Box-Muller on a ChaCha20 keystream. The radius comes from 53 bits, so it reaches 8.57 standard deviations; a generator
with 24 bits stops at 5.77, and what it cannot reach is a leak (see `noisette.accounting.tail`).
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from noisette.keystream import SecretKey

# Elements come in tiles: the cosines of 128 pairs, then their sines. A tile never depends on another one.
TILE = 256
_PAIRS = TILE // 2
_TILES_AT_ONCE = 1024  # fits the processor's cache
_RADIUS_BITS = 53


@dataclass(frozen=True)
class Stream:
    """The noise of one parameter: its name, and how many elements are wanted from which one on."""

    name: str
    numel: int
    start: int = 0

    @property
    def tiles(self) -> int:
        return -(-(self.start % TILE + self.numel) // TILE)


def gaussian_noise(
    key: SecretKey, streams: Sequence[Stream], *, step: int, dtype: torch.dtype, device: torch.device
) -> list[Tensor]:
    """Standard Gaussian values for each stream, one flat tensor each.

    Guarantee: values are independent across names, steps and elements, up to the cipher; the same arguments give the
    same bits, whole or in parts. ``dtype`` is float32 or float64.

    >>> key = SecretKey(bytes(32))
    >>> draw = lambda stream: gaussian_noise(key, [stream], step=1, dtype=torch.float32, device=torch.device("cpu"))[0]
    >>> bool((draw(Stream("weight", 1000))[700:800] == draw(Stream("weight", 100, start=700))).all())
    True
    """
    values = torch.empty(sum(stream.tiles for stream in streams), 2, _PAIRS, dtype=dtype, device=device)
    scratch = _Scratch(min(_TILES_AT_ONCE, values.shape[0]), dtype, device)
    wanted = _tile_runs(streams)
    for first in range(0, values.shape[0], _TILES_AT_ONCE):
        part = values[first : first + _TILES_AT_ONCE]
        scratch.draw(key, _take_tiles(wanted, part.shape[0]), step)
        scratch.box_muller(part)
    flat, noise, at = values.view(-1), [], 0
    for stream in streams:
        begin = at + stream.start % TILE
        noise.append(flat[begin : begin + stream.numel])
        at += stream.tiles * TILE
    return noise


@dataclass
class _Run:
    """Consecutive tiles of one stream."""

    name: str
    tile: int
    count: int


def _tile_runs(streams: Sequence[Stream]) -> list[_Run]:
    return [_Run(stream.name, stream.start // TILE, stream.tiles) for stream in reversed(streams)]


def _take_tiles(runs: list[_Run], count: int) -> Iterator[_Run]:
    """The next ``count`` tiles, as runs; ``runs`` is a stack and keeps what is left."""
    while count:
        run = runs[-1]
        taken = min(count, run.count)
        yield _Run(run.name, run.tile, taken)
        run.tile, run.count, count = run.tile + taken, run.count - taken, count - taken
        if not run.count:
            runs.pop()


class _Scratch:
    """Room for the bits and the radii of a few tiles, used again for the next ones."""

    def __init__(self, tiles: int, dtype: torch.dtype, device: torch.device) -> None:
        self._radius_bits = torch.empty(tiles, _PAIRS, dtype=torch.int64)
        self._angle_bits = torch.empty(tiles, _PAIRS, dtype=torch.int32)
        self._squared = torch.empty(tiles, _PAIRS, dtype=torch.float64, device=device)
        self._radius = torch.empty(tiles, _PAIRS, dtype=dtype, device=device)
        self._angle = torch.empty(tiles, _PAIRS, dtype=dtype, device=device)

    def draw(self, key: SecretKey, runs: Iterator[_Run], step: int) -> None:
        """Fill the bits of these tiles from the keystream, which always runs on the processor."""
        radius = self._radius_bits.numpy().view(np.uint64)
        angle = self._angle_bits.numpy().view(np.uint64)
        at = 0
        for run in runs:
            here = slice(at, at + run.count)
            key.fill(
                radius[here].reshape(-1), purpose="noise radius", name=run.name, step=step, start=run.tile * _PAIRS
            )
            key.fill(
                angle[here].reshape(-1), purpose="noise angle", name=run.name, step=step, start=run.tile * _PAIRS // 2
            )
            at += run.count

    def box_muller(self, out: Tensor) -> None:
        """R cos(a) and R sin(a) with R^2 = -2 ln(u), u in (0, 1] in steps of 2^-53."""
        n = out.shape[0]
        bits = self._radius_bits[:n].bitwise_right_shift_(64 - _RADIUS_BITS).bitwise_and_(2**_RADIUS_BITS - 1)
        squared = self._squared[:n].copy_(bits.add_(1)).log_().mul_(-2.0).add_(2 * _RADIUS_BITS * math.log(2))
        radius = self._radius[:n].copy_(squared.clamp_(min=0.0)).sqrt_()
        angle = self._angle[:n].copy_(self._angle_bits[:n]).mul_(math.pi / 2**31)
        torch.mul(torch.cos(angle), radius, out=out[:, 0])
        torch.mul(angle.sin_(), radius, out=out[:, 1])
