"""Numbers of rows of graphs, and rows that are repeated."""

from __future__ import annotations

import torch

from noisette.capture.step import is_real, padded, padded_size


def test_at_most_an_eighth_is_added_and_eight_sizes_lie_between_powers_of_two() -> None:
    sizes = {count: padded_size(count) for count in range(1, 5000)}
    assert all(count <= size <= max(count, 1.125 * count + 1) for count, size in sizes.items())
    assert all(padded_size(size) == size for size in sizes.values())
    assert len({size for count, size in sizes.items() if 1024 < count <= 2048}) == 8


def test_repeated_rows_are_the_first_and_are_told_from_real_ones() -> None:
    x, y = torch.randn(9, 3), torch.arange(9)
    wide, labels = padded([x, y], 12)
    assert torch.equal(wide[:9], x)
    assert torch.equal(wide[9:], x[:1].expand(3, 3))
    assert labels.tolist() == [*range(9), 0, 0, 0]
    assert is_real(9, 12, x.device).tolist() == [True] * 9 + [False] * 3
    assert padded([x, y], 9)[0] is x
