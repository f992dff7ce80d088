"""Gaussian noise as a pure function of (secret key, step, parameter name, element).

Box-Muller on a ChaCha20 keystream. The radius comes from 53 bits, so it reaches 8.57 standard deviations; a generator
with 24 bits stops at 5.77, and what it cannot reach is a leak (see `noisette.accounting.noise_tail`).
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import accumulate, pairwise

import numpy as np
import torch
from torch import Tensor

from noisette._internal.keystream import SecretKey

# Elements come in tiles: the cosines of 128 pairs, then their sines. A tile never depends on another one.
TILE = 256
_PAIRS = TILE // 2
_WORDS = _PAIRS + _PAIRS // 2  # of 64 bits
_TILES_AT_ONCE = 640  # fits the processor's cache
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

    def add_(self, tensors: Mapping[str, Tensor], *, step: int, std: float = 1.0, start: int = 0) -> None:
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
        sizes = tuple((name, len(tensor)) for name, tensor in flat.items())
        for part in self._scratch_for(first.dtype, first.device).parts(sizes, start):
            part.draw(self._key, step)
            torch._foreach_add_(part.within(flat), part.values, alpha=std)  # pyright: ignore[reportPrivateImportUsage]

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
    start: int  # first value that is wanted, among those of the group's runs
    at: int  # first element of the tensor
    numel: int


def _runs_over(sizes: Sequence[tuple[str, int]], start: int) -> list[list[_Run]]:
    """All elements of all tensors, in groups of runs that together take as many tiles as scratch has room for."""
    groups: list[list[_Run]] = [[]]
    taken = 0
    for name, size in sizes:
        at = 0
        while at < size:
            if taken == _TILES_AT_ONCE:
                groups.append([])
                taken = 0
            tile, skipped = divmod(start + at, TILE)
            numel = min(size - at, (_TILES_AT_ONCE - taken) * TILE - skipped)
            run = _Run(name, tile, -(-(skipped + numel) // TILE), taken * TILE + skipped, at, numel)
            groups[-1].append(run)
            at, taken = at + numel, taken + run.tiles
    return groups


class _Scratch:
    """Room for the bits, the radii and the values of a few tiles, used again for the next ones."""

    def __init__(self, dtype: torch.dtype, device: torch.device) -> None:
        # A tile takes 128 words of 64 bits for its radii, then 64 words that hold its 128 angles of 32 bits.
        self.words = torch.empty(_TILES_AT_ONCE, _WORDS, dtype=torch.int64)
        self.logarithm = torch.empty(_TILES_AT_ONCE, _PAIRS, dtype=torch.float64, device=device)
        self.radius = torch.empty(_TILES_AT_ONCE, _PAIRS, dtype=dtype, device=device)
        self.values = torch.empty(_TILES_AT_ONCE, 2, _PAIRS, dtype=dtype, device=device)
        self._parts: dict[tuple[tuple[tuple[str, int], ...], int], list[_Part]] = {}

    def parts(self, sizes: tuple[tuple[str, int], ...], start: int) -> list[_Part]:
        """All elements of tensors of these names and sizes, a part at a time; known again in every step."""
        if (sizes, start) not in self._parts:
            self._parts[sizes, start] = [_Part(self, runs) for runs in _runs_over(sizes, start)]
        return self._parts[sizes, start]


class _Part:
    """As many tiles as scratch has room for, with all views of it that they take."""

    def __init__(self, scratch: _Scratch, runs: Sequence[_Run]) -> None:
        ends = [0, *accumulate(run.tiles for run in runs)]
        words, values = scratch.words[: ends[-1]], scratch.values[: ends[-1]]
        bits = words.numpy().view(np.uint64).reshape(-1)
        self._runs = runs
        self._bits = [bits[at * _WORDS : end * _WORDS] for at, end in pairwise(ends)]
        self._radius_bits, self._angle_bits = words[:, :_PAIRS], words[:, _PAIRS:].view(torch.int32)
        self._smallest = torch.tensor(2.0**-_RADIUS_BITS, dtype=torch.float64, device=values.device)
        self._quarter = values.new_tensor([[math.pi / 2], [0]])
        self._logarithm = scratch.logarithm[: ends[-1]]
        self._radius = scratch.radius[: ends[-1]]
        self._values = values
        self.values = [values.view(-1)[run.start : run.start + run.numel] for run in runs]

    def within(self, flat: Mapping[str, Tensor]) -> list[Tensor]:
        """The elements of these tensors that the part covers."""
        return [
            flat[run.name] if run.numel == len(flat[run.name]) else flat[run.name].narrow(0, run.at, run.numel)
            for run in self._runs
        ]

    def draw(self, key: SecretKey, step: int) -> None:
        """Fill ``values``. The bits always come from the processor."""
        for run, bits in zip(self._runs, self._bits, strict=True):
            key.fill(bits, purpose="noise", name=run.name, step=step, start=run.tile * _WORDS)
        self._box_muller()

    def _box_muller(self) -> None:
        """R cos(a) and R sin(a) with R^2 = -2 ln(u), u in (0, 1] in steps of 2^-53."""
        # In single precision a u close to one would round to it, and a radius of zero hides nothing.
        logarithm = self._logarithm.copy_(self._radius_bits.bitwise_and_(2**_RADIUS_BITS - 1))
        torch.add(self._smallest, logarithm, alpha=2.0**-_RADIUS_BITS, out=logarithm).log_()
        radius = self._radius.copy_(logarithm).mul_(-2).sqrt_()
        # A cosine is the sine of a quarter turn more.
        angles = self._values.copy_(self._angle_bits.unsqueeze(1))
        torch.add(self._quarter, angles, alpha=math.pi / 2**31, out=angles).sin_().mul_(radius.unsqueeze(1))
