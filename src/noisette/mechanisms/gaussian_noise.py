"""Gaussian noise as a pure function of (secret key, step, parameter name, element).

It applies the Box-Muller transform to a ChaCha20 keystream. The radius is computed from 53 bits, so values reach 8.57
standard deviations. A generator with 24 bits stops at 5.77, and values beyond the largest noise identify the sum (see
`noisette.accounting.noise_tail`).
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

# Elements are computed in tiles: the cosines of 128 Box-Muller pairs, then their sines. Tiles are independent.
TILE = 256
_PAIRS = TILE // 2
_WORDS = _PAIRS + _PAIRS // 2  # 64-bit words of a tile: one for each radius, half a word for each angle
_TILES_AT_ONCE = 640  # fits into the processor's cache
_RADIUS_BITS = 53


class GaussianNoise:
    """A generator of Gaussian noise with a secret key.

    Guarantee: values are independent across names, steps and elements, as far as the cipher is secure. The same key,
    step, name and element give the same value, whether a tensor is filled at once or in parts.

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
            step: number of the step; the noise of a step must be used only once.
            std: standard deviation of the noise.
            start: index of each tensor's first element in the named parameter (not 0 for a shard).
        """
        flat = {name: tensor.view(-1) for name, tensor in tensors.items() if tensor.numel()}
        if not flat:
            return
        first = next(iter(flat.values()))
        sizes = tuple((name, len(tensor)) for name, tensor in flat.items())
        for group in self._scratch_for(first.dtype, first.device).groups(sizes, start):
            group.draw(self._key, step)
            torch._foreach_add_(group.views_of(flat), group.values, alpha=std)  # pyright: ignore[reportPrivateImportUsage]

    def _scratch_for(self, dtype: torch.dtype, device: torch.device) -> _Scratch:
        if (dtype, device) not in self._scratch:
            self._scratch[dtype, device] = _Scratch(dtype, device)
        return self._scratch[dtype, device]


@dataclass(frozen=True)
class _Run:
    """Consecutive tiles of one parameter, and the elements of a tensor that they cover."""

    name: str
    tile: int  # the first tile, counted from the start of the parameter
    tiles: int
    start: int  # index of the first value that is used, among all values of the group
    at: int  # index of the first element of the tensor
    numel: int


def _group_runs(sizes: Sequence[tuple[str, int]], start: int) -> list[list[_Run]]:
    """Divide the elements of all tensors into groups of runs, each with at most ``_TILES_AT_ONCE`` tiles.

    A tensor that begins or ends inside a tile takes the whole tile, and only uses the elements that it covers.

    Args:
        sizes: name and number of elements of each tensor.
        start: index of each tensor's first element in its parameter.
    """
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
    """Buffers for the bits, radii and values of ``_TILES_AT_ONCE`` tiles, reused for all groups."""

    def __init__(self, dtype: torch.dtype, device: torch.device) -> None:
        # A tile has 128 words of 64 bits for its radii, then 64 words that hold its 128 angles of 32 bits.
        self.words = torch.empty(_TILES_AT_ONCE, _WORDS, dtype=torch.int64)
        self.logarithm = torch.empty(_TILES_AT_ONCE, _PAIRS, dtype=torch.float64, device=device)
        self.radius = torch.empty(_TILES_AT_ONCE, _PAIRS, dtype=dtype, device=device)
        self.values = torch.empty(_TILES_AT_ONCE, 2, _PAIRS, dtype=dtype, device=device)
        self._groups: dict[tuple[tuple[tuple[str, int], ...], int], list[_TileGroup]] = {}

    def groups(self, sizes: tuple[tuple[str, int], ...], start: int) -> list[_TileGroup]:
        """The groups of runs for tensors of these names and sizes, cached because every step has the same."""
        if (sizes, start) not in self._groups:
            self._groups[sizes, start] = [_TileGroup(self, runs) for runs in _group_runs(sizes, start)]
        return self._groups[sizes, start]


class _TileGroup:
    """A group of runs, with its views into the scratch buffers."""

    def __init__(self, scratch: _Scratch, runs: Sequence[_Run]) -> None:
        ends = [0, *accumulate(run.tiles for run in runs)]
        words, values = scratch.words[: ends[-1]], scratch.values[: ends[-1]]
        bits = words.numpy().view(np.uint64).reshape(-1)
        self._runs = runs
        self._streams = [
            (bits[at * _WORDS : end * _WORDS], run.name, run.tile * _WORDS)
            for run, (at, end) in zip(runs, pairwise(ends), strict=True)
        ]
        self._radius_bits, self._angle_bits = words[:, :_PAIRS], words[:, _PAIRS:].view(torch.int32)
        self._smallest = torch.tensor(2.0**-_RADIUS_BITS, dtype=torch.float64, device=values.device)
        self._quarter = values.new_tensor([[math.pi / 2], [0]])
        self._logarithm = scratch.logarithm[: ends[-1]]
        self._radius = scratch.radius[: ends[-1]]
        self._values = values
        self.values = [values.view(-1)[run.start : run.start + run.numel] for run in runs]

    def views_of(self, flat: Mapping[str, Tensor]) -> list[Tensor]:
        """Views of the elements of these tensors that the group covers."""
        return [
            flat[run.name] if run.numel == len(flat[run.name]) else flat[run.name].narrow(0, run.at, run.numel)
            for run in self._runs
        ]

    def draw(self, key: SecretKey, step: int) -> None:
        """Fill ``values``. The bits are always computed on the CPU."""
        key.fill_each(self._streams, purpose="noise", step=step)
        self._box_muller()

    def _box_muller(self) -> None:
        """Box-Muller transform: R cos(a) and R sin(a) with R^2 = -2 ln(u), u uniform in (0, 1], a in [-pi, pi).

        With k the low 53 bits of a word, u = (k + 1) 2^-53 is never 0, so the logarithm is finite and the largest
        radius is sqrt(2 * 53 ln 2) = 8.57. The angle a is pi times a signed 32-bit integer over 2^31.
        """
        # u and its logarithm are in double precision: in single precision a u close to one would round to one, and the
        # radius, and with it the noise, to zero.
        logarithm = self._logarithm.copy_(self._radius_bits.bitwise_and_(2**_RADIUS_BITS - 1))
        torch.add(self._smallest, logarithm, alpha=2.0**-_RADIUS_BITS, out=logarithm).log_()
        radius = self._radius.copy_(logarithm).mul_(-2).sqrt_()
        # cos(a) = sin(a + pi / 2), so one sine computes both halves of a tile.
        angles = self._values.copy_(self._angle_bits.unsqueeze(1))
        torch.add(self._quarter, angles, alpha=math.pi / 2**31, out=angles).sin_().mul_(radius.unsqueeze(1))
