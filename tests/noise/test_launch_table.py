"""The programs of a launch touch each tile of each run that has elements, as often as once."""

from collections import Counter

import pytest

from noisette.core.noise import TILE, Part, Window
from noisette.noise import device as device_noise

PARTS = [
    Part("a", 3, Window()),
    Part("b", 5000, Window(1000)),
    Part("c", 257, Window(255)),
    Part("d", 700, Window(5, run=100, stride=1000)),
    Part("e", 300, Window(777, run=3, stride=10)),
    Part("f", 3 * 513, Window(255, run=513, stride=600)),
    Part("g", 1000, Window(0, run=256, stride=256)),
    Part("h", 1, Window(10**10)),
]


def touched(parts: list[Part], tiles_of_program: int) -> Counter[tuple[int, int, int]]:
    """Part, run and tile of each slot of each program, as the kernel finds them."""
    rows, owners = device_noise.table_of(parts, tiles_of_program)
    slots: Counter[tuple[int, int, int]] = Counter()
    for program, owner in enumerate(owners.tolist()):
        _, start, _, stride, tiles, first = rows[owner].tolist()
        for slot in range(tiles_of_program):
            run, tile = divmod((program - first) * tiles_of_program + slot, tiles)
            slots[owner, run, (start + run * stride) // TILE + tile] += 1
    return slots


@pytest.mark.parametrize("tiles_of_program", [1, 4, 16])
def test_each_tile_of_each_run_is_touched_once(tiles_of_program: int) -> None:
    found = touched(PARTS, tiles_of_program)
    assert set(found.values()) == {1}
    needed = {
        (number, run, (first + k) // TILE)
        for number, part in enumerate(PARTS)
        for run, (_, first, length) in enumerate(part.window.segments(part.size))
        for k in range(length)
    }
    assert needed <= set(found)
