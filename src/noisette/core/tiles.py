"""Which elements of a parameter a tensor holds, and how the elements of all tensors are divided into tiles of noise."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache
from types import MappingProxyType

TILE = 256  # elements whose noise is computed together


@dataclass(frozen=True)
class Window:
    """Element ``i`` of a flat tensor is element ``start + (i // run) * stride + i % run`` of the flat parameter.

    A shard of rows is one run. A shard of columns has a run in each row, and the stride is the length of a whole row.

    Args:
        start: the parameter's element at which the tensor begins.
        run: elements of the tensor that follow each other in the parameter too; ``None``: all of them.
        stride: elements of the parameter from the beginning of one run to that of the next; ``None``: one run.

    Raises:
        ValueError: the start is negative, only one of ``run`` and ``stride`` is given, or runs are empty or overlap.

    >>> [first for _, first, _ in Window(start=2, run=3, stride=10).segments(9)]
    [2, 12, 22]
    """

    start: int = 0
    run: int | None = None
    stride: int | None = None

    def __post_init__(self) -> None:
        if self.start < 0:
            raise ValueError(f"a window starts at 0 or later, got {self.start}")
        if (self.run is None) != (self.stride is None):
            raise ValueError(f"run and stride belong together, got {self.run} and {self.stride}")
        # Runs that overlap would give several elements the same noise.
        if self.run is not None and self.stride is not None and not 0 < self.run <= self.stride:
            raise ValueError(f"expected runs of at least 1 element, not longer than the stride, got {self}")

    def segments(self, size: int) -> Iterator[tuple[int, int, int]]:
        """The runs of a tensor of so many elements: first element in the tensor, in the parameter, and length."""
        run, stride = (self.run or size), (self.stride or size)
        for k, at in enumerate(range(0, size, run or 1)):
            yield at, self.start + k * stride, min(run, size - at)


WHOLE = Window()
ALL_WHOLE: Mapping[str, Window] = MappingProxyType({})


@dataclass(frozen=True)
class Part:
    """A named tensor, as the noise sees it: its number of elements, and which ones of the parameter they are."""

    name: str
    size: int
    window: Window


@dataclass(frozen=True)
class Piece:
    """Elements that follow each other in a tensor and in its parameter, and which tiles of a group have their noise."""

    name: str
    at: int  # the first element, in the tensor
    numel: int
    tile: int  # the first tile, counted from the start of the parameter
    tiles: int
    place: int  # of the first tile in the group
    skipped: int  # values of the first tile that are not used

    @property
    def values(self) -> slice:
        """Their noise among the values of the group."""
        start = self.place * TILE + self.skipped
        return slice(start, start + self.numel)


@lru_cache(maxsize=64)
def groups_of(parts: Sequence[Part], most: int) -> list[list[Piece]]:
    """Divide the elements of all tensors into groups of pieces, each with at most so many tiles.

    A piece that begins or ends inside a tile takes the whole tile. The next one may go on in the same tile.
    """
    groups: list[list[Piece]] = [[]]
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
                groups[-1].append(Piece(part.name, at + done, numel, tile, tiles, place, skipped))
                done, taken = done + numel, place + tiles
    return groups
