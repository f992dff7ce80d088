"""How the noise of several tensors is divided into tiles: the bits of each tile, and the elements that it covers.

Elements are computed in tiles: the cosines of 128 Box-Muller pairs, then their sines. Tiles are independent, so any
part of a parameter can be computed from its own tiles.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

import numpy as np
import torch
from torch import Tensor

from noisette.mechanisms.window import Window

TILE = 256  # elements
PAIRS = TILE // 2
WORDS = PAIRS + PAIRS // 2  # 64-bit words of a tile: one for each radius, half a word for each angle
TILES_AT_ONCE = 512  # fits into the processor's cache
# Elements are copied in pieces for which torch starts no threads: waiting for them takes longer than the copy.
_PIECE = 2**15 - TILE


@dataclass(frozen=True)
class Part:
    """A named tensor, as the noise sees it: its number of elements, and which ones of the parameter they are."""

    name: str
    size: int
    window: Window


@dataclass(frozen=True)
class Stretch:
    """Elements that follow each other in a tensor and in its parameter, and where a group of tiles has their values."""

    name: str
    tile: int  # the first tile, counted from the start of the parameter
    tiles: int
    place: int  # of the first tile, among the tiles of the group
    skipped: int  # values of the first tile that are not used
    at: int  # index of the first element of the tensor
    numel: int

    @property
    def start(self) -> int:
        """Index of the first value that is used, among all values of the group."""
        return self.place * TILE + self.skipped


@dataclass(frozen=True)
class Stream:
    """Consecutive tiles of one parameter, and where they lie among the tiles of a group."""

    name: str
    tile: int  # the first one, counted from the start of the parameter
    place: int  # of the first one in the group
    tiles: int

    @property
    def words(self) -> slice:
        """Where their words are among those of the group."""
        return slice(self.place * WORDS, (self.place + self.tiles) * WORDS)


def group_stretches(parts: Sequence[Part], most: int) -> list[list[Stretch]]:
    """Divide the elements of all tensors into groups of stretches, each with at most so many tiles.

    A stretch that begins or ends inside a tile takes the whole tile, and only uses the elements that it covers. The
    next one may go on in the same tile.
    """
    groups: list[list[Stretch]] = [[]]
    taken = 0
    for part in parts:
        for at, first, length in part.window.segments(part.size):
            done = 0
            while done < length:
                tile, skipped = divmod(first + done, TILE)
                last = groups[-1][-1] if groups[-1] else None
                goes_on = last is not None and last.name == part.name and last.tile + last.tiles - 1 == tile
                place = taken - 1 if goes_on else taken
                if place == most:
                    groups.append([])
                    taken = 0
                    continue
                numel = min(length - done, (most - place) * TILE - skipped)
                tiles = -(-(skipped + numel) // TILE)
                groups[-1].append(Stretch(part.name, tile, tiles, place, skipped, at + done, numel))
                done, taken = done + numel, place + tiles
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
    """Memory for the sums of a number of tiles, used for one group of tiles after another.

    Attributes:
        sums: shape (tiles, 2, PAIRS).
    """

    def __init__(self, dtype: torch.dtype, device: torch.device, tiles: int = TILES_AT_ONCE) -> None:
        self.sums = torch.zeros(tiles, 2, PAIRS, dtype=dtype, device=device)
        self._groups: dict[tuple[Part, ...], list[TileGroup]] = {}

    def groups(self, parts: tuple[Part, ...]) -> list[TileGroup]:
        """The groups of tiles for these tensors, cached because every step has the same."""
        if parts not in self._groups:
            grouped = group_stretches(parts, len(self.sums))
            self._groups[parts] = [TileGroup(self.sums, stretches) for stretches in grouped]
        return self._groups[parts]


class TileGroup:
    """The tiles of a group of stretches, with their views into the buffer of sums.

    Attributes:
        streams: the tiles, those together that follow each other.
        words: for each stream: where its words are among those of the group, its name, and its first word.
        tiles: the number of tiles.
        is_whole: whether the group is one stretch that uses every value of the buffer. Then the elements of the tensor
            have its layout.
    """

    def __init__(self, sums: Tensor, stretches: Sequence[Stretch]) -> None:
        self.streams = _streams(stretches)
        self.words = [(stream.words, stream.name, stream.tile * WORDS) for stream in self.streams]
        self.tiles = stretches[-1].place + stretches[-1].tiles
        self.is_whole = stretches[0].numel == sums.numel()
        self._shape = sums.shape
        self._stretches = stretches
        self._pieces = [
            (stretch, offset, min(_PIECE, stretch.numel - offset))
            for stretch in stretches
            for offset in range(0, stretch.numel, _PIECE)
        ]
        flat = sums.view(-1)
        self._gathered = [flat.narrow(0, stretch.start + offset, numel) for stretch, offset, numel in self._pieces]

    def whole(self, flat: Mapping[str, Tensor]) -> Tensor:
        """The elements of a group that is whole, in the shape of the buffer of sums."""
        stretch = self._stretches[0]
        return flat[stretch.name].narrow(0, stretch.at, stretch.numel).view(self._shape)

    def pieces_of(self, flat: Mapping[str, Tensor]) -> list[Tensor]:
        """Views of the elements of these tensors that the group covers."""
        return [
            flat[stretch.name] if numel == len(flat[stretch.name]) else flat[stretch.name].narrow(0, at, numel)
            for stretch, at, numel in [(s, s.at + offset, numel) for s, offset, numel in self._pieces]
        ]

    def gather(self, pieces: list[Tensor]) -> None:
        """Copy the elements into the buffer of sums."""
        torch._foreach_copy_(self._gathered, pieces)  # pyright: ignore[reportPrivateImportUsage]

    def scatter(self, pieces: list[Tensor]) -> None:
        """Copy the buffer of sums back to where :meth:`gather` took the elements."""
        torch._foreach_copy_(pieces, self._gathered)  # pyright: ignore[reportPrivateImportUsage]


def _streams(stretches: Sequence[Stretch]) -> list[Stream]:
    """The tiles of the stretches, those together that follow each other in their parameter."""
    streams: list[Stream] = []
    for stretch in stretches:
        last = streams[-1] if streams else None
        end = stretch.place + stretch.tiles
        if last and last.name == stretch.name and stretch.tile - last.tile == stretch.place - last.place:
            streams[-1] = replace(last, tiles=end - last.place)
        else:
            streams.append(Stream(stretch.name, stretch.tile, stretch.place, stretch.tiles))
    return streams
