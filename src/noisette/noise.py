"""Standard Gaussian noise as a pure function of (secret key, step, parameter name, element).

Box-Muller on a ChaCha20 keystream. The radius comes from 53 bits, so it reaches 8.57 standard deviations; a generator
with 24 bits stops at 5.77, and what it cannot reach is a leak (see `noisette.accounting.tail`).
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from noisette.keystream import SecretKey

# Elements come in tiles: the cosines of 128 pairs, then their sines. A tile never depends on another one.
TILE = 256
_PAIRS = TILE // 2
_WORDS = _PAIRS + _PAIRS // 2  # of 64 bits
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
    key: SecretKey,
    streams: Sequence[Stream],
    *,
    step: int,
    deviation: float = 1.0,
    dtype: torch.dtype = torch.float32,
    device: torch.device | str = "cpu",
) -> list[Tensor]:
    """Gaussian values of mean zero and this standard deviation for each stream, one flat tensor each.

    Guarantee: values are independent across names, steps and elements, up to the cipher; the same arguments give the
    same bits, whole or in parts. ``dtype`` is float32 or float64.

    >>> key = SecretKey(bytes(32))
    >>> whole, part = Stream("weight", 1000), Stream("weight", 100, start=700)
    >>> bool((gaussian_noise(key, [whole], step=1)[0][700:800] == gaussian_noise(key, [part], step=1)[0]).all())
    True
    """
    device = torch.device(device)
    values = torch.empty(sum(stream.tiles for stream in streams), 2, _PAIRS, dtype=dtype, device=device)
    scratch = _Scratch(min(_TILES_AT_ONCE, values.shape[0]), dtype, device)
    for part, runs in zip(values.split(_TILES_AT_ONCE), _runs_of(streams, _TILES_AT_ONCE), strict=True):
        scratch.draw(key, runs, step)
        scratch.box_muller(part, deviation)
    flat, noise, at = values.view(-1), [], 0
    for stream in streams:
        begin = at + stream.start % TILE
        noise.append(flat[begin : begin + stream.numel])
        at += stream.tiles * TILE
    return noise


@dataclass(frozen=True)
class _Run:
    """Consecutive tiles of one stream."""

    name: str
    tile: int
    count: int


def _runs_of(streams: Sequence[Stream], at_once: int) -> list[list[_Run]]:
    """The tiles of all streams in order, cut into parts of ``at_once`` tiles (the last one may be short)."""
    parts: list[list[_Run]] = []
    room = 0
    for stream in streams:
        tile, left = stream.start // TILE, stream.tiles
        while left:
            if not room:
                parts.append([])
                room = at_once
            taken = min(left, room)
            parts[-1].append(_Run(stream.name, tile, taken))
            tile, left, room = tile + taken, left - taken, room - taken
    return parts


class _Scratch:
    """Room for the bits and the radii of a few tiles, used again for the next ones."""

    def __init__(self, tiles: int, dtype: torch.dtype, device: torch.device) -> None:
        # A tile takes 128 words of 64 bits for its radii, then 64 words that hold its 128 angles of 32 bits.
        self._words = torch.empty(tiles, _WORDS, dtype=torch.int64)
        self._logarithm = torch.empty(tiles, _PAIRS, dtype=torch.float64, device=device)
        self._radius = torch.empty(tiles, _PAIRS, dtype=dtype, device=device)
        self._angle = torch.empty(tiles, _PAIRS, dtype=dtype, device=device)

    def draw(self, key: SecretKey, runs: Sequence[_Run], step: int) -> None:
        """Fill the bits of these tiles from the keystream, which always runs on the processor."""
        words, at = self._words.numpy().view(np.uint64).reshape(-1), 0
        for run in runs:
            end = at + run.count * _WORDS
            key.fill(words[at:end], purpose="noise", name=run.name, step=step, start=run.tile * _WORDS)
            at = end

    def box_muller(self, out: Tensor, deviation: float) -> None:
        """R cos(a) and R sin(a) with (R / deviation)^2 = -2 ln(u), u in (0, 1] in steps of 2^-53."""
        n = out.shape[0]
        bits = self._words[:n, :_PAIRS].bitwise_right_shift_(64 - _RADIUS_BITS).bitwise_and_(2**_RADIUS_BITS - 1)
        logarithm = self._logarithm[:n].copy_(bits).add_(1).log_().sub_(_RADIUS_BITS * math.log(2)).clamp_(max=0.0)
        radius = self._radius[:n].copy_(logarithm).mul_(-2.0).sqrt_().mul_(deviation)
        angle = self._angle[:n].copy_(self._words[:n, _PAIRS:].view(torch.int32)).mul_(math.pi / 2**31)
        torch.mul(torch.cos(angle), radius, out=out[:, 0])
        torch.mul(angle.sin_(), radius, out=out[:, 1])
