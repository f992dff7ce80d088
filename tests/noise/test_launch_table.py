"""The programs of a launch touch each tile of each tensor, as often as once."""

from __future__ import annotations

from collections import Counter

import pytest

from noisette.core.noise import TILE, Part, Window
from noisette.noise import device as device_noise

PARTS = [
    Part("a", 3, Window()),
    Part("b", 5000, Window(1000)),
    Part("c", 257, Window(255)),
    Part("d", 1, Window(10**10)),
]


@pytest.mark.parametrize("tiles_of_program", [1, 4, 16])
def test_each_tile_of_each_tensor_is_touched_once(tiles_of_program: int) -> None:
    """As the kernel finds it for each slot of each program."""
    rows, owners = device_noise.table_of(PARTS, tiles_of_program)
    found: Counter[tuple[int, int]] = Counter()
    for program, owner in enumerate(owners.tolist()):
        _, start, first = rows[owner].tolist()
        for slot in range(tiles_of_program):
            found[owner, start // TILE + (program - first) * tiles_of_program + slot] += 1
    assert set(found.values()) == {1}
    needed = {(number, (part.window.start + k) // TILE) for number, part in enumerate(PARTS) for k in range(part.size)}
    assert needed <= set(found)
