"""The batches that remain, with their number, so that a progress bar has a total."""

from __future__ import annotations

from collections.abc import Callable, Generator
from types import TracebackType
from typing import Any

from noisette.core.batches import Batch


class RemainingBatches(Generator[Batch, None, None]):
    """A generator of batches with a length: the number of steps that may follow, which is planned and public."""

    def __init__(self, batches: Generator[Batch, None, None], steps_left: Callable[[], int]) -> None:
        self._batches = batches
        self._steps_left = steps_left

    def __len__(self) -> int:
        return self._steps_left()

    def __bool__(self) -> bool:
        return True  # as of any generator

    def __repr__(self) -> str:
        return f"<batches: {len(self)} steps left>"

    def __next__(self) -> Batch:
        return next(self._batches)

    def send(self, value: None, /) -> Batch:
        return self._batches.send(value)

    def throw(self, typ: Any, val: object = None, tb: TracebackType | None = None, /) -> Batch:
        return self._batches.throw(typ) if val is None else self._batches.throw(typ, val, tb)

    def close(self) -> None:
        self._batches.close()
