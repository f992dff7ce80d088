"""Which elements of a parameter a tensor holds: all of them, or those of a shard."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass


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
