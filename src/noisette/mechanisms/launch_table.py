"""How the tiles of several tensors are divided among the programs of one launch on a GPU."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from noisette.mechanisms.noise_tiles import TILE, Part

COLUMNS = 6


def table_of(parts: Sequence[Part], tiles_of_program: int) -> tuple[np.ndarray, np.ndarray]:
    """What the kernel is told of each part, and to which part each of its programs belongs.

    The tiles of a run are numbered from that in which it begins. Where there are several runs, each of them counts as
    many tiles as it may touch, so that the kernel finds run and tile by one division.

    Returns:
        Rows of: elements, first element in the parameter, elements of a run, elements between the beginnings of runs,
        tiles of a run, first program. And the number of the row of each program.
    """
    rows, owners = [], []
    for number, part in enumerate(parts):
        start, run, stride = part.window.start, part.window.run or part.size, part.window.stride or 0
        tiles = -(-(run - 1) // TILE) + 1 if stride else end_of(part) - start // TILE
        rows.append((part.size, start, run, stride, tiles, len(owners)))
        owners += [number] * -(-(-(-part.size // run) * tiles) // tiles_of_program)
    return np.array(rows, dtype=np.int64), np.array(owners, dtype=np.int32)


def end_of(part: Part) -> int:
    """The tile after the last one of a part, counted from the start of the parameter."""
    size, window = part.size, part.window
    run, stride = window.run or size, window.stride or size
    return (window.start + (size - 1) // run * stride + (size - 1) % run) // TILE + 1
