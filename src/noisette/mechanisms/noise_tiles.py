"""How the noise of several tensors is divided into tiles: the bits of each tile, and the elements that it covers.

Elements are computed in tiles: the cosines of 128 Box-Muller pairs, then their sines. Tiles are independent, so any
part of a parameter can be computed from its own tiles.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import accumulate, pairwise

import numpy as np
import torch
from torch import Tensor

TILE = 256  # elements
PAIRS = TILE // 2
WORDS = PAIRS + PAIRS // 2  # 64-bit words of a tile: one for each radius, half a word for each angle
TILES_AT_ONCE = 512  # fits into the processor's cache
# Elements are copied in pieces for which torch starts no threads: waiting for them takes longer than the copy.
_PIECE = 2**15 - TILE


@dataclass(frozen=True)
class Run:
    """Consecutive tiles of one parameter, and the elements of a tensor that they cover."""

    name: str
    tile: int  # the first tile, counted from the start of the parameter
    tiles: int
    start: int  # index of the first value that is used, among all values of the group
    at: int  # index of the first element of the tensor
    numel: int


def group_runs(sizes: Sequence[tuple[str, int]], start: int) -> list[list[Run]]:
    """Divide the elements of all tensors into groups of runs, each with at most ``TILES_AT_ONCE`` tiles.

    A tensor that begins or ends inside a tile takes the whole tile, and only uses the elements that it covers.

    Args:
        sizes: name and number of elements of each tensor.
        start: index of each tensor's first element in its parameter.
    """
    groups: list[list[Run]] = [[]]
    taken = 0
    for name, size in sizes:
        at = 0
        while at < size:
            if taken == TILES_AT_ONCE:
                groups.append([])
                taken = 0
            tile, skipped = divmod(start + at, TILE)
            numel = min(size - at, (TILES_AT_ONCE - taken) * TILE - skipped)
            run = Run(name, tile, -(-(skipped + numel) // TILE), taken * TILE + skipped, at, numel)
            groups[-1].append(run)
            at, taken = at + numel, taken + run.tiles
    return groups


class Bits:
    """The random words of ``TILES_AT_ONCE`` tiles: 128 for the radii of a tile, then 64 that hold its 128 angles.

    Attributes:
        radii: shape (TILES_AT_ONCE, PAIRS), 64 bits each.
        angles: shape (TILES_AT_ONCE, PAIRS), 32 bits each.
    """

    def __init__(self) -> None:
        words = torch.zeros(TILES_AT_ONCE, WORDS, dtype=torch.int64)
        self.words = words.numpy().view(np.uint64).reshape(-1)
        self.radii, self.angles = words[:, :PAIRS], words[:, PAIRS:].view(torch.int32)


class TileBuffers:
    """Memory for the bits and the sums of ``TILES_AT_ONCE`` tiles, used for one group of runs after another.

    Attributes:
        sums: shape (TILES_AT_ONCE, 2, PAIRS).
    """

    def __init__(self, dtype: torch.dtype, device: torch.device) -> None:
        self.bits = Bits()
        self.sums = torch.zeros(TILES_AT_ONCE, 2, PAIRS, dtype=dtype, device=device)
        self._groups: dict[tuple[tuple[tuple[str, int], ...], int], list[TileGroup]] = {}

    def groups(self, sizes: tuple[tuple[str, int], ...], start: int) -> list[TileGroup]:
        """The groups of runs for tensors of these names and sizes, cached because every step has the same."""
        if (sizes, start) not in self._groups:
            self._groups[sizes, start] = [TileGroup(self, runs) for runs in group_runs(sizes, start)]
        return self._groups[sizes, start]


class TileGroup:
    """A group of runs, with its views into the buffers.

    Attributes:
        streams: the words to be filled, the name of the parameter, and the first word of its stream, for each run.
        tiles: the number of tiles.
        is_whole: whether the group is one run that uses every value of ``TILES_AT_ONCE`` tiles. Then the elements of
            the tensor have the layout of ``TileBuffers.sums``.
    """

    def __init__(self, buffers: TileBuffers, runs: Sequence[Run]) -> None:
        ends = [0, *accumulate(run.tiles for run in runs)]
        self.streams = [
            (buffers.bits.words[at * WORDS : end * WORDS], run.name, run.tile * WORDS)
            for run, (at, end) in zip(runs, pairwise(ends), strict=True)
        ]
        self.tiles = ends[-1]
        self._runs = runs
        self.is_whole = runs[0].numel == TILES_AT_ONCE * TILE
        self._pieces = [
            (run, offset, min(_PIECE, run.numel - offset)) for run in runs for offset in range(0, run.numel, _PIECE)
        ]
        flat = buffers.sums.view(-1)
        self._gathered = [flat.narrow(0, run.start + offset, numel) for run, offset, numel in self._pieces]

    def whole(self, flat: Mapping[str, Tensor]) -> Tensor:
        """The elements of a group that is whole, in the shape of the buffer of sums."""
        run = self._runs[0]
        return flat[run.name].narrow(0, run.at, run.numel).view(TILES_AT_ONCE, 2, PAIRS)

    def pieces_of(self, flat: Mapping[str, Tensor]) -> list[Tensor]:
        """Views of the elements of these tensors that the group covers."""
        return [
            flat[run.name] if numel == len(flat[run.name]) else flat[run.name].narrow(0, run.at + offset, numel)
            for run, offset, numel in self._pieces
        ]

    def gather(self, pieces: list[Tensor]) -> None:
        """Copy the elements into the buffer of sums."""
        torch._foreach_copy_(self._gathered, pieces)  # pyright: ignore[reportPrivateImportUsage]

    def scatter(self, pieces: list[Tensor]) -> None:
        """Copy the buffer of sums back to where :meth:`gather` took the elements."""
        torch._foreach_copy_(pieces, self._gathered)  # pyright: ignore[reportPrivateImportUsage]
